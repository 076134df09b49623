"""A batch as it arrives: ragged columns over all its tokens, made without a copy per token. Knows nothing of torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from .behavior import Behavior, Rest, SupportLogProbs
from .errors import LengthMismatch, MissingScores, NotANumber, PlanMismatch, UnknownVersion, WireError, WrongDtype
from .rules.aggregate import MEAN_ONLY, Deviation, advantages
from .words import Consumed, RolloutId, SamplingParams, Segment, Stamp, WeightVersion


@dataclass(frozen=True)
class Batch:
    """R rollouts with T sampled tokens, in dispatch order."""

    plan: int
    ids: tuple[RolloutId, ...]
    groups: Any
    """Group of each rollout, ``[R]``."""
    prompts: tuple[Any, ...]
    """Token ids of each prompt: observed, never trained."""
    params: tuple[SamplingParams, ...]
    starts: Any
    """Where each rollout's tokens begin, ``[R + 1]``."""
    behavior: Behavior
    """q of the T tokens."""
    segments: tuple[Segment, ...]
    stops: tuple[int | None, ...]
    """The stop id that ended each rollout; None where the token limit did."""
    rewards: Any | None = None
    """``[R]``; None before they are known."""
    log_s: SupportLogProbs | None = None
    """log p_s, where the middleware sent it."""
    profiles: tuple[Any, ...] = field(default=(), repr=False)
    group_sizes: Any | None = field(default=None, repr=False)
    """Rollouts of each one's group in the batch this was taken from, ``[R]``."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def tokens(self) -> Any:
        """The sampled tokens, ``[T]``."""
        return self.behavior.tokens

    @cached_property
    def lengths(self) -> Any:
        """Sampled tokens of each rollout, ``[R]``."""
        return np.diff(self.starts)

    @cached_property
    def sequence(self) -> Any:
        """Rollout of each token, ``[T]``."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @cached_property
    def versions(self) -> tuple[WeightVersion, ...]:
        """The distinct versions its tokens were drawn at, oldest first.

        Raises:
            UnknownVersion: a segment whose version is undeclared.
        """
        for segment in self.segments:
            if segment.stamp.version is None:
                raise UnknownVersion(
                    f"rollout {self.ids[segment.rollout]}, token {segment.start}: the sampler declared no version"
                )
        return tuple(sorted({segment.stamp.version for segment in self.segments if segment.stamp.version is not None}))

    def rows_at(self, version: WeightVersion) -> Any:
        """Mask of the tokens drawn at a version, ``[T]``."""
        mask = np.zeros(len(self.tokens), dtype=bool)
        for segment in self.segments:
            if segment.stamp.version == version:
                mask[segment.start : segment.end] = True
        return mask

    @cached_property
    def steps(self) -> Any:
        """Optimiser steps behind the weights of each token, ``[T]``."""
        _ = self.versions
        out = np.zeros(len(self.tokens), dtype=np.int64)
        for segment in self.segments:
            out[segment.start : segment.end] = segment.stamp.version.step if segment.stamp.version else 0
        return out

    @property
    def temperature(self) -> float:
        """The one temperature of the batch.

        Raises:
            WireError: requests of several temperatures.
        """
        found = {params.temperature for params in self.params}
        if len(found) != 1:
            raise WireError(
                f"plan {self.plan} was asked at temperatures {sorted(found)}: take its rollouts apart by temperature"
            )
        return found.pop()

    def advantages(self, deviation: Deviation = MEAN_ONLY) -> Any:
        """Group-relative advantages, one a token ``[T]``.

        Raises:
            NotANumber: rewards that are not known.
        """
        if self.rewards is None:
            raise NotANumber(f"plan {self.plan}: {len(self)} rollouts have no reward yet")
        if self.group_sizes is not None:
            for group, size in zip(self.groups, self.group_sizes):
                here = int((self.groups == group).sum())
                if here != size:
                    raise LengthMismatch(
                        f"group {group} in a part of plan {self.plan} (take advantages from the whole batch); it",
                        here,
                        int(size),
                    )
        return np.repeat(advantages(self.rewards, self.groups, deviation), self.lengths)

    def rollout(self, index: int) -> tuple[Any, Any]:
        """Prompt and sampled tokens of one rollout."""
        return self.prompts[index], self.tokens[self.starts[index] : self.starts[index + 1]]

    def take(self, rollouts: Sequence[int]) -> Batch:
        """Some of its rollouts: a micro-batch. Means over the whole batch need its ``totals``.

        Raises:
            LengthMismatch: none of them.
            PlanMismatch: an index the batch does not have.
        """
        rollouts = list(rollouts)
        outside = [i for i in rollouts if not 0 <= i < len(self)]
        if outside:
            raise PlanMismatch(f"rollout {outside[0]} of a batch of {len(self)}")
        if not rollouts:
            raise LengthMismatch("rollouts of a micro-batch", 0, "at least 1")
        rows = np.concatenate([np.arange(self.starts[i], self.starts[i + 1]) for i in rollouts])
        starts = np.concatenate([[0], np.cumsum([self.lengths[i] for i in rollouts])])
        segments = []
        for place, i in enumerate(rollouts):
            shift = int(starts[place] - self.starts[i])
            segments += [
                replace(s, rollout=place, start=s.start + shift, end=s.end + shift)
                for s in self.segments
                if s.rollout == i
            ]
        log_s = self.log_s
        if log_s is not None:
            entries = self.behavior.entries_of(rows)
            log_s = SupportLogProbs(
                log_s.log_p[entries],
                log_s.log_p_sampled[rows],
                None if log_s.log_rest is None else log_s.log_rest[rows],
            )

        def pick(column: Any) -> Any:
            return tuple(column[i] for i in rollouts)

        return Batch(
            self.plan,
            pick(self.ids),
            self.groups[rollouts],
            pick(self.prompts),
            pick(self.params),
            starts,
            self.behavior.select(rows),
            tuple(segments),
            pick(self.stops),
            None if self.rewards is None else self.rewards[rollouts],
            log_s,
            self.profiles,
            self._sizes()[rollouts],
        )

    def _sizes(self) -> Any:
        if self.group_sizes is not None:
            return self.group_sizes
        return np.array([int((self.groups == group).sum()) for group in self.groups])

    def split(self, rollouts: int) -> list[Batch]:
        """Micro-batches of at most so many rollouts.

        Raises:
            LengthMismatch: fewer than one.
        """
        if rollouts < 1:
            raise LengthMismatch("rollouts of a micro-batch", rollouts, "at least 1")
        return [self.take(range(at, min(at + rollouts, len(self)))) for at in range(0, len(self), rollouts)]

    @property
    def totals(self) -> tuple[int, int]:
        """Tokens and sequences, for the means of its micro-batches."""
        return len(self.tokens), int((self.lengths > 0).sum())

    def with_rewards(self, rewards: dict[RolloutId, float]) -> Batch:
        """The batch with the rewards it waited for; one for each rollout."""
        missing = [str(i) for i in self.ids if i not in rewards]
        if missing:
            raise LengthMismatch(f"rewards (none for {missing[0]})", len(self) - len(missing), len(self))
        return replace(self, rewards=np.array([rewards[i] for i in self.ids], dtype=np.float64))

    def consumed(self, mask: Any = None) -> list[Consumed]:
        """What a trainer that used this batch has consumed, given its mask of the tokens ``[T]``."""
        kept = self.lengths
        if mask is not None:
            mask = np.asarray(mask)
            if len(mask) != len(self.tokens):
                raise LengthMismatch("mask", len(mask), len(self.tokens))
            if not np.isin(mask, (0, 1)).all():
                raise WrongDtype("mask", mask.dtype, "bool, or 0 and 1")
            kept = np.add.reduceat(np.append(mask.astype(np.int64), 0), self.starts[:-1])
        return [
            Consumed(rollout, int(n), int(k))
            for rollout, n, k in zip(self.ids, self.lengths, np.where(self.lengths > 0, kept, 0))
        ]

    def scores(self) -> SupportLogProbs:
        """log p_s.

        Raises:
            MissingScores: the middleware sent none.
        """
        if self.log_s is None:
            raise MissingScores(f"plan {self.plan} came without log p_s: score it with a SnapshotStore")
        return self.log_s

    def check(self) -> Batch:
        """Everything a support can contradict itself in; the middleware has checked it once."""
        self.behavior.check()
        return self


def u32(data: bytes, name: str) -> Any:
    """A column without a copy."""
    return _column(data, name, "<u4")


def f32(data: bytes, name: str) -> Any:
    """A column without a copy."""
    return _column(data, name, "<f4")


def _column(data: bytes, name: str, kind: str) -> Any:
    if len(data) % 4:
        raise WireError(f"column {name} has {len(data)} bytes, not a multiple of 4")
    return np.frombuffer(data, dtype=kind)


class _Column:
    """A column that grows: each piece is copied once, out of its message, into room that is guessed from the first ones."""

    def __init__(self, kind: str) -> None:
        self._data, self._length = np.empty(0, kind), 0

    def room(self, count: int, share: float) -> Any:
        """Where the next ``count`` values go; ``share`` of the column is there after them."""
        begin, end = self._length, self._length + count
        if end > len(self._data):
            grown = np.empty(min(int(end / share * 1.05) + 1, 2 * end + (1 << 25)), self._data.dtype)
            grown[:begin] = self._data[:begin]
            self._data = grown
        self._length = end
        return self._data[begin:end]

    def values(self) -> Any:
        """What is there."""
        return self._data[: self._length]


class BatchReader:
    """Pieces in their order: a header; then for each rollout its request, its deltas, its scores, its reward."""

    def __init__(self) -> None:
        self.header: Any = None
        self._ids: list[RolloutId] = []
        self._groups: list[int] = []
        self._prompts: list[Any] = []
        self._params: list[SamplingParams] = []
        self._starts: list[int] = [0]
        self._stops: list[int | None] = []
        self._finished = True
        self._segments: list[Segment] = []
        self._tokens, self._offsets, self._entry_ids = (_Column("<u4") for _ in range(3))
        self._log_q = _Column("<f4")
        self._offsets.room(1, 1.0)[:] = 0
        self._stamp: tuple[Any, Stamp] | None = None
        self._rests: list[tuple[int, Any]] = []
        self._rewards: dict[int, float] = {}
        self._log_p, self._log_p_sampled = bytearray(), bytearray()
        self._scored_rest: list[tuple[int, int, Any]] = []
        self._entries = 0

    def push(self, chunk: Any) -> None:
        """Takes the next chunk in."""
        for piece in chunk.pieces:
            kind = piece.WhichOneof("piece")
            if kind is None:
                raise WireError("batch piece has no content")
            if (kind == "header") != (self.header is None):
                raise WireError(
                    "a batch does not begin with its header" if self.header is None else "a batch has two headers"
                )
            getattr(self, f"_{kind}")(getattr(piece, kind))

    def _header(self, header: Any) -> None:
        self.header = header

    def _request(self, request: Any) -> None:
        self._close()
        if not request.HasField("id") or not request.HasField("params"):
            raise WireError("request has no id or no params")
        self._finished = False
        self._ids.append(RolloutId.of(request.id))
        self._groups.append(request.group)
        self._prompts.append(u32(request.prompt, "prompt"))
        self._params.append(SamplingParams.of(request.params))
        self._starts.append(self._starts[-1])
        self._stops.append(None)

    def _close(self) -> None:
        if not self._finished:
            raise WireError(f"rollout {self._ids[-1]} has {self._starts[-1] - self._starts[-2]} tokens and no finish")

    def _delta(self, delta: Any) -> None:
        own = delta.rollout
        if not self._ids or own.index != self._ids[-1].index or own.plan != self._ids[-1].plan:
            raise WireError(
                f"a delta of rollout {RolloutId.of(delta.rollout)} follows the request of {self._ids[-1] if self._ids else 'none'}"
            )
        at = self._starts[-1] - self._starts[-2]
        if self._finished or delta.start != at:
            raise WireError(
                f"rollout {self._ids[-1]}: a delta starts at {delta.start}, not at {at}"
                + (", after its finish" if self._finished else "")
            )
        if delta.profile >= len(self.header.profiles):
            raise WireError(
                f"profile {delta.profile} of a delta is not among the {len(self.header.profiles)} sent before"
            )
        count = self._behavior(delta.behavior)
        if count:
            text = delta.stamp.SerializeToString()
            if self._stamp is None or self._stamp[0] != text:
                self._stamp = (text, Stamp.of(delta.stamp))
            self._segment(self._stamp[1], Segment.kv_of(delta.kv), delta.profile, count)
        self._starts[-1] += count
        if delta.HasField("finish"):
            self._finished = True
            self._stops[-1] = delta.finish.stop if delta.finish.WhichOneof("reason") == "stop" else None

    def _segment(self, stamp: Stamp, kv: Any, profile: int, count: int) -> None:
        begin, rollout = self._starts[-1], len(self._ids) - 1
        last = self._segments[-1] if self._segments else None
        if last is not None and (last.rollout, last.stamp, last.kv, last.profile) == (rollout, stamp, kv, profile):
            self._segments[-1] = replace(last, end=begin + count)
        else:
            self._segments.append(Segment(rollout, begin, begin + count, stamp, kv, profile))

    def _behavior(self, behavior: Any) -> int:
        tokens, ids = u32(behavior.tokens, "tokens"), u32(behavior.ids, "ids")
        offsets, log_q = u32(behavior.offsets, "offsets"), f32(behavior.log_q, "log_q")
        count, entries = len(tokens), len(ids)
        if len(offsets) != count + 1:
            raise LengthMismatch("column offsets", len(offsets), count + 1)
        if len(log_q) != len(ids):
            raise LengthMismatch("column log_q", len(log_q), entries)
        if offsets[0] != 0 or offsets[-1] != entries:
            raise LengthMismatch(
                "column offsets, which ascends from 0 to the number of entries,", int(offsets[-1]), entries
            )
        share = min(len(self._ids) / max(self.header.rollouts, 1), 1.0)
        self._tokens.room(count, share)[:] = tokens
        self._entry_ids.room(entries, share)[:] = ids
        self._log_q.room(entries, share)[:] = log_q
        np.add(offsets[1:], np.uint32(self._entries), out=self._offsets.room(count, share))
        if behavior.HasField("rest"):
            rest = behavior.rest
            columns = Rest(
                u32(rest.vocabulary, "vocabulary"),
                f32(rest.log_q_sampled, "log_q_sampled"),
                f32(rest.log_rest, "log_rest"),
            )
            for name in ("vocabulary", "log_q_sampled", "log_rest"):
                if len(getattr(columns, name)) != count:
                    raise LengthMismatch(f"column {name}", len(getattr(columns, name)), count)
            self._rests.append((self._starts[-1], columns))
        self._entries += entries
        if self._entries >= 1 << 32:
            raise WireError(f"a batch of more than {(1 << 32) - 1} support entries")
        return count

    def _scores(self, scores: Any) -> None:
        if scores.rollout != len(self._ids) - 1:
            raise WireError(f"scores of rollout {scores.rollout} follow the request of rollout {len(self._ids) - 1}")
        self._log_p += memoryview(f32(scores.log_p, "log_p")).cast("B")
        self._log_p_sampled += memoryview(f32(scores.log_p_sampled, "log_p_sampled")).cast("B")
        if len(scores.log_rest):
            self._scored_rest.append((scores.rollout, scores.segment, f32(scores.log_rest, "log_rest")))

    def _reward(self, reward: float) -> None:
        if not np.isfinite(reward):
            raise NotANumber(f"reward {reward} of rollout {self._ids[-1]} is not finite")
        self._rewards[len(self._ids) - 1] = reward

    def _rest(self, behavior: Behavior) -> Rest | None:
        if not self._rests:
            return None
        count = len(behavior)
        vocabulary, rest = np.zeros(count, np.uint32), np.full(count, -np.inf, np.float32)
        # Exact rows of deltas without the columns: their own log-prob stands in the entries.
        at = behavior.drawn
        own = (
            np.where(at >= 0, behavior.log_q[np.maximum(at, 0)], 0.0).astype(np.float32)
            if len(behavior.log_q)
            else np.zeros(count, np.float32)
        )
        for start, columns in self._rests:
            rows = slice(start, start + len(columns.log_rest))
            vocabulary[rows], own[rows], rest[rows] = columns.vocabulary, columns.log_q_sampled, columns.log_rest
        return Rest(vocabulary, own, rest)

    def _log_s(self, behavior: Behavior) -> SupportLogProbs | None:
        if not self._log_p_sampled:
            return None
        log_p, sampled = np.frombuffer(self._log_p, "<f4"), np.frombuffer(self._log_p_sampled, "<f4")
        rest = None
        if behavior.rest is not None:
            rest = np.full(len(behavior), -np.inf, np.float32)
            columns: dict[tuple[int, int], list[Any]] = {}
            for rollout, segment, column in self._scored_rest:
                columns.setdefault((rollout, segment), []).append(column)
            numbered: dict[int, int] = {}
            for piece in self._segments:
                number = numbered[piece.rollout] = numbered.get(piece.rollout, -1) + 1
                parts = columns.get((piece.rollout, number))
                if parts is not None:
                    values = np.concatenate(parts)
                    if len(values) != piece.end - piece.start:
                        raise LengthMismatch(
                            f"log_rest of segment {number} of rollout {self._ids[piece.rollout]}",
                            len(values),
                            piece.end - piece.start,
                        )
                    rest[piece.start : piece.end] = values
        return SupportLogProbs(log_p, sampled, rest).check(behavior)

    def finish(self) -> Batch:
        """The batch, once every rollout of the header is there."""
        if self.header is None:
            raise WireError("batch has no pieces")
        self._close()
        if len(self._ids) != self.header.rollouts:
            raise WireError(f"a batch of {self.header.rollouts} rollouts came with {len(self._ids)}")
        temperatures = {params.temperature for params in self._params}
        offsets = self._offsets.values()
        if (offsets[1:] < offsets[:-1]).any():
            at = int(np.flatnonzero(offsets[1:] < offsets[:-1])[0])
            raise WireError(f"the offsets descend at token {at} of the batch, from {offsets[at]} to {offsets[at + 1]}")
        temperature = temperatures.pop() if len(temperatures) == 1 else None
        bare = Behavior(
            self._tokens.values(),
            offsets,
            self._entry_ids.values(),
            self._log_q.values(),
            None,
            temperature,
        )
        behavior = replace(bare, rest=self._rest(bare)) if self._rests else bare
        if self._rewards and len(self._rewards) != len(self._ids):
            raise LengthMismatch("rewards", len(self._rewards), len(self._ids))
        rewards = np.array([self._rewards[i] for i in range(len(self._ids))]) if self._rewards else None
        return Batch(
            self.header.plan,
            tuple(self._ids),
            np.array(self._groups),
            tuple(self._prompts),
            tuple(self._params),
            np.array(self._starts),
            behavior,
            tuple(self._segments),
            tuple(self._stops),
            rewards,
            self._log_s(behavior),
            tuple(self.header.profiles),
        )
