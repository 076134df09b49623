"""Score centring with a weight of the full ratio, as published (arXiv 2609.20807)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ..errors import InvalidRule, SupportMass
from .array import Array, segment_sum, xp
from .rows import TAIL_FLOOR, Correction, Rows, finite


@dataclass(frozen=True)
class ScoreCentring:
    """``w = f(p_a / q_a)``, ``c_v = q_v f(p_v / q_v)``; f is 1, ``min(r, cap)``, ``r 1[low <= r <= high]``, or IPO's mask."""

    weight: Literal["one", "truncated", "masked", "ipo"] = "one"
    cap: float = 2.0
    low: float = 0.5
    high: float = 5.0
    eps: float = 0.3

    def __post_init__(self) -> None:
        if not self.cap > 0:
            raise InvalidRule(f"cap {self.cap} is not a number > 0")
        if not 0 <= self.low <= self.high:
            raise InvalidRule(f"band [{self.low}, {self.high}] is not an interval 0 <= low <= high")

    @property
    def local(self) -> bool:
        """Depends on its own position alone."""
        return True

    @property
    def needs_scores(self) -> bool:
        """The full ratio alone."""
        return False

    def _passes(self, log_p: Array, log_q: Array) -> Array:
        m = xp(log_p)
        ratio = m.exp(log_p - log_q)
        if self.weight == "masked":
            return (ratio >= self.low) & (ratio <= self.high)
        if self.weight == "ipo":
            return m.abs(m.exp(log_p) - m.exp(log_q)) <= self.eps
        return ratio == ratio

    def _centred(self, log_p: Array, log_q: Array) -> Array:
        """``q f(p / q)`` without a division."""
        m = xp(log_p)
        p, q = m.exp(log_p), m.exp(log_q)
        if self.weight == "one":
            return q
        if self.weight in ("truncated", "ipo"):
            p = m.minimum(p, self.cap * q)
        return m.where(self._passes(log_p, log_q), p, p * 0)

    def weigh(self, rows: Rows) -> Correction:
        """``(w, c)``; an unknown tail is modelled proportional to p."""
        m = xp(rows.advantages)
        log_ratio = rows.log_ratio("full")
        finite(rows.theta.entries - rows.q.entries, "log ratio of a support entry")
        ratio = m.exp(log_ratio)
        if self.weight == "one":
            w = m.ones_like(ratio)
        else:
            bounded = m.clip(ratio, None, self.cap) if self.weight in ("truncated", "ipo") else ratio
            w = m.where(self._passes(rows.theta.drawn, rows.q.drawn), bounded, bounded * 0)
        c = self._centred(rows.theta.entries, rows.q.entries)
        if rows.q.rest is not None:
            c = c - self._alpha(rows)[rows.row] * m.exp(rows.theta.entries)
        return Correction(w, c, info={"ratio": ratio, "masked": w == 0}).checked()

    def _alpha(self, rows: Rows) -> Array:
        """``rho f(1 / rho)`` with floored masses; 0 where a row has no tail."""
        m = xp(rows.advantages)
        if self.weight == "ipo":
            raise InvalidRule("ipo is not defined with a modelled tail: its mask needs the probability of each entry")
        mass = segment_sum(m.exp(rows.theta.entries), rows.row, len(rows.advantages))
        if bool((mass > 1 + 1e-4).any()):
            raise SupportMass(f"the trainer's head mass {float(mass.max())} exceeds 1 by more than 1e-4")
        has = m.isfinite(rows.q.rest)
        floor = math.log(TAIL_FLOOR)
        q, p = (m.clip(m.where(has, rest, 0.0), floor, None) for rest in (rows.q.rest, rows.theta.rest))
        return m.where(has, self._centred(p, q) / m.exp(p), q * 0)
