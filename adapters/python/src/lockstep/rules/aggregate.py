"""Advantages and reductions: what stands between rewards, losses and one number. Groups are known, lengths are counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..errors import InvalidRule, LengthMismatch, NotANumber
from .array import Array, counts, xp


@dataclass(frozen=True)
class Deviation:
    """What a group's advantages are divided by: nothing, or its deviation plus epsilon."""

    kind: Literal["none", "sample", "population"] = "none"
    epsilon: float = 0.0


MEAN_ONLY = Deviation()
VERL = Deviation("sample", 1e-6)
TRL = Deviation("sample", 1e-4)
AREAL = Deviation("population", 1e-5)


def _grouped(rewards: Any, groups: Any, of: Any) -> Any:
    rewards, groups = np.asarray(rewards, np.float64), np.asarray(groups)
    if len(rewards) != len(groups):
        raise LengthMismatch("groups", len(groups), len(rewards))
    bad = np.flatnonzero(~np.isfinite(rewards))
    if len(bad):
        raise NotANumber(f"reward {rewards[bad[0]]} of answer {bad[0]} is not finite")
    out = np.zeros(len(rewards))
    for group in np.unique(groups):
        members = groups == group
        values = rewards[members]
        out[members] = 0.0 if len(values) > 1 and (values == values[0]).all() else of(values)
    return out


def advantages(rewards: Any, groups: Any, deviation: Deviation = MEAN_ONLY) -> Any:
    """``R - mean`` over the group, divided as asked; a group of one keeps its reward, one without variance is exactly 0."""

    def of(values: Any) -> Any:
        if len(values) == 1:
            return values / (1.0 if deviation.kind == "none" else 1 + deviation.epsilon)
        centred = values - values.mean()
        if deviation.kind == "none":
            return centred
        return centred / (values.std(ddof=1 if deviation.kind == "sample" else 0) + deviation.epsilon)

    return _grouped(rewards, groups, of)


def leave_one_out(rewards: Any, groups: Any) -> Any:
    """RLOO: ``R - mean of the others``."""
    return _grouped(rewards, groups, lambda v: v if len(v) == 1 else v - (v.sum() - v) / (len(v) - 1))


Reduction = Literal[
    "token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm", "dr_grpo", "sum"
]


def coefficients(
    reduction: Reduction,
    sequence: Array,
    *,
    rows: int | None = None,
    length: int | None = None,
    totals: tuple[int, int] | None = None,
) -> Array:
    """What each token's loss is multiplied with before they are summed, ``[T]``.

    ``totals`` are the tokens and sequences of the whole global batch, where this is a part of it. Counts are those
    before any rejection: otherwise each token's gradient grows with what was dropped.
    """
    m = xp(sequence)
    n = int(sequence.max()) + 1 if len(sequence) else 0
    of_sequence = counts(sequence, n)
    tokens, sequences = totals or (len(sequence), int((of_sequence > 0).sum()))
    one = of_sequence[sequence] * 0 + 1.0
    if reduction == "sum":
        return one
    if reduction == "token_mean":
        return one / max(tokens, 1)
    if reduction == "seq_mean_token_mean":
        return one / (max(sequences, 1) * m.clip(of_sequence, 1, None)[sequence])
    if reduction == "seq_mean_token_sum":
        return one / max(sequences, 1)
    if length is None or length <= 0:
        raise InvalidRule(f"reduction {reduction} needs a length above 0, not {length}")
    return one / (
        length if reduction == "seq_mean_token_sum_norm" else length * (rows if rows is not None else sequences)
    )


@dataclass(frozen=True)
class Vcpo:
    """VCPO's guards of a batch by its ESS over whole-sequence weights (arXiv 2602.17616)."""

    guard: float = 1e-8

    def ess(self, log_weights: Any) -> float:
        """``(sum w)^2 / (sum w^2 + guard)``."""
        l = np.asarray(log_weights, np.float64)
        w = np.exp(l - (l.max() if self.guard == 0 else 0.0))
        return float(w.sum() ** 2 / ((w * w).sum() + self.guard))

    def baseline(self, log_weights: Any, gradient_norms: Any, rewards: Any) -> float:
        """``sum w^2 |g|^2 R / sum w^2 |g|^2``."""
        k = np.exp(2 * np.asarray(log_weights, np.float64)) * np.asarray(gradient_norms, np.float64) ** 2
        total = k.sum() + self.guard
        if not total > 0:
            raise NotANumber("a baseline over gradients that are all 0 is not defined")
        return float((k * np.asarray(rewards, np.float64)).sum() / total)


def learning_rate_scale(rho: float, rho_base: float = 1.0, rule: Literal["sqrt", "linear"] = "sqrt") -> float:
    """VCPO's factor on the learning rate of one step."""
    share = min(rho / rho_base, 1.0)
    return share**0.5 if rule == "sqrt" else share
