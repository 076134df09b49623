"""The distribution each token was really drawn from, as ragged columns. Knows nothing of trainers.

Row ``t`` owns the entries ``offsets[t]:offsets[t + 1]``. A row without entries is a singleton: the token was the only
choice. Entries whose log-prob is not known stand last in their row with ``-inf``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import (
    DuplicateId,
    EmptySupport,
    InvalidTemperature,
    LengthMismatch,
    NotALogProb,
    OutsideVocabulary,
    SampledOutside,
    SupportError,
    SupportMass,
    WrongDtype,
)

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.integer[Any]]

MASS_TOLERANCE = 1e-4
"""Known mass and rest add up to 1 within this; the wire carries f32."""
LOG_PROB_RTOL, LOG_PROB_ATOL = 1e-4, 1e-5


@dataclass(frozen=True)
class Rest:
    """What only partly known rows need, ``[T]`` each."""

    vocabulary: Ints
    """Size of the vocabulary where q is untruncated, 0 where the listed ids are the whole support."""
    log_q_sampled: Floats
    """log q of the drawn token."""
    log_rest: Floats
    """Log mass of the entries that are not known; ``-inf`` where there are none."""


@dataclass(frozen=True)
class Behavior:
    """q of T tokens with N listed entries."""

    tokens: Ints
    """The drawn tokens, ``[T]``."""
    offsets: Ints
    """Where each row's entries begin, ``[T + 1]``."""
    ids: Ints
    """Kept ids, or heads, ``[N]``."""
    log_q: Floats
    """log q in nats, ``[N]``; ``-inf`` where it is not known."""
    rest: Rest | None = None
    """Absent when every row is exact."""
    temperature: float | None = None
    """The divisor of the sampler's logits, where it is recorded."""

    def __len__(self) -> int:
        return len(self.tokens)

    @staticmethod
    def of_rows(
        tokens: Sequence[int],
        rows: Sequence[tuple[Sequence[int], Sequence[float]]],
        temperature: float | None = None,
    ) -> Behavior:
        """Exact supports: for each token its kept ids and their log-probs.

        >>> Behavior.of_rows([7], [([7, 9], [-0.5, -0.932752])]).support(0)[0].tolist()
        [7, 9]
        """
        if len(tokens) != len(rows):
            raise LengthMismatch("rows of supports", len(rows), len(tokens))
        for position, (token, (ids, log_q)) in enumerate(zip(tokens, rows)):
            if len(ids) == 0:
                raise EmptySupport(f"at position {position}: support is empty, yet token {token} was drawn from it")
            if len(ids) != len(log_q):
                raise LengthMismatch(f"log_q of position {position}", len(log_q), len(ids))
        offsets = np.concatenate([[0], np.cumsum([len(ids) for ids, _ in rows], dtype=np.int64)])
        flat_ids = np.array([i for ids, _ in rows for i in ids], dtype=np.int64)
        flat_q = np.array([q for _, log_q in rows for q in log_q], dtype=np.float64)
        behavior = Behavior(np.asarray(tokens, dtype=np.int64), offsets, flat_ids, flat_q, None, temperature)
        return behavior.check()

    @staticmethod
    def concatenate(parts: Sequence[Behavior]) -> Behavior:
        """Runs of tokens one after the other."""
        if len(parts) == 1:
            return parts[0]
        base = np.cumsum([0] + [int(part.offsets[-1]) for part in parts[:-1]])
        offsets = [parts[0].offsets[:1].astype(np.int64)]
        offsets += [part.offsets[1:].astype(np.int64) + shift for part, shift in zip(parts, base)]
        rest = None
        if any(part.rest is not None for part in parts):
            rests = [part.with_rest() for part in parts]
            rest = Rest(
                np.concatenate([r.vocabulary for r in rests]),
                np.concatenate([r.log_q_sampled for r in rests]),
                np.concatenate([r.log_rest for r in rests]),
            )
        temperatures = {part.temperature for part in parts}
        if len(temperatures) > 1:
            raise InvalidTemperature(f"runs of several temperatures {sorted(map(str, temperatures))} in one behaviour")
        return Behavior(
            np.concatenate([part.tokens for part in parts]),
            np.concatenate(offsets),
            np.concatenate([part.ids for part in parts]),
            np.concatenate([part.log_q for part in parts]),
            rest,
            temperatures.pop(),
        )

    def with_rest(self) -> Rest:
        """The rest columns, written out where every row is exact."""
        if self.rest is not None:
            return self.rest
        return Rest(
            np.zeros(len(self), np.uint32),
            self.log_q_drawn.astype(self.log_q.dtype),
            np.full(len(self), -np.inf, self.log_q.dtype),
        )

    @cached_property
    def row(self) -> Ints:
        """Row of each entry, ``[N]``."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Listed entries of each row, ``[T]``."""
        offsets = self.offsets.astype(np.int64)
        return np.asarray(offsets[1:] - offsets[:-1], dtype=np.int64)

    @cached_property
    def drawn(self) -> Ints:
        """Entry of each row's drawn token, ``[T]``; -1 where it is not listed."""
        at = np.full(len(self), -1, dtype=np.int64)
        hits = np.flatnonzero(self.ids == self.tokens[self.row])
        at[self.row[hits]] = hits
        return at

    @cached_property
    def single(self) -> NDArray[np.bool_]:
        """Rows with one choice alone, ``[T]``."""
        empty = np.asarray(self.lengths == 0)
        return empty if self.rest is None else np.asarray(empty & np.isneginf(self.rest.log_rest))

    @cached_property
    def whole_vocabulary(self) -> NDArray[np.bool_]:
        """Rows whose q is untruncated and known in part, ``[T]``."""
        if self.rest is None:
            return np.zeros(len(self), dtype=bool)
        return (self.rest.vocabulary > 0) & ~np.isneginf(self.rest.log_rest)

    @cached_property
    def known(self) -> NDArray[np.bool_]:
        """Entries whose log-prob is known, ``[N]``."""
        return ~np.isneginf(self.log_q)

    @cached_property
    def log_q_drawn(self) -> Floats:
        """log q of the drawn tokens, ``[T]``."""
        if self.rest is not None:
            return np.where(self.single, 0.0, self.rest.log_q_sampled).astype(np.float64)
        out = np.zeros(len(self), dtype=np.float64)
        listed = ~self.single
        out[listed] = self.log_q[self.drawn[listed]]
        return out

    def select(self, rows: Any) -> Behavior:
        """The rows at these positions, in this order."""
        rows = np.asarray(rows, dtype=np.int64)
        lengths = self.lengths[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        first = self.offsets[:-1].astype(np.int64)[rows]
        entries = np.repeat(first - offsets[:-1], lengths) + np.arange(int(offsets[-1]))
        rest = self.rest
        if rest is not None:
            rest = Rest(rest.vocabulary[rows], rest.log_q_sampled[rows], rest.log_rest[rows])
            if np.isneginf(rest.log_rest).all():
                rest = None
        return Behavior(self.tokens[rows], offsets, self.ids[entries], self.log_q[entries], rest, self.temperature)

    def entries_of(self, rows: Any) -> Ints:
        """Where the entries of these rows stand, in the order of the rows."""
        rows = np.asarray(rows, dtype=np.int64)
        lengths = self.lengths[rows]
        begin = np.cumsum(lengths) - lengths
        first = self.offsets[:-1].astype(np.int64)[rows]
        return np.asarray(np.repeat(first - begin, lengths) + np.arange(int(lengths.sum())))

    def support(self, position: int) -> tuple[Ints, Floats]:
        """Ids and log-probs of one row."""
        entries = slice(int(self.offsets[position]), int(self.offsets[position + 1]))
        if self.single[position]:
            return self.tokens[position : position + 1], np.zeros(1, self.log_q.dtype)
        return self.ids[entries], self.log_q[entries]

    def check(self) -> Behavior:
        """Refuses what contradicts itself, and names the position.

        Raises:
            LengthMismatch, WrongDtype: columns that do not fit together.
            SampledOutside, DuplicateId, NotALogProb, SupportMass, OutsideVocabulary: a row that cannot be.
        """
        _ = self._checked
        return self

    @cached_property
    def _checked(self) -> None:
        self._check_columns()
        self._check_log_probs()
        self._check_ids()
        self._check_drawn()
        self._check_mass()

    def _check_columns(self) -> None:
        for name, column in [("tokens", self.tokens), ("offsets", self.offsets), ("ids", self.ids)]:
            if not np.issubdtype(column.dtype, np.integer):
                raise WrongDtype(name, column.dtype, "an integer type")
        if not np.issubdtype(self.log_q.dtype, np.floating):
            raise WrongDtype("log_q", self.log_q.dtype, "a floating type")
        if len(self.offsets) != len(self) + 1:
            raise LengthMismatch("offsets", len(self.offsets), len(self) + 1)
        if len(self.log_q) != len(self.ids):
            raise LengthMismatch("log_q", len(self.log_q), len(self.ids))
        offsets = self.offsets.astype(np.int64)
        if offsets[0] != 0 or offsets[-1] != len(self.ids) or (np.diff(offsets) < 0).any():
            raise LengthMismatch("offsets, which ascend from 0 to the number of entries,", offsets[-1], len(self.ids))
        if self.rest is not None:
            for name in ("vocabulary", "log_q_sampled", "log_rest"):
                column = getattr(self.rest, name)
                if len(column) != len(self):
                    raise LengthMismatch(name, len(column), len(self))

    def _check_log_probs(self) -> None:
        partial = np.zeros(len(self), bool) if self.rest is None else ~np.isneginf(self.rest.log_rest)
        allowed = np.isneginf(self.log_q) & partial[self.row]
        bad = np.flatnonzero(~(np.isfinite(self.log_q) & (self.log_q <= 0)) & ~allowed)
        if len(bad):
            at = int(bad[0])
            raise NotALogProb(
                f"at position {self.row[at]}: log-prob {self.log_q[at]} of token {self.ids[at]} is not a finite number <= 0"
            )
        if self.rest is None:
            return
        for name, values in [
            ("log mass of the unknown entries", self.rest.log_rest),
            ("log q of the drawn token", self.rest.log_q_sampled),
        ]:
            wrong = np.flatnonzero(partial & ~(np.isfinite(values) & (values <= 0)))
            if len(wrong):
                raise NotALogProb(f"at position {wrong[0]}: {name} {values[wrong[0]]} is not a finite number <= 0")

    def _check_ids(self) -> None:
        order = np.lexsort((self.ids, self.row))
        ids, rows = self.ids[order], self.row[order]
        twice = np.flatnonzero((ids[1:] == ids[:-1]) & (rows[1:] == rows[:-1]))
        if len(twice):
            at = int(twice[0])
            raise DuplicateId(f"at position {rows[at]}: token {ids[at]} stands twice in the support")
        if self.rest is not None:
            size = self.rest.vocabulary[self.row]
            beyond = np.flatnonzero(self.whole_vocabulary[self.row] & (self.ids >= size))
            if len(beyond):
                at = int(beyond[0])
                raise OutsideVocabulary(
                    f"at position {self.row[at]}: token {self.ids[at]} is outside the vocabulary of {size[at]}"
                )

    def _check_drawn(self) -> None:
        missing = (self.drawn < 0) & ~self.single & ~self.whole_vocabulary
        if missing.any():
            at = int(np.flatnonzero(missing)[0])
            kept = int(self.offsets[at + 1]) - int(self.offsets[at])
            raise SampledOutside(f"at position {at}: token {self.tokens[at]} is outside its support ({kept} ids)")
        if self.rest is None:
            return
        rows = np.flatnonzero(~self.single & ~np.isneginf(self.rest.log_rest))
        own = self.rest.log_q_sampled[rows].astype(np.float64)
        at_entry = self.drawn[rows]
        listed = np.where(at_entry >= 0, self.log_q[np.maximum(at_entry, 0)] if len(self.log_q) else -np.inf, -np.inf)
        known = np.isfinite(listed)
        differs = known & (
            np.abs(own - np.where(known, listed, 0))
            > LOG_PROB_ATOL + LOG_PROB_RTOL * np.abs(np.where(known, listed, 0))
        )
        if differs.any():
            i = int(np.flatnonzero(differs)[0])
            raise SupportError(
                f"at position {rows[i]}: the drawn token has log-prob {own[i]}, but {listed[i]} as an entry of its support"
            )
        bound = self.rest.log_rest[rows].astype(np.float64)
        above = ~known & (own > bound + LOG_PROB_ATOL + LOG_PROB_RTOL * np.abs(bound))
        if above.any():
            i = int(np.flatnonzero(above)[0])
            raise SupportError(
                f"at position {rows[i]}: the drawn token lies in the tail with log-prob {own[i]}, above the tail's log mass {bound[i]}"
            )
        size = self.rest.vocabulary[rows]
        outside = (size > 0) & (self.tokens[rows] >= size)
        if outside.any():
            i = int(np.flatnonzero(outside)[0])
            raise OutsideVocabulary(
                f"at position {rows[i]}: token {self.tokens[rows[i]]} is outside the vocabulary of {size[i]}"
            )

    def _check_mass(self) -> None:
        known = np.bincount(self.row, np.exp(self.log_q.astype(np.float64)), len(self))
        rest = np.zeros(len(self)) if self.rest is None else np.exp(self.rest.log_rest.astype(np.float64))
        total = known + rest
        wrong = np.flatnonzero((np.abs(total - 1) > MASS_TOLERANCE) & ~self.single)
        if len(wrong):
            at = int(wrong[0])
            raise SupportMass(
                f"at position {at}: known mass {known[at]} and rest {rest[at]} add up to {total[at]}, not to 1 within 1e-4"
            )


@dataclass(frozen=True)
class SupportLogProbs:
    """log p on the entries of a behaviour: over the kept ids where q is truncated, over the vocabulary where it is not."""

    log_p: Any
    """``[N]``, nats."""
    log_p_sampled: Any
    """Of the drawn tokens, ``[T]``."""
    log_rest: Any
    """Log mass off the known entries, ``[T]``, ``-inf`` in exact rows; None when every row is exact."""

    def check(self, behavior: Behavior) -> SupportLogProbs:
        """Lengths against the behaviour these scores belong to; a log-prob above 0 is none."""
        for name, values, expected in [
            ("log_p", self.log_p, len(behavior.ids)),
            ("log_p_sampled", self.log_p_sampled, len(behavior)),
        ]:
            if len(values) != expected:
                raise LengthMismatch(name, len(values), expected)
            if expected and float(values.max()) > LOG_PROB_ATOL:
                raise NotALogProb(f"{name} of {expected} values has {float(values.max())}, not a log-prob")
        if behavior.rest is not None and not np.isneginf(behavior.rest.log_rest).all():
            if self.log_rest is None or len(self.log_rest) != len(behavior):
                raise LengthMismatch("log_rest", 0 if self.log_rest is None else len(self.log_rest), len(behavior))
        return self
