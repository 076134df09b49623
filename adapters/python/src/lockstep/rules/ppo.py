"""PPO and what is built on it: dual clip, CISPO, GSPO, decoupled PPO, M2PO, OPSM."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ..errors import InvalidRule, MissingSupport
from .array import Array, counts, like, to_numpy, xp
from .dlc import PpoClip
from .importance import clamped_exp
from .rows import Correction, Ratio, Rows


def surrogate(rows: Rows, ratio: Array, clip: PpoClip, dual: float | None) -> Correction:
    """``max(-rA, -clip(r) A)``, bounded by ``-dual A`` where A < 0. w is the ratio where the surrogate follows it."""
    m, a = xp(ratio), rows.advantages
    free, bounded = -ratio * a, -clip.clip(ratio) * a
    clipped = bounded > free
    value = m.maximum(free, bounded)
    dual_clipped = value > value + 1
    if dual is not None:
        ceiling = m.where(a < 0, -dual * a, a * 0 + math.inf)
        dual_clipped = value > ceiling
        value = m.minimum(value, ceiling)
    w = m.where(clipped | dual_clipped, ratio * 0, ratio)
    info = {"ratio": ratio, "clipped": clipped, "dual_clipped": dual_clipped}
    return Correction(w, value=value, info=info)


@dataclass(frozen=True)
class Ppo:
    """PPO's clip on a token's ratio."""

    clip: PpoClip = field(default_factory=PpoClip)
    dual: float | None = None
    ratio: Ratio = "lag"

    def __post_init__(self) -> None:
        if self.dual is not None and not self.dual > 1:
            raise InvalidRule(f"dual clip {self.dual} is not a number > 1")

    @property
    def local(self) -> bool:
        """Depends on its own position alone."""
        return True

    @property
    def needs_scores(self) -> bool:
        """Only the lag and the numeric term do."""
        return self.ratio != "full"

    def weigh(self, rows: Rows) -> Correction:
        """The surrogate's value and the weight of its gradient."""
        return surrogate(rows, clamped_exp(rows.log_ratio(self.ratio)), self.clip, self.dual)


@dataclass(frozen=True)
class Cispo:
    """``-sg(clip(r)) A log p``: the ratio is bounded, the gradient is not cut. ``low >= 1`` drops the floor."""

    clip: PpoClip = field(default_factory=lambda: PpoClip(1.0, 0.28))
    ratio: Ratio = "full"

    @property
    def local(self) -> bool:
        """Depends on its own position alone."""
        return True

    @property
    def needs_scores(self) -> bool:
        """Only the lag and the numeric term do."""
        return self.ratio != "full"

    def weigh(self, rows: Rows) -> Correction:
        """The bounded ratio."""
        r = clamped_exp(rows.log_ratio(self.ratio))
        w = self.clip.clip(r)
        return Correction(w, info={"ratio": r, "clipped": w != r})


def mean_log_ratio(rows: Rows, ratio: Ratio) -> Array:
    """Mean of the tokens' log ratios by sequence."""
    length = counts(rows.sequence, rows.sequences)
    return rows.per_sequence(rows.log_ratio(ratio)) / xp(length).clip(length, 1, None)


@dataclass(frozen=True)
class Gspo:
    """PPO on the geometric mean ratio of the sequence. Its reduction is seq-mean-token-mean."""

    clip: PpoClip = field(default_factory=lambda: PpoClip(3e-4, 4e-4))
    ratio: Ratio = "lag"

    @property
    def local(self) -> bool:
        """A sequence is not a position."""
        return False

    @property
    def needs_scores(self) -> bool:
        """Only the lag and the numeric term do."""
        return self.ratio != "full"

    def weigh(self, rows: Rows) -> Correction:
        """Every token carries its sequence's ratio; the log is bounded at 10."""
        log_ratio = mean_log_ratio(rows, self.ratio)
        s = xp(log_ratio).exp(xp(log_ratio).clip(log_ratio, None, 10.0))
        correction = surrogate(rows, s[rows.sequence], self.clip, None)
        correction.info["sequence_ratio"] = s
        return correction


@dataclass(frozen=True)
class Decoupled:
    """AReaL's decoupled PPO: ``min(prox / q, cap) PPO(p / prox)``; the proximal policy is p_s or an approximation of it."""

    clip: PpoClip = field(default_factory=PpoClip)
    cap: float = math.inf
    dual: float | None = None
    proximal: Literal["recomputed", "loglinear", "linear", "rollout"] = "recomputed"
    version: int = 0
    """Steps behind the current weights; the approximations need it."""

    @property
    def local(self) -> bool:
        """Depends on its own position alone."""
        return True

    @property
    def needs_scores(self) -> bool:
        """Only the recomputed proximal policy does."""
        return self.proximal == "recomputed"

    def alpha(self, versions: Array) -> Array:
        """How far the proximal policy is from the sampler's weights: ``(v - 1 - v_q) / (v - v_q)``, 0 when not older."""
        m = xp(versions)
        behind = (self.version - versions) * 1.0
        older = (versions >= 0) & (behind > 0)
        return m.where(older, m.clip((behind - 1) / m.where(older, behind, behind * 0 + 1), 0.0, 1.0), behind * 0)

    def log_proximal(self, rows: Rows) -> Array:
        """log p of the proximal policy, ``[T]``."""
        if self.proximal == "recomputed":
            return rows.s.drawn
        if self.proximal == "rollout":
            return rows.q.drawn
        if rows.versions is None:
            raise MissingSupport(f"proximal {self.proximal!r} needs the version of every token and was given none")
        alpha, m = self.alpha(rows.versions), xp(rows.q.drawn)
        if self.proximal == "loglinear":
            return rows.q.drawn + alpha * (rows.theta.drawn - rows.q.drawn)
        return m.log((1 - alpha) * m.exp(rows.q.drawn) + alpha * m.exp(rows.theta.drawn) + 1e-10)

    def weigh(self, rows: Rows) -> Correction:
        """PPO against the proximal policy, times the behaviour weight."""
        prox, m = self.log_proximal(rows), xp(rows.q.drawn)
        weight = m.clip(clamped_exp(prox - rows.q.drawn), None, self.cap)
        inner = surrogate(rows, clamped_exp(rows.theta.drawn - prox), self.clip, self.dual)
        info = {**inner.info, "prox_logp": prox, "behave_weight": weight}
        return Correction(inner.w * weight, value=None if inner.value is None else inner.value * weight, info=info)


TIE = 1e-12


def _smallest(squares: Any, passes: Any) -> int:
    """How many of the ascending squares can stay until their mean no longer passes."""
    means = np.cumsum(squares) / np.arange(1, len(squares) + 1)
    failing = np.flatnonzero(~passes(means))
    return int(failing[0]) if len(failing) else len(squares)


@dataclass(frozen=True)
class M2po:
    """Masks the largest squared log ratios until their mean is below the threshold.

    ``areal`` counts every token and keeps at least one; ``harmful`` counts and drops only tokens that would gain from
    being far off, which is a choice by outcome.
    """

    form: Literal["areal", "harmful"] = "areal"
    threshold: float = 0.04
    ratio: Ratio = "full"

    @property
    def local(self) -> bool:
        """The whole batch decides."""
        return False

    @property
    def needs_scores(self) -> bool:
        """Only the lag and the numeric term do."""
        return self.ratio != "full"

    def keep(self, rows: Rows) -> Any:
        """Mask of the tokens, numpy ``[T]``."""
        squares = _squares(rows, self.ratio)
        keep = np.zeros(len(squares), dtype=bool)
        counted = np.arange(len(squares)) if self.form == "areal" else np.flatnonzero(harmful(rows, self.ratio))
        order = counted[np.argsort(squares[counted], kind="stable")]
        if self.form == "areal":
            kept = max(1, _smallest(squares[order], lambda mean: mean < self.threshold))
        else:
            kept = _smallest(squares[order], lambda mean: mean <= self.threshold)
            keep[~harmful(rows, self.ratio)] = True
        keep[order[:kept]] = True
        return keep

    def weigh(self, rows: Rows) -> Correction:
        """``-M r A``, value and gradient."""
        r = clamped_exp(rows.log_ratio(self.ratio))
        keep = like(self.keep(rows), r)
        w = xp(r).where(keep, r, r * 0)
        return Correction(w, value=-w * rows.advantages, info={"ratio": r, "keep": keep})


def _squares(rows: Rows, ratio: Ratio) -> Any:
    return to_numpy(rows.log_ratio(ratio)).astype(np.float64) ** 2


def harmful(rows: Rows, ratio: Ratio = "full") -> Any:
    """Tokens with A > 0 and r > 1, or A < 0 and r < 1; numpy ``[T]``."""
    return to_numpy(rows.advantages) * to_numpy(rows.log_ratio(ratio)) > 0


def m2po_official(
    rows: Rows, ratio: Ratio = "full", threshold: float = 0.04, floor: tuple[float, float] = (0.3, 0.5)
) -> PpoClip:
    """The official code: PPO bounds from a water-filling threshold on the harmful tokens, floored."""
    squares = _squares(rows, ratio)
    d = np.sort(squares[harmful(rows, ratio)])
    n = len(d)
    if n == 0 or d.sum() / n <= threshold + TIE:
        return PpoClip(1.0, 1e5)
    passes = (d - TIE) * (n - np.arange(n) - 1) + np.cumsum(d) >= threshold * n - TIE
    k = int(np.argmax(passes)) if passes.any() else n
    tau = 0.0 if k == 0 else math.sqrt(max(d[k - 1] - TIE, 0.0))
    return PpoClip(max(-math.expm1(-tau), floor[0]), max(math.expm1(tau), floor[1]))


@dataclass(frozen=True)
class Opsm:
    """DeepSeek-V3.2's off-policy sequence mask: drops answers with A < 0 and ``mean(log q - log p) > delta``.

    Chooses by outcome: opt in knowingly.
    """

    delta: float
    ratio: Ratio = "full"

    @property
    def local(self) -> bool:
        """A sequence is not a position."""
        return False

    @property
    def needs_scores(self) -> bool:
        """Only the lag and the numeric term do."""
        return self.ratio != "full"

    def keep(self, rows: Rows) -> Array:
        """Mask of the sequences."""
        total = rows.per_sequence(rows.advantages * 1.0)
        return ~((total < 0) & (-mean_log_ratio(rows, self.ratio) > self.delta))

    def weigh(self, rows: Rows) -> Correction:
        """1 where kept."""
        keep = self.keep(rows)[rows.sequence]
        return Correction(keep * (rows.advantages * 0 + 1), info={"keep": keep})
