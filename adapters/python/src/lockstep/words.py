"""The words of the wire as small values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from .errors import WireError
from .wire import lockstep_pb2 as pb

KvHistory = Literal["fresh", "recomputed", "stale", "ambiguous"]
Stage = Literal["observe", "fix", "dlc"]
_KV: dict[int, KvHistory] = {1: "fresh", 2: "recomputed", 3: "stale", 4: "ambiguous"}
_STAGE: dict[int, Stage] = {1: "observe", 2: "fix", 3: "dlc"}


@dataclass(frozen=True, order=True)
class WeightVersion:
    """Start of the trainer the weights belong to, and optimiser steps behind them. Never reused."""

    epoch: int
    step: int

    def __str__(self) -> str:
        return f"e{self.epoch}.s{self.step}"

    def message(self) -> Any:
        """For the wire."""
        return pb.WeightVersion(epoch=self.epoch, step=self.step)

    @staticmethod
    def of(message: Any) -> WeightVersion:
        """From the wire."""
        return WeightVersion(message.epoch, message.step)


@dataclass(frozen=True, order=True)
class RolloutId:
    """A place in a plan."""

    plan: int
    index: int

    def __str__(self) -> str:
        return f"p{self.plan}.r{self.index}"

    def message(self) -> Any:
        """For the wire."""
        return pb.RolloutId(plan=self.plan, index=self.index)

    @staticmethod
    def of(message: Any) -> RolloutId:
        """From the wire."""
        return RolloutId(message.plan, message.index)


@dataclass(frozen=True)
class Stamp:
    """A version and how it is known. Without a version it is undeclared, which is not version 0."""

    version: WeightVersion | None
    evidence: str
    """``undeclared``, ``label:TEXT``, ``behavioural:NOISE/CHANGE`` or ``digest:HEX``."""

    @staticmethod
    def of(message: Any) -> Stamp:
        """From the wire."""
        kind = message.WhichOneof("evidence")
        if not message.HasField("version"):
            return Stamp(None, "undeclared")
        if kind is None:
            raise WireError(f"a stamp of version {WeightVersion.of(message.version)} has no evidence")
        value = getattr(message, kind)
        if kind == "digest":
            text = value.hex()
        elif kind == "behavioural":
            text = f"{value.repeat_noise}/{value.change}"
        else:
            text = value
        return Stamp(WeightVersion.of(message.version), f"{kind}:{text}")


@dataclass(frozen=True)
class Segment:
    """A maximal run of tokens of one rollout with one stamp, one profile and one KV history."""

    rollout: int
    start: int
    """First token, counted over the batch."""
    end: int
    stamp: Stamp
    kv: KvHistory
    profile: int

    @staticmethod
    def kv_of(value: int) -> KvHistory:
        """From the wire."""
        if value not in _KV:
            raise WireError(f"kv history is {value}, not one of {sorted(_KV)}")
        return _KV[value]


@dataclass(frozen=True)
class SamplingParams:
    """What was asked of the sampler."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    max_new_tokens: int

    @staticmethod
    def of(message: Any) -> SamplingParams:
        """From the wire."""
        names = ("temperature", "top_k", "top_p", "min_p", "seed", "max_new_tokens")
        return SamplingParams(*(getattr(message, name) for name in names))


@dataclass(frozen=True)
class Description:
    """What the middleware says of itself."""

    lockstep_version: str
    stage: Stage
    stamp: Stamp | None
    pull: bool
    lease_seconds: int
    vocabulary: int

    @staticmethod
    def of(message: Any) -> Description:
        """From the wire."""
        if message.stage not in _STAGE:
            raise WireError(f"stage is {message.stage}, not one of {sorted(_STAGE)}")
        stamp = Stamp.of(message.stamp) if message.HasField("stamp") else None
        return Description(
            message.lockstep_version,
            _STAGE[message.stage],
            stamp,
            message.pull,
            message.lease_seconds,
            message.sampler.vocabulary,
        )


@dataclass(frozen=True)
class Plan:
    """A batch whose membership is fixed; nothing of it has been sampled."""

    plan: int
    rollouts: tuple[RolloutId, ...]
    """In dispatch order: group 0's answers first."""

    def headers(self, place: int) -> dict[str, str]:
        """What a request for this place of the plan carries."""
        rollout = self.rollouts[place]
        return {"X-Plan-ID": str(self.plan), "X-Rollout-ID": str(rollout)}


@dataclass(frozen=True)
class Decision:
    """Whether the sampler is to get new weights."""

    resynchronise: bool
    level: str
    ess: float | None
    """None where no answer of the batch was drawn at the weights that the sampler holds."""
    threshold: float


@dataclass(frozen=True)
class Consumed:
    """What was really trained on of one rollout."""

    rollout: RolloutId
    tokens: int
    """Sampled tokens it was given."""
    masked_in: int
    """Of them, those its mask kept."""
