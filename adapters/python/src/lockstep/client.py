"""The sync client: pull (`batches`) and driven (`open_plan`, `seal`, `report_consumed`)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import grpc

from .batch import Batch, BatchReader
from .calls import (
    OPTIONS,
    Settings,
    backoff,
    consumed_of,
    decision_of,
    default_consumer,
    explained,
    failure_of,
    is_lost,
    plan_of,
    report_of,
    rewards_of,
)
from .errors import Refused
from .rules.ess import EssReport
from .wire import lockstep_pb2 as pb
from .wire.lockstep_pb2_grpc import MiddlewareStub
from .words import Consumed, Decision, Description, Plan, RolloutId, Stamp, WeightVersion

A = TypeVar("A")


def connect(
    address: str, *, consumer: str | None = None, rank: int = 0, ranks: int = 1, patience: float = 60.0
) -> Client:
    """A client of `lockstep serve`.

    Args:
        address: ``host:port``.
        consumer: the same name for all ranks of one trainer; each batch is sharded among them by whole groups.
        patience: seconds in which a lost middleware must come back before `Disconnected` is raised.
    """
    return Client(address, Settings(consumer or default_consumer(), rank, ranks, patience))


class Client:
    """One connection. Calls are thread-safe; `batches` is for one thread, whose batch counts as trained on when it asks for the next.
    Close it, or use it as a context."""

    def __init__(self, address: str, settings: Settings) -> None:
        self.address, self.settings = address, settings
        self._channel = grpc.insecure_channel(address, options=OPTIONS)
        self._stub = MiddlewareStub(self._channel)
        self._closed = threading.Event()
        self._heart: threading.Thread | None = None
        self._starting = threading.Lock()
        self._held: tuple[int, list[Consumed]] | None = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the heartbeat and the connection; what was given and not reported is given again when the lease ends."""
        self._closed.set()
        if self._heart is not None:
            self._heart.join()
        self._channel.close()

    def _again(self, what: str, call: Callable[[], A]) -> A:
        """A call that may be repeated, until the middleware is back or patience ends."""
        begin, attempt = time.monotonic(), 0
        self._open(what)
        while True:
            try:
                return call()
            except grpc.RpcError as error:
                left = self.settings.patience - (time.monotonic() - begin)
                if not is_lost(error) or left <= 0 or self._closed.wait(min(backoff(attempt), left)):
                    raise explained(error, what) from error
                attempt += 1

    def _open(self, what: str) -> None:
        if self._closed.is_set():
            raise Refused(f"{what}: this client of {self.address} is closed")

    def _once(self, what: str, call: Callable[..., A], request: Any) -> A:
        """A call that must not be made twice; it waits for a connection, not for a second chance."""
        self._open(what)
        try:
            return call(request, wait_for_ready=True, timeout=self.settings.patience)
        except grpc.RpcError as error:
            raise explained(error, what) from error

    def describe(self) -> Description:
        """What the middleware is."""
        return Description.of(self._again("describe", lambda: self._stub.Describe(pb.Empty(), timeout=self.settings.patience)))

    def batches(self) -> Iterator[Batch]:
        """Pull: batches in dispatch order, each whole and rewarded; ends when the middleware has no more.

        A batch counts as trained on when its step is reported, or the next one is asked for; say it yourself with
        `report_consumed` where a mask took tokens out.

        Raises:
            Refused: the middleware has no prompts of its own.
        """
        if not self.describe().pull:
            raise Refused("batches: this middleware has no prompts of its own; open plans instead")
        self._beat()
        while not self._closed.is_set():
            self._settle()
            request = pb.NextBatchRequest(consumer=self.settings.message())
            batch = self._again("batches", lambda: self._receive(self._stub.NextBatch(request)))
            if batch is None:
                return
            self._held = (batch.plan, batch.consumed())
            yield batch

    def _settle(self) -> None:
        if self._held is not None:
            self.report_consumed(*self._held)

    @staticmethod
    def _receive(chunks: Iterable[Any]) -> Batch | None:
        reader, some = BatchReader(), False
        for chunk in chunks:
            reader.push(chunk)
            some = True
        return reader.finish().check() if some else None

    def open_plan(self, groups: int, answers: int, plan: int | None = None) -> Plan:
        """Driven: fixes the membership of one batch. Send the plan's headers with its requests.

        ``plan`` is the number it must get. With it the call is repeated when a reply is lost, and gives a plan that is open already.
        """
        self._beat()
        request = pb.OpenPlanRequest(groups=groups, answers=answers, plan=plan)
        if plan is None:
            return plan_of(self._once("open_plan", self._stub.OpenPlan, request))
        return plan_of(self._again("open_plan", lambda: self._stub.OpenPlan(request)))

    def seal(self, plan: Plan | int) -> Batch:
        """Driven: waits for every rollout of the plan and gives the batch, with the rewards it has."""
        number = plan.plan if isinstance(plan, Plan) else plan
        batch = self._again("seal", lambda: self._receive(self._stub.SealPlan(pb.PlanId(plan=number))))
        if batch is None:
            raise Refused(f"seal: plan {number} came without pieces")
        return batch

    def reward(self, rewards: Mapping[RolloutId, float]) -> None:
        """Rewards; those of a batch that is not sealed yet wait in the middleware."""
        request = rewards_of(rewards)
        self._again("reward", lambda: self._stub.Reward(request, timeout=self.settings.patience))

    def reward_failed(self, rollout: RolloutId, reason: str) -> None:
        """Judging a rollout failed; after the middleware's limit of attempts it counts as what was fixed before the run.

        Not repeated when a reply is lost: it would count as another attempt.
        """
        self._once("reward_failed", self._stub.Reward, failure_of(rollout, reason))

    def report_consumed(self, plan: Plan | int, consumed: Iterable[Consumed]) -> None:
        """What was really trained on, which the middleware holds against the plan, or against this rank's part of it.

        Raises:
            PlanMismatch: they differ.
        """
        number = plan.plan if isinstance(plan, Plan) else plan
        request = consumed_of(number, consumed)
        self._again("report_consumed", lambda: self._stub.ReportConsumed(request, timeout=self.settings.patience))
        if self._held is not None and self._held[0] == number:
            self._held = None

    def report_step(
        self,
        before: WeightVersion,
        after: WeightVersion,
        metrics: Mapping[str, float],
        ess: Mapping[WeightVersion, EssReport],
        *,
        gradient_norm: float,
        tokens: int,
    ) -> Decision:
        """The statistics of a step; the answer says whether to `synchronise`."""
        request = report_of(before, after, metrics, ess, gradient_norm, tokens)
        self._settle()
        return decision_of(self._once("report_step", self._stub.ReportStep, request))

    def synchronise(self, version: WeightVersion, path: str, digest: bytes = b"") -> Stamp:
        """Gives the sampler the weights at ``path``, and waits until it draws with them."""
        request = pb.PublishedWeights(version=version.message(), path=path, digest=digest)
        return Stamp.of(self._again("synchronise", lambda: self._stub.Synchronise(request)))

    def _beat(self) -> None:
        with self._starting:
            if self._heart is None:
                lease = self.describe().lease_seconds
                if lease == 0:
                    return
                every = lease / 3
                self._heart = threading.Thread(
                    target=self._beats, args=(every,), name="lockstep-heartbeat", daemon=True
                )
                self._heart.start()

    def _beats(self, every: float) -> None:
        message = self.settings.message()
        while not self._closed.wait(every):
            try:
                self._stub.Heartbeat(message, timeout=every)
            except grpc.RpcError as error:
                # A lost middleware is the business of the next call; one that refuses this consumer is said there too.
                if not is_lost(error) and error.code() != grpc.StatusCode.DEADLINE_EXCEEDED:
                    self.refused = explained(error, "heartbeat")
                    return

    refused: Exception | None = None
    """Why the heartbeat ended, when the middleware refused it."""
