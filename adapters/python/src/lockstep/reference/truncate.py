"""Which ids a sampler's filters keep, in the order it applies them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import InvalidRule
from .score import log_softmax


@dataclass(frozen=True)
class Truncated:
    """What is left of one position."""

    ids: Any
    """Kept ids, ascending."""
    log_q: Any
    """Their renormalised log-probs."""
    kept_mass: float
    """Their mass before the last renormalisation."""


def truncate(logits: Any, filters: Sequence[tuple[str, float]]) -> Truncated:
    """Applies ``("temperature" | "top_k" | "top_p" | "min_p", value)`` in order.

    top-p keeps the smallest prefix whose exclusive cumulative mass is below p: the token that crosses p is kept.
    """
    z = np.asarray(logits, np.float64)
    ids = np.argsort(-z, kind="stable")
    z = z[ids]
    for name, value in filters:
        p = np.exp(log_softmax(z))
        if name == "temperature":
            z = z / value
            continue
        if name == "top_k":
            keep = np.arange(len(z)) < int(value)
        elif name == "top_p":
            keep = np.cumsum(p) - p < value
        elif name == "min_p":
            keep = p >= value * p.max()
        else:
            raise InvalidRule(f"unknown filter {name!r}")
        z, ids = z[keep], ids[keep]
    temperature = float(np.prod([value for name, value in filters if name == "temperature"]))
    full = np.asarray(logits, np.float64) / temperature
    mass = float(np.exp(log_softmax(full))[ids].sum())
    ascending = np.argsort(ids)
    return Truncated(ids[ascending], log_softmax(z)[ascending], mass)
