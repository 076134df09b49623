"""Where logits come from: a tensor, or hidden states and the head's weight. Rows are made in chunks and not kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import LengthMismatch, WrongDtype


def compute_dtype(tensor: Tensor) -> torch.dtype:
    """f32, or f64 where the model is f64: a bf16 model has an f32 head."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _floating(name: str, tensor: Tensor) -> None:
    if not tensor.is_floating_point():
        raise WrongDtype(name, tensor.dtype, "a floating type")
    if tensor.dim() != 2:
        raise LengthMismatch(f"{name} of shape {tuple(tensor.shape)}", f"{tensor.dim()} axes of", "2 axes of")


@dataclass(frozen=True)
class Logits:
    """Raw logits ``[T, V]``, before the division by the temperature."""

    logits: Tensor

    def __post_init__(self) -> None:
        _floating("logits", self.logits)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What has a gradient."""
        return (self.logits,)

    @property
    def rows(self) -> int:
        """T."""
        return self.logits.shape[0]

    @property
    def width(self) -> int:
        """V, or this shard's part of it."""
        return self.logits.shape[1]

    def chunk(self, rows: Tensor) -> Tensor:
        """Logits of some rows, a copy."""
        picked = self.logits.detach()[rows]
        return picked.to(compute_dtype(self.logits))

    def gather(self, rows: Tensor, ids: Tensor) -> Tensor:
        """Single logits."""
        return self.logits.detach()[rows, ids].to(compute_dtype(self.logits))


@dataclass(frozen=True)
class Projection:
    """Hidden states ``[T, H]`` and the head ``[V, H]``; products are accumulated in f32."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None = None

    def __post_init__(self) -> None:
        _floating("hidden", self.hidden)
        _floating("weight", self.weight)
        if self.hidden.shape[1] != self.weight.shape[1]:
            raise LengthMismatch("a row of the head's weight", self.weight.shape[1], self.hidden.shape[1])
        if (self.hidden.dtype == torch.float64) != (self.weight.dtype == torch.float64):
            raise WrongDtype("weight", self.weight.dtype, f"one that fits hidden states of {self.hidden.dtype}")
        if self.bias is not None and self.bias.shape[0] != self.weight.shape[0]:
            raise LengthMismatch("bias", self.bias.shape[0], self.weight.shape[0])

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What has a gradient."""
        return (self.hidden, self.weight) if self.bias is None else (self.hidden, self.weight, self.bias)

    @property
    def rows(self) -> int:
        """T."""
        return self.hidden.shape[0]

    @property
    def width(self) -> int:
        """V, or this shard's part of it."""
        return self.weight.shape[0]

    def head(self) -> Tensor:
        """The weight in the compute type: a copy for a bf16 head, the weight itself for f32."""
        return self.weight.detach().to(compute_dtype(self.hidden))

    def chunk(self, rows: Tensor) -> Tensor:
        """Logits of some rows."""
        z = self.hidden.detach()[rows].to(compute_dtype(self.hidden)) @ self.head().T
        return z if self.bias is None else z.add_(self.bias.detach().to(z.dtype))

    def gather(self, rows: Tensor, ids: Tensor) -> Tensor:
        """Single logits, a block of entries at a time."""
        dtype = compute_dtype(self.hidden)
        hidden, weight = self.hidden.detach(), self.weight.detach()
        parts = [
            torch.einsum("nh,nh->n", hidden[rows[at : at + BLOCK]].to(dtype), weight[ids[at : at + BLOCK]].to(dtype))
            for at in range(0, len(rows), BLOCK)
        ]
        z = torch.cat(parts) if parts else hidden.new_zeros(0, dtype=dtype)
        return z if self.bias is None else z + self.bias.detach()[ids].to(dtype)


@dataclass(frozen=True)
class ByVersion:
    """Rows that several versions of the weights drew, each from the source of its version."""

    sources: tuple[Projection, ...]
    which: Tensor
    """Source of each row, ``[T]``."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Those of the first source, which stands for all."""
        return self.sources[0].tensors

    @property
    def rows(self) -> int:
        """T."""
        return len(self.which)

    @property
    def width(self) -> int:
        """V, or this shard's part of it."""
        return self.sources[0].width

    def chunk(self, rows: Tensor) -> Tensor:
        """Logits of some rows."""
        out = rows.new_empty((len(rows), self.width), dtype=compute_dtype(self.tensors[0]))
        for source, at in self._places(rows):
            out[at] = source.chunk(rows[at])
        return out

    def gather(self, rows: Tensor, ids: Tensor) -> Tensor:
        """Single logits."""
        out = rows.new_empty(len(rows), dtype=compute_dtype(self.tensors[0]))
        for source, at in self._places(rows):
            out[at] = source.gather(rows[at], ids[at])
        return out

    def _places(self, rows: Tensor) -> Iterator[tuple[Projection, Tensor]]:
        """Each source, and where its rows stand among these."""
        which = self.which[rows]
        return ((source, (which == index).nonzero().squeeze(-1)) for index, source in enumerate(self.sources))


BLOCK = 4096
"""Entries whose hidden states are gathered at a time."""

Source = Any
"""`Logits` or `Projection`."""


def source_of(value: Any) -> Any:
    """A tensor is taken for logits."""
    return Logits(value) if isinstance(value, Tensor) else value
