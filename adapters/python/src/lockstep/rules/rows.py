"""What is known of T positions, and what a rule makes of it. Knows nothing of logits or gradients.

Every correction is a choice of ``(w, c)``: for each position

    loss     = -A [ sg(w) log p_a - sum_v sg(c_v) log p_v ]
    dloss/dz = -(A / T) [ w e_a - c - (w - sum_v c_v) p ]
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, Protocol

from ..errors import InvalidRule, MissingScores, MissingSupport, NotANumber
from .array import Array, segment_sum, xp

TAIL_FLOOR = 1e-6
"""Smallest mass a tail is taken to have; below it a ratio of tails is rounding."""

LOG_CLAMP = 20.0
"""verl's bound on a log ratio before it is exponentiated."""

Ratio = Literal["full", "lag", "numeric"]
"""p / q, p / p_s, or p_s / q."""


@dataclass(frozen=True)
class Terms:
    """Log-probs of one of the three distributions."""

    entries: Array
    """Of the known entries, ``[N]``."""
    drawn: Array
    """Of the drawn tokens, ``[T]``."""
    rest: Array | None = None
    """Log mass off the known entries, ``[T]``, ``-inf`` in exact rows; None when every row is exact."""


@dataclass(frozen=True)
class Rows:
    """T positions with N known entries."""

    row: Array
    """Row of each entry, ``[N]``."""
    q: Terms
    theta: Terms
    scores: Terms | None
    """p_s, where it was computed."""
    advantages: Array
    """``[T]``."""
    sequence: Array
    """Sequence of each position, ``[T]``, from 0."""
    versions: Array | None = None
    """Optimiser steps behind the weights that drew each token, ``[T]``; only some approximations look."""

    @property
    def s(self) -> Terms:
        """p_s.

        Raises:
            MissingScores: nobody scored these positions at the sampler's weights.
        """
        if self.scores is None:
            raise MissingScores(
                f"this correction needs log p_s of {len(self.advantages)} positions and was given none: "
                "score the batch at the sampler's version (SnapshotStore), or use a rule on the full ratio"
            )
        return self.scores

    @property
    def sequences(self) -> int:
        """Number of sequences."""
        return int(self.sequence.max()) + 1 if len(self.sequence) else 0

    def log_ratio(self, ratio: Ratio) -> Array:
        """Log ratio of the drawn tokens, ``[T]``; never NaN.

        Raises:
            NotANumber: a ratio that is not finite.
        """
        if ratio == "lag":
            return finite(self.theta.drawn - self.s.drawn, "lag")
        if ratio == "numeric":
            return finite(self.s.drawn - self.q.drawn, "numeric discrepancy")
        return finite(self.theta.drawn - self.q.drawn, "log ratio")

    def per_sequence(self, values: Array) -> Array:
        """Sums over the positions of each sequence."""
        return segment_sum(values, self.sequence, self.sequences)

    def negative(self) -> Array:
        """Where the advantage is below 0."""
        return self.advantages < 0

    def check_entries(self) -> None:
        """Every entry's ratio is finite.

        Raises:
            MissingSupport: a correction over the support without any entries.
        """
        if self.q.entries is None:
            raise MissingSupport(f"this correction needs the supports of {len(self.advantages)} positions")
        finite(self.theta.entries - self.s.entries, "lag of a support entry")


def finite(values: Array, name: str) -> Array:
    """The values, once they are all finite.

    Raises:
        NotANumber: naming the first that is not.
    """
    ok = xp(values).isfinite(values)
    if bool(ok.all()):
        return values
    at = int((~ok).reshape(-1).nonzero()[0][0])
    raise NotANumber(f"{name} {float(values.reshape(-1)[at])} at index {at} of {len(values)} is not finite")


@dataclass(frozen=True)
class LagClip:
    """Bounds of the lag ratio, inclusive."""

    low: float = 0.0
    high: float = 5.0

    def __post_init__(self) -> None:
        if not 0 <= self.low <= 1 <= self.high or self.high != self.high:
            raise InvalidRule(f"lag clip [{self.low}, {self.high}] is not an interval with 0 <= low <= 1 <= high")

    def of_log(self, log_ratio: Array) -> Array:
        """``clip(exp(x), low, high)``, without overflow."""
        m = xp(log_ratio)
        top = math.log(self.high) if math.isfinite(self.high) else 700.0
        return m.clip(m.exp(m.clip(log_ratio, None, top)), self.low, self.high)


@dataclass(frozen=True)
class TailTerm:
    """Centring coefficients off the known entries: ``c_v = scale p_s,v clip(p_v / p_s,v)``."""

    scale: Array
    """``[T]``; 0 where a row has no tail."""
    clip: LagClip


@dataclass(frozen=True)
class Correction:
    """The coefficients of T positions."""

    w: Array
    """``[T]``."""
    c: Array | None = None
    """``[N]``; None where nothing is centred."""
    tail: TailTerm | None = None
    value: Array | None = None
    """A surrogate's own value in place of ``-A w log p_a``, ``[T]``; its gradient is that of ``(w, c)``."""
    info: dict[str, Array] = field(default_factory=dict)
    """What else a rule says of each token: clipped, kept."""

    def checked(self) -> Correction:
        """Itself, once every coefficient is finite."""
        finite(self.w, "weight of the drawn token")
        if self.c is not None:
            finite(self.c, "centring coefficient")
        return self


class Rule(Protocol):
    """A correction."""

    @property
    def local(self) -> bool:
        """Whether a position's coefficients depend on that position alone."""
        ...

    @property
    def needs_scores(self) -> bool:
        """Whether log p_s is needed."""
        ...

    def weigh(self, rows: Rows) -> Correction:
        """``(w, c)``."""
        ...
