"""log p over the recorded supports on torch, without a gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..behavior import Behavior, SupportLogProbs
from ..errors import LengthMismatch, OutsideVocabulary
from ..reference.score import check_temperature
from ..rules.rows import finite
from .parts import CHUNK_BYTES, parts_of, score
from .shards import Shard
from .source import source_of


def check_source(source: Any, behavior: Behavior, shard: Shard) -> None:
    """One row a token, wide enough for every id."""
    if source.rows != len(behavior):
        raise LengthMismatch("rows of logits", source.rows, len(behavior))
    if source.width != shard.size:
        raise LengthMismatch("the vocabulary of this shard", source.width, shard.size)
    for name, ids in (("token", behavior.tokens), ("support id", behavior.ids)):
        if len(ids) and int(ids.max()) >= shard.vocabulary:
            raise OutsideVocabulary(
                f"{name} {int(ids.max())} is outside the trainer's vocabulary of {shard.vocabulary}"
            )


def whole(source: Any) -> Shard:
    """The vocabulary in one place."""
    return Shard(0, source.width, source.width)


@torch.no_grad()
def support_logprobs(
    source: Any, behavior: Behavior, temperature: float, *, shard: Shard | None = None, chunk_bytes: int = CHUNK_BYTES
) -> SupportLogProbs:
    """log p of every entry, drawn token and rest, as torch tensors in f32 (f64 for an f64 model).

    ``source`` is `Logits`, a tensor of logits, or a `Projection`.

    Raises:
        LengthMismatch, OutsideVocabulary, TemperatureMismatch, NotANumber
    """
    check_temperature(behavior, temperature)
    source = source_of(source)
    shard = shard or whole(source)
    check_source(source, behavior, shard)
    device = source.tensors[0].device
    chunk = max(1, chunk_bytes // (4 * shard.size))
    log_p: Tensor | None = None
    for part in parts_of(behavior, np.arange(len(behavior)), device, chunk):
        with torch.autocast(device.type, enabled=False):
            scored = score(source, part, temperature, shard)
        if log_p is None:
            log_p = scored.all_entries.new_zeros(len(behavior.ids))
            drawn = scored.terms.drawn.new_zeros(len(behavior))
            rest = scored.terms.drawn.new_full((len(behavior),), -torch.inf)
        entries = torch.from_numpy(behavior.entries_of(part.rows.cpu().numpy())).to(device)
        log_p[entries] = scored.all_entries
        drawn[part.rows] = scored.terms.drawn
        if scored.terms.rest is not None:
            rest[part.rows] = scored.terms.rest
    if log_p is None:
        empty = source.tensors[0].new_zeros(0, dtype=torch.float32)
        return SupportLogProbs(empty, empty, None)
    if behavior.rest is None:
        return SupportLogProbs(log_p, drawn, None)
    exact = torch.from_numpy(np.isneginf(behavior.rest.log_rest)).to(device)
    return SupportLogProbs(log_p, drawn, torch.where(exact, torch.full_like(rest, -torch.inf), rest))


def decompose(log_theta: SupportLogProbs, log_s: SupportLogProbs, behavior: Behavior) -> tuple[Tensor, Tensor]:
    """``(log p - log p_s, log p_s - log q)`` of the drawn tokens.

    Raises:
        NotANumber: a term that is not finite.
    """
    s = torch.as_tensor(log_s.log_p_sampled)
    log_q = torch.as_tensor(behavior.log_q_drawn).to(s)
    return finite(torch.as_tensor(log_theta.log_p_sampled) - s, "lag"), finite(s - log_q, "numeric discrepancy")
