"""A run of tokens cut into parts: all rows over kept ids at once, rows over the vocabulary in chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..behavior import Behavior
from ..errors import NotANumber
from ..rules.array import segment_max, segment_sum
from ..rules.rows import Terms
from .shards import Shard

CHUNK_BYTES = 1 << 27
"""Size of a chunk of logits in f32."""


@dataclass(frozen=True)
class Part:
    """Rows that are worked on together."""

    rows: Tensor
    """Their positions in the batch, ``[R]``."""
    behavior: Behavior
    row: Tensor
    """Row of each listed entry, ``[N]``."""
    ids: Tensor
    known: Tensor
    tokens: Tensor
    drawn: Tensor
    """Entry of the drawn token, -1 where it is not listed."""
    single: Tensor
    dense: bool
    """Whether q is over the vocabulary."""

    @property
    def count(self) -> int:
        """R."""
        return len(self.tokens)

    @staticmethod
    def of(positions: Any, behavior: Behavior, device: torch.device, dense: bool) -> Part:
        """The selected rows on a device."""
        picked = behavior.select(positions)
        on = lambda values, kind=np.int64: torch.from_numpy(np.ascontiguousarray(values, kind)).to(device)  # noqa: E731
        return Part(
            on(positions),
            picked,
            on(picked.row),
            on(picked.ids),
            on(picked.known, np.bool_),
            on(picked.tokens),
            on(picked.drawn),
            on(picked.single, np.bool_),
            dense,
        )

    def q(self, dtype: torch.dtype) -> Terms:
        """log q on the device."""
        on = lambda values: torch.from_numpy(np.ascontiguousarray(values, np.float64)).to(self.rows.device, dtype)  # noqa: E731
        rest = None if self.behavior.rest is None else on(self.behavior.rest.log_rest)
        return Terms(on(self.behavior.log_q)[self.known], on(self.behavior.log_q_drawn), rest)


def parts_of(behavior: Behavior, positions: Any, device: torch.device, chunk_rows: int) -> list[Part]:
    """The active positions in parts."""
    whole = behavior.whole_vocabulary[positions]
    parts = []
    if (~whole).any():
        parts.append(Part.of(positions[~whole], behavior, device, dense=False))
    dense = positions[whole]
    for at in range(0, len(dense), chunk_rows):
        parts.append(Part.of(dense[at : at + chunk_rows], behavior, device, dense=True))
    return parts


@dataclass
class Scored:
    """log p of a part, and what its gradient needs."""

    all_entries: Tensor
    """log p of every listed entry, ``[N]``."""
    terms: Terms
    """On the known entries."""
    mass: Tensor | None
    """``exp(z - max)`` of a dense part, ``[R, V]``; 0 at its known entries."""
    normaliser: Tensor | None
    """Sum of the masses with the known ones, ``[R]``."""


def _check(values: Tensor, part: Part) -> None:
    ok = torch.isfinite(values)
    if not bool(ok.all()):
        at = int((~ok).nonzero()[0, 0])
        raise NotANumber(
            f"the logits of position {int(part.rows[at])} have no finite normaliser ({float(values[at])}): NaN or infinite logits"
        )


def score(source: Any, part: Part, temperature: float, shard: Shard) -> Scored:
    """log p over the recorded supports of one part."""
    return _dense(source, part, temperature, shard) if part.dense else _listed(source, part, temperature, shard)


def _listed(source: Any, part: Part, temperature: float, shard: Shard) -> Scored:
    here, at = shard.local(part.ids)
    z = source.gather(part.rows[part.row], at) / temperature
    z = shard.all_sum(torch.where(here, z, torch.zeros_like(z)))
    top = segment_max(z, part.row, part.count)
    top = torch.where(part.single, torch.zeros_like(top), top)
    sums = segment_sum(torch.exp(z - top[part.row]), part.row, part.count)
    lse = torch.where(part.single, torch.zeros_like(sums), top + torch.log(sums))
    _check(lse, part)
    log_p = z - lse[part.row]
    drawn = torch.where(
        part.single, torch.zeros_like(lse), log_p[part.drawn.clamp(min=0)] if len(log_p) else torch.zeros_like(lse)
    )
    rest = None
    if part.behavior.rest is not None:
        off = torch.where(part.known, torch.zeros_like(log_p), torch.exp(log_p))
        rest = torch.log(segment_sum(off, part.row, part.count))
    return Scored(log_p, Terms(log_p[part.known], drawn, rest), None, None)


def _dense(source: Any, part: Part, temperature: float, shard: Shard) -> Scored:
    z = source.chunk(part.rows).div_(temperature)
    here, at = shard.local(part.ids)
    here_drawn, at_drawn = shard.local(part.tokens)
    own = torch.arange(part.count, device=z.device)
    z_known = shard.all_sum(torch.where(here, z[part.row, at], z.new_zeros(())))
    z_drawn = shard.all_sum(torch.where(here_drawn, z[own, at_drawn], z.new_zeros(())))
    top = shard.all_max(z.amax(1))
    mass = z.sub_(top[:, None]).exp_()
    mass[part.row[here], at[here]] = 0.0
    off = shard.all_sum(mass.sum(1))
    total = off + segment_sum(torch.exp(z_known - top[part.row]), part.row, part.count)
    lse = top + torch.log(total)
    _check(lse, part)
    log_p = z_known - lse[part.row]
    rest = torch.log(off) - torch.log(total)
    return Scored(log_p, Terms(log_p, z_drawn - lse, rest), mass, total)
