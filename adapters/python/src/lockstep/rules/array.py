"""The few array functions numpy and torch do not share by name. A rule written with them runs on both."""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = Any
"""A numpy array or a torch tensor."""


def xp(array: Array) -> Any:
    """The module an array belongs to."""
    return np if isinstance(array, (np.ndarray, np.generic)) else sys.modules["torch"]


def segment_sum(values: Array, index: Array, count: int) -> Array:
    """Sums of the values of each index, ``[count]``."""
    if isinstance(values, np.ndarray):
        return np.bincount(index, weights=values, minlength=count)[:count]
    return values.new_zeros(count).index_add_(0, index, values)


def segment_max(values: Array, index: Array, count: int) -> Array:
    """Largest value of each index, ``[count]``; ``-inf`` where there is none."""
    if isinstance(values, np.ndarray):
        out = np.full(count, -np.inf)
        np.maximum.at(out, index, values)
        return out
    return values.new_full((count,), float("-inf")).scatter_reduce_(0, index, values, "amax")


def counts(index: Array, count: int) -> Array:
    """How often each index occurs, as floats."""
    if isinstance(index, np.ndarray):
        return np.bincount(index, minlength=count).astype(np.float64)
    torch = xp(index)
    return torch.bincount(index, minlength=count).to(torch.float64)


def to_numpy(array: Array) -> Any:
    """On the host, f64 where it is a float."""
    if isinstance(array, np.ndarray):
        return array
    return array.detach().cpu().numpy()


def like(values: Any, array: Array) -> Array:
    """numpy values as the kind of array the other one is."""
    if isinstance(array, np.ndarray):
        return np.asarray(values)
    return xp(array).as_tensor(values, device=array.device)
