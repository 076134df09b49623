"""verl's rejections and presets: masks by statistics of the ratio. Each says what it selects by."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ..errors import InvalidRule
from .array import Array, counts, segment_max, xp
from .importance import Importance
from .kl import k3
from .ppo import Ppo
from .rows import LOG_CLAMP, Correction, Ratio, Rows, Rule

Selects = Literal["nothing", "by_token", "by_sequence", "by_length", "by_outcome"]
"""What a mask looks at. All but `nothing` change which answers train; by_length and by_outcome break the third fix."""


@dataclass(frozen=True)
class Criterion:
    """``low <= statistic <= high``. Trap: k1 is ``-log r``, so its bounds hold for q / p, not p / q."""

    statistic: Literal["k1", "k2", "k3"]
    over: Literal["token", "seq_sum", "seq_mean", "seq_max"]
    low: float
    high: float

    @staticmethod
    def parse(option: str, threshold: str) -> Criterion:
        """verl's option and threshold: ``seq_sum_k1``, ``0.5_2.0``; a single u is ``[1/u, u]`` for k1."""
        over, _, statistic = option.rpartition("_")
        known = over in ("token", "seq_sum", "seq_mean", "seq_max") and statistic in ("k1", "k2", "k3")
        if not known or (statistic == "k1" and over == "seq_max"):
            raise InvalidRule(f"rejection option {option!r} is not known")
        try:
            if statistic != "k1":
                return Criterion(statistic, over, 0.0, float(threshold))  # type: ignore[arg-type]
            low, split, high = threshold.partition("_")
            bounds = (float(low), float(high)) if split else (1 / float(low), float(low))
        except ValueError as error:
            raise InvalidRule(f'threshold {threshold!r} is neither a number nor "low_high"') from error
        if not 0 <= bounds[0] <= bounds[1]:
            raise InvalidRule(f"band [{bounds[0]}, {bounds[1]}] is not an interval 0 <= low <= high")
        return Criterion("k1", over, *bounds)  # type: ignore[arg-type]

    @staticmethod
    def parse_all(options: str, thresholds: str) -> tuple[Criterion, ...]:
        """Several, separated by commas; all must hold."""
        names, bounds = options.split(","), thresholds.split(",")
        if len(names) != len(bounds):
            raise InvalidRule(f"{len(names)} rejection options, {len(bounds)} thresholds")
        return tuple(Criterion.parse(name.strip(), bound.strip()) for name, bound in zip(names, bounds))

    @property
    def selects(self) -> Selects:
        """What the mask looks at: a sum over a sequence grows with its length."""
        return "by_token" if self.over == "token" else "by_sequence" if self.over == "seq_mean" else "by_length"

    def of_log(self, log_ratio: Array) -> Array:
        """The statistic of each token."""
        x = xp(log_ratio).clip(log_ratio, -LOG_CLAMP, LOG_CLAMP)
        return -x if self.statistic == "k1" else x * x / 2 if self.statistic == "k2" else k3(x)

    def of_sequences(self, rows: Rows, ratio: Ratio) -> Array:
        """The statistic of each sequence."""
        values = self.of_log(rows.log_ratio(ratio))
        if self.over == "seq_max":
            return segment_max(values, rows.sequence, rows.sequences)
        sums = rows.per_sequence(values)
        if self.over == "seq_sum":
            return sums
        length = counts(rows.sequence, rows.sequences)
        return sums / xp(length).clip(length, 1, None)

    def keeps(self, rows: Rows, ratio: Ratio) -> Array:
        """Mask of the tokens, ``[T]``."""
        values = (
            self.of_log(rows.log_ratio(ratio))
            if self.over == "token"
            else self.of_sequences(rows, ratio)[rows.sequence]
        )
        if self.statistic != "k1":
            return values <= self.high
        low = math.log(self.low) if self.low > 0 else -math.inf
        return (values >= low) & (values <= math.log(self.high))


@dataclass(frozen=True)
class Rejection:
    """A rule within a mask. The mask edits weights alone: denominators are fixed before it."""

    rule: Rule
    criteria: tuple[Criterion, ...]
    ratio: Ratio = "full"

    @property
    def local(self) -> bool:
        """Only token criteria are."""
        return self.rule.local and all(criterion.over == "token" for criterion in self.criteria)

    @property
    def needs_scores(self) -> bool:
        """Only the lag and the numeric term do."""
        return self.ratio != "full" or self.rule.needs_scores

    def weigh(self, rows: Rows) -> Correction:
        """The rule's coefficients, 0 where rejected; ``info["keep"]`` is the mask."""
        correction = self.rule.weigh(rows)
        keep = correction.w == correction.w
        for criterion in self.criteria:
            keep = keep & criterion.keeps(rows, self.ratio)
        m, zero = xp(correction.w), correction.w * 0
        w = m.where(keep, correction.w, zero)
        value = None if correction.value is None else m.where(keep, correction.value, zero)
        return Correction(
            w, correction.c, correction.tail, value, {**correction.info, "keep": keep, "weight": correction.w}
        )


_NUMBERS = {"seq_sum": ("seq_sum_k1", "0.5_2.0"), "geo": ("seq_mean_k1", "0.999_1.001"), "k3": ("seq_mean_k3", "0.01")}

_PRESETS: dict[str, tuple[str, str | None, str | None]] = {
    "decoupled_token_is": ("decoupled", "token", None),
    "decoupled_seq_is": ("decoupled", "sequence", None),
    "default": ("decoupled", "sequence", None),
    "decoupled_seq_is_rs": ("decoupled", "sequence", "seq_sum"),
    "decoupled_geo_rs": ("decoupled", None, "geo"),
    "decoupled_geo_rs_seq_tis": ("decoupled", "sequence", "geo"),
    "decoupled_geo_rs_token_tis": ("decoupled", "token", "geo"),
    "decoupled_k3_rs": ("decoupled", None, "k3"),
    "decoupled_k3_rs_seq_tis": ("decoupled", "sequence", "k3"),
    "decoupled_k3_rs_token_tis": ("decoupled", "token", "k3"),
    "disabled": ("decoupled", None, None),
    "bypass_ppo_clip": ("bypass_ppo", None, None),
    "bypass_ppo_clip_geo_rs": ("bypass_ppo", None, "geo"),
    "bypass_ppo_clip_k3_rs": ("bypass_ppo", None, "k3"),
    "bypass_pg_is": ("bypass_pg", "sequence", None),
    "bypass_pg_geo_rs": ("bypass_pg", None, "geo"),
    "bypass_pg_geo_rs_seq_tis": ("bypass_pg", "sequence", "geo"),
    "bypass_pg_geo_rs_token_tis": ("bypass_pg", "token", "geo"),
}

VERL_PRESETS = tuple(_PRESETS)


@dataclass(frozen=True)
class Times:
    """A surrogate times the weight of another rule."""

    rule: Rule
    weight: Rule

    @property
    def local(self) -> bool:
        """When both are."""
        return self.rule.local and self.weight.local

    @property
    def needs_scores(self) -> bool:
        """When one does."""
        return self.rule.needs_scores or self.weight.needs_scores

    def weigh(self, rows: Rows) -> Correction:
        """``w`` and the surrogate's value, weighted."""
        correction, weight = self.rule.weigh(rows), self.weight.weigh(rows).w
        value = None if correction.value is None else correction.value * weight
        return Correction(
            correction.w * weight, correction.c, correction.tail, value, {**correction.info, "weight": weight}
        )


def verl(preset: str, ppo: Ppo = Ppo(dual=3.0)) -> Rejection:
    """One of verl's recipes by name: C = 2, sums in [1/2, 2], geometric means in [0.999, 1.001], k3 below 0.01.

    Decoupled recipes hold p_s against q and leave the lag to PPO; bypass recipes take q for the old policy.
    """
    if preset not in _PRESETS:
        raise InvalidRule(f"verl has no rollout correction preset {preset!r}")
    objective, level, rejection = _PRESETS[preset]
    ratio: Ratio = "numeric" if objective == "decoupled" else "full"
    weights = Importance(None) if level is None else Importance(ratio, level, 2.0)  # type: ignore[arg-type]
    criteria = () if rejection is None else (Criterion.parse(*_NUMBERS[rejection]),)
    if objective == "decoupled":
        return Rejection(Times(Ppo(ppo.clip, ppo.dual, "lag"), weights), criteria, ratio)
    if objective == "bypass_ppo":
        return Rejection(Ppo(ppo.clip, ppo.dual, "full"), criteria, ratio)
    return Rejection(weights, criteria, ratio)
