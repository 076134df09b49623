"""A vocabulary that is spread over ranks: what each holds, and the three sums that make the ranks one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ..errors import LengthMismatch


class Group(Protocol):
    """What a process group must do."""

    def all_sum(self, values: Tensor) -> Tensor:
        """The sum over the ranks."""
        ...

    def all_max(self, values: Tensor) -> Tensor:
        """The largest over the ranks."""
        ...


@dataclass(frozen=True)
class ProcessGroup:
    """torch.distributed."""

    group: Any = None

    def all_sum(self, values: Tensor) -> Tensor:
        """The sum over the ranks."""
        values = values.contiguous().clone()
        torch.distributed.all_reduce(values, torch.distributed.ReduceOp.SUM, group=self.group)
        return values

    def all_max(self, values: Tensor) -> Tensor:
        """The largest over the ranks."""
        values = values.contiguous().clone()
        torch.distributed.all_reduce(values, torch.distributed.ReduceOp.MAX, group=self.group)
        return values


@dataclass(frozen=True)
class Shard:
    """The ids ``start..start + size`` of a vocabulary of ``vocabulary`` ids; alone when there is no group."""

    start: int
    size: int
    vocabulary: int
    group: Group | None = None

    def all_sum(self, values: Tensor) -> Tensor:
        """The sum over the ranks."""
        return values if self.group is None else self.group.all_sum(values)

    def all_max(self, values: Tensor) -> Tensor:
        """The largest over the ranks."""
        return values if self.group is None else self.group.all_max(values)

    def local(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Which ids live here, and where; 0 for those that do not."""
        at = ids - self.start
        here = (at >= 0) & (at < self.size)
        return here, torch.where(here, at, torch.zeros_like(at))


def process_shard(size: int, group: Any = None) -> Shard:
    """This rank's part of a vocabulary that is split in equal parts in rank order, as Megatron and FSDP split it.

    Raises:
        LengthMismatch: parts of different sizes; on every rank.
    """
    rank, ranks = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)
    sizes: list[int | None] = [None] * ranks
    torch.distributed.all_gather_object(sizes, size, group)
    if any(other != size for other in sizes):
        raise LengthMismatch(f"the vocabulary of rank {rank} of {ranks}", size, f"that of the others, {sizes}")
    return Shard(rank * size, size, ranks * size, ProcessGroup(group))
