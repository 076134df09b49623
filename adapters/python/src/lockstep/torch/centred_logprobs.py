"""log p of the drawn tokens with the gradient of a correction: what a framework's log-prob op is replaced by.

A framework whose loss is ``-A log p`` and whose hooks never see logits gets DLC this way, and only this way.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..behavior import Behavior, SupportLogProbs
from ..errors import MissingScores, NotSupported
from ..reference.score import check_temperature
from ..rules import Dlc
from ..rules.rows import Rule
from .function import Run, active_positions
from .parts import CHUNK_BYTES
from .score import check_source, whole
from .shards import Shard
from .source import Projection, compute_dtype, source_of


class _LogProbs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: Run, *tensors: Tensor) -> Tensor:
        """log p of the drawn tokens over their supports."""
        ctx.run, ctx.needs = run, ctx.needs_input_grad[1:]
        run.forward(None)
        out = run.advantages.new_empty(len(run.behavior))
        for order, rows in zip(run.order, run.rows):
            out[order] = rows.theta.drawn
        return out

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> Any:
        """Each row's gradient of ``w log p_a - sum_v c_v log p_v``, times what comes from outside."""
        run: Run = ctx.run
        run.coefficients = outputs[0].to(run.dtype)
        # Of logits each row is written once; what is summed is summed in the compute type.
        summed = isinstance(run.source, Projection)
        grads = [
            torch.zeros_like(t, dtype=run.dtype if summed else t.dtype) if need else None
            for t, need in zip(run.source.tensors, ctx.needs)
        ]
        run.backward(grads)
        if isinstance(run.source, Projection) and grads[0] is not None:
            grads[0] = run.shard.all_sum(grads[0])
        return (None, *(None if g is None else g.to(t.dtype) for g, t in zip(grads, run.source.tensors)))


def centred_logprobs(
    source: Any,
    behavior: Behavior,
    rule: Dlc | Rule | None = None,
    *,
    temperature: float,
    log_s: SupportLogProbs | None = None,
    sampler: Any = None,
    shard: Shard | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> Tensor:
    """``log p_a``, ``[T]``, whose gradient is that of ``w log p_a - sum_v c_v log p_v``: a loss ``-A x`` on it is DLC's.

    Raises:
        NotSupported: a rule whose coefficients depend on the sign of the advantage, which is not known here.
        MissingScores: a rule that needs p_s, without it.
    """
    rule = Dlc() if rule is None else rule
    if (
        not rule.local
        or not (isinstance(rule, Dlc) and not hasattr(rule.lag, "active"))
        and type(rule).__name__ != "ScoreCentring"
    ):
        raise NotSupported(
            f"{type(rule).__name__}: its coefficients need the advantages, or the whole batch; a log-prob op knows neither"
        )
    check_temperature(behavior.check(), temperature)
    source = source_of(source)
    sampler = None if sampler is None else source_of(sampler)
    shard = shard or whole(source)
    for one in (source, sampler):
        if one is not None:
            check_source(one, behavior, shard)
    if rule.needs_scores and log_s is None and sampler is None:
        raise MissingScores(
            f"{type(rule).__name__} needs log p_s of {len(behavior)} positions and was given none: give log_s or sampler"
        )
    if log_s is not None:
        log_s.check(behavior)
    device, dtype = source.tensors[0].device, compute_dtype(source.tensors[0])
    count = len(behavior)
    one = torch.ones(count, dtype=dtype, device=device)
    run = Run(
        source,
        sampler,
        behavior,
        log_s,
        rule,
        -one,
        one,
        torch.zeros(count, dtype=torch.long, device=device),
        None,
        temperature,
        shard,
        active_positions(behavior, None),
        max(1, chunk_bytes // (4 * shard.size)),
    )
    out: Tensor = _LogProbs.apply(run, *source.tensors)
    return out
