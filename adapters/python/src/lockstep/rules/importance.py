"""Weights of the drawn tokens alone: policy gradient, importance sampling, its truncations and masks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ..errors import InvalidRule
from .array import Array, counts, segment_sum, xp
from .rows import LOG_CLAMP, Correction, Ratio, Rows

Level = Literal["token", "sequence"]


def clamped_exp(log_ratio: Array) -> Array:
    """``exp(clip(x, -20, 20))``."""
    return xp(log_ratio).exp(xp(log_ratio).clip(log_ratio, -LOG_CLAMP, LOG_CLAMP))


def raw_weights(rows: Rows, ratio: Ratio, level: Level) -> Array:
    """Ratios of tokens, or of whole sequences on each of their tokens, before any cap."""
    log_ratio = rows.log_ratio(ratio)
    return clamped_exp(log_ratio if level == "token" else rows.per_sequence(log_ratio)[rows.sequence])


@dataclass(frozen=True)
class Importance:
    """``min(r, cap)``; without a ratio the plain policy gradient."""

    ratio: Ratio | None = "full"
    level: Level = "token"
    cap: float = math.inf
    normalise: bool = False
    """Divide by the mean weight (verl's ``rollout_is_batch_normalize``)."""

    def __post_init__(self) -> None:
        if not self.cap > 0:
            raise InvalidRule(f"cap {self.cap} is not a number > 0")

    @property
    def local(self) -> bool:
        """Sequence weights are not."""
        return (self.level == "token" or self.ratio is None) and not self.normalise

    @property
    def needs_scores(self) -> bool:
        """Only the lag and the numeric term do."""
        return self.ratio in ("lag", "numeric")

    def weigh(self, rows: Rows) -> Correction:
        """The weights; nothing is centred."""
        m = xp(rows.advantages)
        if self.ratio is None:
            return Correction(m.ones_like(rows.advantages))
        raw = raw_weights(rows, self.ratio, self.level)
        w = m.clip(raw, None, self.cap) if math.isfinite(self.cap) else raw
        if self.normalise:
            w = w / self._mean(rows, w)
        return Correction(w, info={"ratio": raw, "clipped": raw > self.cap})

    def _mean(self, rows: Rows, w: Array) -> float:
        if self.level == "sequence":
            length = counts(rows.sequence, rows.sequences)
            w = (segment_sum(w, rows.sequence, rows.sequences) / xp(length).clip(length, 1, None))[length > 0]
        mean = float(w.mean())
        return mean if mean > 1e-8 else 1.0


@dataclass(frozen=True)
class IcePop:
    """``r 1[low <= r <= high]`` (IcePop, token MIS); denominators are not renormalised."""

    low: float = 0.5
    high: float = 5.0
    ratio: Ratio = "full"

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high:
            raise InvalidRule(f"band [{self.low}, {self.high}] is not an interval 0 <= low <= high")

    @property
    def local(self) -> bool:
        """Depends on its own position alone."""
        return True

    @property
    def needs_scores(self) -> bool:
        """Only the lag and the numeric term do."""
        return self.ratio != "full"

    def weigh(self, rows: Rows) -> Correction:
        """The weights; nothing is centred."""
        r = raw_weights(rows, self.ratio, "token")
        inside = (r >= self.low) & (r <= self.high)
        return Correction(xp(r).where(inside, r, r * 0), info={"ratio": r, "inside": inside})


@dataclass(frozen=True)
class TrlCorrection:
    """TRL's ``vllm_importance_sampling_correction``; its default masks whole sequences, so it drops long answers."""

    mode: Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = "sequence_mask"
    low: float | None = None
    high: float = 3.0
    ratio: Ratio = "numeric"

    @property
    def local(self) -> bool:
        """Sequence weights are not."""
        return self.mode.startswith("token")

    @property
    def needs_scores(self) -> bool:
        """Only the lag and the numeric term do."""
        return self.ratio != "full"

    def weigh(self, rows: Rows) -> Correction:
        """The weights; nothing is centred."""
        level: Level = "token" if self.mode.startswith("token") else "sequence"
        r = raw_weights(rows, self.ratio, level)
        low = self.low or 0.0
        if self.mode.endswith("truncate"):
            return Correction(xp(r).clip(r, low, self.high), info={"ratio": r})
        keep = (r >= low) & (r <= self.high)
        return Correction(xp(r).where(keep, r, r * 0), info={"ratio": r, "keep": keep})
