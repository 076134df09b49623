"""The asyncio client: the same calls, awaited."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
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
    """As `lockstep.connect`; call it where a loop runs."""
    return Client(address, Settings(consumer or default_consumer(), rank, ranks, patience))


class Client:
    """One connection of one event loop."""

    def __init__(self, address: str, settings: Settings) -> None:
        self.address, self.settings = address, settings
        self._channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        self._stub = MiddlewareStub(self._channel)
        self._heart: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._closed = False
        self._held: tuple[int, list[Consumed]] | None = None

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the heartbeat and the connection."""
        self._closed = True
        if self._heart is not None:
            self._heart.cancel()
            await asyncio.gather(self._heart, return_exceptions=True)
        await self._channel.close(None)

    async def _again(self, what: str, call: Callable[[], Awaitable[A]]) -> A:
        begin, attempt = time.monotonic(), 0
        self._open(what)
        while True:
            try:
                return await call()
            except grpc.RpcError as error:
                left = self.settings.patience - (time.monotonic() - begin)
                if not is_lost(error) or left <= 0:
                    raise explained(error, what) from error
                await asyncio.sleep(min(backoff(attempt), left))
                attempt += 1

    def _open(self, what: str) -> None:
        if self._closed:
            raise Refused(f"{what}: this client of {self.address} is closed")

    async def _once(self, what: str, call: Callable[..., Awaitable[A]], request: Any) -> A:
        self._open(what)
        try:
            return await call(request, wait_for_ready=True, timeout=self.settings.patience)
        except grpc.RpcError as error:
            raise explained(error, what) from error

    async def describe(self) -> Description:
        """What the middleware is."""
        return Description.of(await self._again("describe", lambda: self._stub.Describe(pb.Empty(), timeout=self.settings.patience)))

    async def batches(self) -> AsyncIterator[Batch]:
        """Pull: batches in dispatch order; one counts as trained on when its step is reported, or the next is asked for."""
        if not (await self.describe()).pull:
            raise Refused("batches: this middleware has no prompts of its own; open plans instead")
        await self._beat()
        while True:
            await self._settle()
            request = pb.NextBatchRequest(consumer=self.settings.message())
            batch = await self._again("batches", lambda: self._receive(self._stub.NextBatch(request)))
            if batch is None:
                return
            self._held = (batch.plan, batch.consumed())
            yield batch

    async def _settle(self) -> None:
        if self._held is not None:
            await self.report_consumed(*self._held)

    @staticmethod
    async def _receive(chunks: Any) -> Batch | None:
        reader, some = BatchReader(), False
        async for chunk in chunks:
            reader.push(chunk)
            some = True
        return reader.finish().check() if some else None

    async def open_plan(self, groups: int, answers: int, plan: int | None = None) -> Plan:
        """Driven: fixes the membership of one batch; with the number it must get, repeated when a reply is lost."""
        await self._beat()
        request = pb.OpenPlanRequest(groups=groups, answers=answers, plan=plan)
        if plan is None:
            return plan_of(await self._once("open_plan", self._stub.OpenPlan, request))
        return plan_of(await self._again("open_plan", lambda: self._stub.OpenPlan(request)))

    async def seal(self, plan: Plan | int) -> Batch:
        """Driven: waits for every rollout of the plan."""
        number = plan.plan if isinstance(plan, Plan) else plan
        batch = await self._again("seal", lambda: self._receive(self._stub.SealPlan(pb.PlanId(plan=number))))
        if batch is None:
            raise Refused(f"seal: plan {number} came without pieces")
        return batch

    async def reward(self, rewards: Mapping[RolloutId, float]) -> None:
        """Rewards."""
        request = rewards_of(rewards)
        await self._again("reward", lambda: self._stub.Reward(request, timeout=self.settings.patience))

    async def reward_failed(self, rollout: RolloutId, reason: str) -> None:
        """Judging a rollout failed; not repeated when a reply is lost."""
        await self._once("reward_failed", self._stub.Reward, failure_of(rollout, reason))

    async def report_consumed(self, plan: Plan | int, consumed: Iterable[Consumed]) -> None:
        """What was really trained on."""
        number = plan.plan if isinstance(plan, Plan) else plan
        request = consumed_of(number, consumed)
        await self._again("report_consumed", lambda: self._stub.ReportConsumed(request, timeout=self.settings.patience))
        if self._held is not None and self._held[0] == number:
            self._held = None

    async def report_step(
        self,
        before: WeightVersion,
        after: WeightVersion,
        metrics: Mapping[str, float],
        ess: Mapping[WeightVersion, EssReport],
        *,
        gradient_norm: float,
        tokens: int,
    ) -> Decision:
        """The statistics of a step."""
        request = report_of(before, after, metrics, ess, gradient_norm, tokens)
        await self._settle()
        return decision_of(await self._once("report_step", self._stub.ReportStep, request))

    async def synchronise(self, version: WeightVersion, path: str, digest: bytes = b"") -> Stamp:
        """Gives the sampler new weights."""
        request = pb.PublishedWeights(version=version.message(), path=path, digest=digest)
        return Stamp.of(await self._again("synchronise", lambda: self._stub.Synchronise(request)))

    async def _beat(self) -> None:
        async with self._starting:
            lease = 0 if self._heart is not None else (await self.describe()).lease_seconds
            if lease > 0:
                self._heart = asyncio.create_task(self._beats(lease / 3), name="lockstep-heartbeat")

    async def _beats(self, every: float) -> None:
        while True:
            await asyncio.sleep(every)
            try:
                await self._stub.Heartbeat(self.settings.message(), timeout=every)
            except grpc.RpcError as error:
                if not is_lost(error) and error.code() != grpc.StatusCode.DEADLINE_EXCEEDED:
                    self.refused = explained(error, "heartbeat")
                    return

    refused: Exception | None = None
    """Why the heartbeat ended, when the middleware refused it."""
