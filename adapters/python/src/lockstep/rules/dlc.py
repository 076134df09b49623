"""DLC in its forms: the numeric term is centred, the lag ratio clipped against the sampler's weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ..errors import InvalidRule
from .array import Array, xp
from .rows import TAIL_FLOOR, Correction, LagClip, Rows, TailTerm, finite

Centring = Literal["lag_weighted", "numeric_only", "off"]
TailModel = Literal["p_s", "collapsed"]


@dataclass(frozen=True)
class PpoClip:
    """``clip(r, 1 - low, 1 + high)``."""

    low: float = 0.2
    high: float = 0.2

    def __post_init__(self) -> None:
        if not all(math.isfinite(width) and width >= 0 for width in (self.low, self.high)):
            raise InvalidRule(f"ppo clip (1 - {self.low}, 1 + {self.high}): a half-width is not a finite number >= 0")

    def clip(self, ratio: Array) -> Array:
        """The bounded ratio."""
        return xp(ratio).clip(ratio, 1 - self.low, 1 + self.high)

    def active(self, ratio: Array, negative: Array) -> Array:
        """Where the surrogate has a gradient: below the ceiling for A >= 0, above the floor for A < 0."""
        return xp(ratio).where(negative, ratio >= 1 - self.low, ratio <= 1 + self.high)


@dataclass(frozen=True)
class LagMask:
    """Ratios outside the interval count 0; bounds inclusive."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high:
            raise InvalidRule(f"lag mask [{self.low}, {self.high}] is not an interval 0 <= low <= high")


def bounded(bound: LagClip | LagMask | PpoClip, log_ratio: Array, negative: Array) -> Array:
    """The ratio as its bound leaves it."""
    if isinstance(bound, LagClip):
        return bound.of_log(log_ratio)
    m = xp(log_ratio)
    ratio = m.exp(log_ratio)
    if isinstance(bound, LagMask):
        passes = (ratio >= bound.low) & (ratio <= bound.high)
    else:
        passes = bound.active(ratio, negative)
    return m.where(passes, ratio, ratio * 0)


@dataclass(frozen=True)
class Dlc:
    """``w = min(p_s / q, C) b(p / p_s)``, centred by ``c_v = q_v w_v``.

    The default is form A: no numeric weight, ``b = clip(., 0, 2)``, the unknown tail modelled on p_s.
    """

    lag: LagClip | LagMask | PpoClip = LagClip()
    centring: Centring = "lag_weighted"
    numeric_cap: float | None = None
    tail: TailModel = "p_s"

    def __post_init__(self) -> None:
        if self.numeric_cap is not None:
            if not (math.isfinite(self.numeric_cap) and self.numeric_cap >= 1):
                raise InvalidRule(f"numeric cap {self.numeric_cap} is not a finite number >= 1")
            if self.centring == "numeric_only":
                raise InvalidRule(
                    f"centring numeric_only is not defined with a numeric weight (cap {self.numeric_cap})"
                )
        if self.tail == "p_s" and self.centring != "off" and not isinstance(self.lag, LagClip):
            raise InvalidRule(
                f"tail on p_s is not defined for {type(self.lag).__name__}: only a clipped ratio has a term off the known entries"
            )

    @property
    def local(self) -> bool:
        """Depends on its own position alone."""
        return True

    @property
    def needs_scores(self) -> bool:
        """The lag is taken against p_s."""
        return True

    def _numeric(self, log_ratio: Array) -> Array:
        m = xp(log_ratio)
        if self.numeric_cap is None:
            return m.ones_like(log_ratio)
        return m.exp(m.clip(log_ratio, None, math.log(self.numeric_cap)))

    def _mass(self, q: Array, p_s: Array) -> Array:
        if self.centring == "off":
            return q * 0
        if self.centring == "numeric_only":
            return q - p_s
        return q if self.numeric_cap is None else xp(q).minimum(p_s, self.numeric_cap * q)

    def weigh(self, rows: Rows) -> Correction:
        """``(w, c)`` of every position."""
        m = xp(rows.advantages)
        negative = rows.negative()
        lag, numeric = rows.log_ratio("lag"), rows.log_ratio("numeric")
        rows.check_entries()
        b = bounded(self.lag, lag, negative)
        w = self._numeric(numeric) * b
        log_ratio = rows.theta.entries - rows.s.entries
        c = self._mass(m.exp(rows.q.entries), m.exp(rows.s.entries)) * bounded(self.lag, log_ratio, negative[rows.row])
        info = {
            "ratio": m.exp(m.clip(lag, None, 700.0)),
            "clipped": finite(b, "lag weight") != m.exp(m.clip(lag, None, 700.0)),
        }
        value = None
        if isinstance(self.lag, PpoClip):
            ratio = m.exp(lag)
            surrogate = m.maximum(-ratio * rows.advantages, -self.lag.clip(ratio) * rows.advantages)
            value = self._numeric(numeric) * surrogate
        tail = None
        if rows.q.rest is not None and self.centring != "off":
            c, tail = self._tail(rows, c)
        return Correction(w, c, tail, value, info).checked()

    def _tail(self, rows: Rows, c: Array) -> tuple[Array, TailTerm | None]:
        m = xp(rows.advantages)
        has = m.isfinite(rows.q.rest)
        q, p_s, p = (
            m.clip(m.exp(m.where(has, rest, 0.0)), TAIL_FLOOR, None)
            for rest in (rows.q.rest, rows.s.rest, rows.theta.rest)
        )
        mass = self._mass(q, p_s)
        if self.tail == "p_s":
            if not isinstance(self.lag, LagClip):
                raise InvalidRule(f"tail on p_s is not defined for {type(self.lag).__name__}")
            return c, TailTerm(m.where(has, mass / p_s, mass * 0), self.lag)
        alpha = mass / p * bounded(self.lag, m.log(p / p_s), rows.negative())
        alpha = m.where(has, alpha, alpha * 0)
        return c - alpha[rows.row] * m.exp(rows.theta.entries), None


def form_a(clip: LagClip = LagClip(), tail: TailModel = "p_s") -> Dlc:
    """Lag-weighted centring: no drift that reward did not ask for, for any q, p_s, p and clip."""
    return Dlc(clip, tail=tail)


def form_b(clip: LagClip = LagClip(), tail: TailModel = "p_s") -> Dlc:
    """``c_v = (q_v - p_s,v) w_v``: centres the numeric term alone."""
    return Dlc(clip, "numeric_only", tail=tail)


def form_e(clip: PpoClip = PpoClip()) -> Dlc:
    """PPO's clip on the lag ratio, centred with the same sign-dependent coefficient."""
    return Dlc(clip, tail="collapsed")


def form_f(clip: LagClip = LagClip(), cap: float = 2.0, tail: TailModel = "p_s") -> Dlc:
    """The numeric ratio weighs too, truncated at ``cap``."""
    return Dlc(clip, numeric_cap=cap, tail=tail)


def centred_ppo(clip: PpoClip, cap: float) -> Dlc:
    """PPO times ``min(p_s / q, cap)``, centred: score centring as SkyRL composes it."""
    return Dlc(clip, numeric_cap=cap, tail="collapsed")


@dataclass(frozen=True)
class WrongOnPurpose:
    """Looks like DLC and pushes the policy without being asked to by a reward: for checks to find, never for training."""

    lag: LagClip
    weighted: bool
    """Form D multiplies the centring by the drawn token's own weight; form C leaves it bare."""

    @property
    def local(self) -> bool:
        """Depends on its own position alone."""
        return True

    @property
    def needs_scores(self) -> bool:
        """The lag is taken against p_s."""
        return True

    def weigh(self, rows: Rows) -> Correction:
        """Form C or D."""
        w = self.lag.of_log(rows.log_ratio("lag"))
        c = xp(w).exp(rows.q.entries)
        return Correction(w, c * w[rows.row] if self.weighted else c)
