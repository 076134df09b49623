"""Effective sample size of raw ratios, and what it triggers. A clip never comes before it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..errors import InvalidRule, LengthMismatch, NotANumber
from .array import to_numpy

DEFAULT_HORIZON = 24
NULL_ESS_FLOOR = 0.9

EssLevel = Literal["token", "sequence", "horizon", "length_normalised"]


def effective_sample_size(log_weights: Any) -> float:
    """``(sum w)^2 / (N sum w^2)`` in log space; 0 when every weight is 0.

    Raises:
        NotANumber: a weight that is NaN or ``+inf``, or no weight at all.
    """
    l = np.asarray(to_numpy(log_weights) if hasattr(log_weights, "detach") else log_weights, dtype=np.float64)
    if len(l) == 0:
        raise NotANumber("effective sample size of 0 weights")
    if np.isnan(l).any() or np.isposinf(l).any():
        at = int(np.flatnonzero(np.isnan(l) | np.isposinf(l))[0])
        raise NotANumber(f"log weight {l[at]} at index {at} of {len(l)} is not a number below infinity")
    top = l.max()
    if np.isneginf(top):
        return 0.0
    w = np.exp(l - top)
    return float(w.sum() ** 2 / (len(w) * (w * w).sum()))


def clamped_effective_sample_size(log_weights: Any, c: float) -> float:
    """verl's: weights clamped to ``[1/c, c]`` first. Never below ``4 / (c + 1/c)^2``, so it cannot trigger."""
    w = np.exp(np.clip(np.asarray(log_weights, np.float64), -math.log(c), math.log(c)))
    w = w / (w.mean() + 1e-8)
    return float(len(w) / (w * w).sum())


def log_weights(lags: Any, sequence: Any, level: EssLevel, horizon: int = DEFAULT_HORIZON) -> Any:
    """The log weights of a level: ``l_t``; ``S_i``; ``S_i sqrt(min(1, H / T_i))``; ``S_i / sqrt(T_i)``."""
    lags, sequence = np.asarray(lags, np.float64), np.asarray(sequence, np.int64)
    if len(lags) != len(sequence):
        raise LengthMismatch("sequence", len(sequence), len(lags))
    if level == "token":
        return lags
    length = np.bincount(sequence).astype(np.float64)
    sums = np.bincount(sequence, lags)[length > 0]
    length = length[length > 0]
    if level == "sequence":
        return sums
    if level == "length_normalised":
        return sums / np.sqrt(length)
    return sums * np.sqrt(np.minimum(1.0, horizon / length))


@dataclass(frozen=True)
class EssReport:
    """ESS of raw lag ratios at the levels that are always reported."""

    token: float
    sequence: float
    horizon: float
    horizon_tokens: int
    sequences: int
    tokens: int

    @staticmethod
    def of(lags: Any, sequence: Any, horizon: int = DEFAULT_HORIZON) -> EssReport:
        """Of the tokens' lags and the sequence each belongs to."""
        if hasattr(lags, "detach"):
            lags, sequence = to_numpy(lags), to_numpy(sequence)

        def at(level: EssLevel) -> float:
            return effective_sample_size(log_weights(lags, sequence, level, horizon))

        return EssReport(at("token"), at("sequence"), at("horizon"), horizon, len(np.unique(sequence)), len(lags))


@dataclass(frozen=True)
class Trigger:
    """Re-synchronise when the watched ESS falls strictly below the threshold."""

    level: Literal["token", "sequence", "horizon"] = "horizon"
    threshold: float = 0.5
    horizon: int = DEFAULT_HORIZON

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise InvalidRule(f"threshold {self.threshold} is not in (0, 1]")

    def watched(self, report: EssReport) -> float:
        """The ESS it looks at."""
        return {"token": report.token, "sequence": report.sequence, "horizon": report.horizon}[self.level]

    def decide(self, report: EssReport, null: EssReport | None = None) -> bool:
        """Whether the sampler is to get new weights.

        Raises:
            InvalidRule: the null ESS (two scorings at equal versions) is below 0.9: noise alone would trigger this level.
        """
        if null is not None and self.watched(null) < NULL_ESS_FLOOR:
            raise InvalidRule(
                f"null ess {self.watched(null)} at level {self.level} is below {NULL_ESS_FLOOR}: noise alone would trigger it"
            )
        return self.watched(report) < self.threshold


def sequence_index(lengths: Sequence[int]) -> Any:
    """Sequence of each token, for answers one after the other."""
    return np.repeat(np.arange(len(lengths)), lengths)
