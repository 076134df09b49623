"""What the sync and the asyncio client share: requests, answers, and what an error of the wire means."""

from __future__ import annotations

import math
import os
import socket
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc

from .errors import Disconnected, MissingMetric, NotANumber, PlanMismatch, Refused, WrongDtype
from .rules.ess import EssReport
from .wire import lockstep_pb2 as pb
from .words import Consumed, Decision, Plan, RolloutId, WeightVersion

OPTIONS = [
    ("grpc.max_receive_message_length", 8 << 20),
    ("grpc.http2.lookahead_bytes", 8 << 20),
    ("grpc.http2.max_frame_size", (1 << 24) - 1),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.optimization_target", "throughput"),
]
"""A chunk is at most 1 MB; a single piece may add to it."""


@dataclass(frozen=True)
class Settings:
    """Who asks, and how long it waits for a middleware that is not there."""

    consumer: str
    rank: int = 0
    ranks: int = 1
    patience: float = 60.0
    """Seconds in which a lost middleware must come back."""

    def message(self) -> Any:
        """For the wire."""
        return pb.ConsumerId(consumer=self.consumer, rank=self.rank, ranks=self.ranks)


def default_consumer() -> str:
    """A name no other process has."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def backoff(attempt: int) -> float:
    """Seconds before the next try: 0.1, 0.2, .. 5."""
    return min(5.0, 0.1 * 2.0**attempt)


def is_lost(error: Any) -> bool:
    """Whether the middleware went away, so that a call that may be repeated is."""
    return error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED) or "Socket closed" in str(
        error.details()
    )


def explained(error: Any, what: str) -> Exception:
    """An error of the wire as one of ours."""
    code, details = error.code(), error.details()
    if is_lost(error) or code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return Disconnected(f"{what}: the middleware did not answer ({code.name.lower()}: {details})")
    if what == "report_consumed" and code in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT):
        return PlanMismatch(f"{what}: {details}")
    return Refused(f"{what}: {code.name.lower()}: {details}")


def plan_of(message: Any) -> Plan:
    """An opened plan."""
    return Plan(message.plan, tuple(RolloutId.of(rollout) for rollout in message.rollouts))


def rewards_of(rewards: Mapping[RolloutId, float]) -> Any:
    """Rewards for the wire.

    Raises:
        WrongDtype: a rollout or a reward of another type.
        NotANumber: one that is not finite.
    """
    for rollout, reward in rewards.items():
        if not isinstance(rollout, RolloutId):
            raise WrongDtype(f"rollout {rollout!r}", type(rollout).__name__, "a RolloutId")
        if isinstance(reward, str) or not hasattr(reward, "__float__"):
            raise WrongDtype(f"reward of rollout {rollout}", type(reward).__name__, "a number")
        if not math.isfinite(reward):
            raise NotANumber(f"reward {reward} of rollout {rollout} is not finite")
    return pb.Rewards(
        rewards=[
            pb.RolloutReward(rollout=rollout.message(), reward=float(reward)) for rollout, reward in rewards.items()
        ]
    )


def failure_of(rollout: RolloutId, reason: str) -> Any:
    """A failed judgement for the wire."""
    return pb.Rewards(rewards=[pb.RolloutReward(rollout=rollout.message(), failed=reason)])


def consumed_of(plan: int, consumed: Iterable[Consumed]) -> Any:
    """What was consumed, for the wire."""
    rows = [pb.ConsumedRollout(rollout=c.rollout.message(), tokens=c.tokens, masked_in=c.masked_in) for c in consumed]
    return pb.Consumed(plan=plan, rollouts=rows)


TERM = tuple(pb.Term.DESCRIPTOR.fields_by_name)
"""What is reported of each term."""

SHAPE = tuple(pb.RatioShape.DESCRIPTOR.fields_by_name)
"""What is reported of the ratios' shape; there may be no tail to fit."""

REPORTED = (
    "loss",
    "support_size",
    "head_mass",
    "shape/lag_variance",
    *(f"{prefix}/{name}" for prefix in ("full", "lag", "numeric") for name in TERM),
)
"""Metrics that a report needs."""


ESS_ROUNDING = 1e-6
"""How far above 1 rounding may take an ESS."""


def report_of(
    before: WeightVersion,
    after: WeightVersion,
    metrics: Mapping[str, float],
    ess: Mapping[WeightVersion, EssReport],
    gradient_norm: float,
    tokens: int,
) -> Any:
    """A step's report for the wire, from `LossOutput.metrics` and the ESS by the version that drew the answers.

    Raises:
        MissingMetric: metrics without log p_s, or made by hand.
        NotANumber: one that is not finite.
    """
    lacking = [name for name in REPORTED if name not in metrics]
    if lacking:
        raise MissingMetric(
            f"report of the step from {before} to {after} lacks {len(lacking)} of {len(REPORTED)} metrics, the first is "
            f"{lacking[0]}: give it `LossOutput.metrics` or `combined` of a loss that knows log p_s"
        )
    step = f"the step from {before} to {after}"
    for name, value in {**metrics, "gradient_norm": gradient_norm, "tokens": tokens}.items():
        if not isinstance(value, (int, float)):
            raise WrongDtype(f"{name} of {step}", type(value).__name__, "a number")
        if not math.isfinite(value):
            raise NotANumber(f"{name} of {step} is not finite")
    for version, e in ess.items():
        for level, value in (("token", e.token), ("sequence", e.sequence), ("horizon", e.horizon)):
            if not 0.0 <= value <= 1.0 + ESS_ROUNDING:
                raise NotANumber(f"{level} ESS of the answers drawn at {version} in {step} is {value}, not in [0, 1]")

    def term(prefix: str) -> Any:
        return pb.Term(**{name: metrics[f"{prefix}/{name}"] for name in TERM})

    rows = [
        pb.Ess(
            drawn_at=version.message(),
            token=e.token,
            sequence=e.sequence,
            horizon=e.horizon,
            horizon_tokens=e.horizon_tokens,
            sequences=e.sequences,
            tokens=e.tokens,
        )
        for version, e in ess.items()
    ]
    return pb.StepReport(
        before=before.message(),
        after=after.message(),
        loss=metrics["loss"],
        gradient_norm=gradient_norm,
        lag=term("lag"),
        numeric=term("numeric"),
        clipped_share=metrics.get("clipped_share", 0.0),
        support_size=metrics["support_size"],
        tokens=tokens,
        ess=rows,
        full=term("full"),
        head_mass=metrics["head_mass"],
        shape=pb.RatioShape(**{name: metrics[f"shape/{name}"] for name in SHAPE if f"shape/{name}" in metrics}),
    )


def decision_of(message: Any) -> Decision:
    """The middleware's answer to a report."""
    ess = message.ess if message.HasField("ess") else None
    return Decision(message.resynchronise, message.level, ess, message.threshold)
