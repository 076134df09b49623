"""A middleware that speaks the contract and remembers what it was asked. It samples nothing."""

from __future__ import annotations

import threading
from concurrent import futures

import grpc
import numpy as np

from lockstep.wire import lockstep_pb2 as pb
from lockstep.wire.lockstep_pb2_grpc import MiddlewareServicer, add_MiddlewareServicer_to_server

PROFILE = pb.SamplerProfile(
    engine="fake",
    version="1",
    filters=[pb.FILTER_TEMPERATURE, pb.FILTER_TOP_P],
    ties=pb.TIE_RULE_LOWER_ID,
    log_probs=pb.LOG_PROB_MEANING_DRAWN,
    weights_dtype="f32",
    activations_dtype="f32",
    kv_cache_dtype="f32",
    head_dtype="f32",
)
VOCABULARY = 64


def request(plan, index, group, temperature=0.7, prompt=(1, 2, 3)):
    params = pb.SamplingParams(temperature=temperature, top_p=0.9, seed=7, max_new_tokens=64)
    return pb.Request(
        id=pb.RolloutId(plan=plan, index=index), group=group, prompt=np.array(prompt, "<u4").tobytes(), params=params
    )


def stamp(step):
    return pb.Stamp(version=pb.WeightVersion(epoch=1, step=step), label="v")


def supports(rng, count, kept=6, head=None):
    """Columns of exact rows with some singletons; with ``head``, rows known by their top alone."""
    tokens, offsets, ids, log_q, rest = [], [0], [], [], []
    for t in range(count):
        if head is None and t % 2:
            tokens.append(int(rng.integers(VOCABULARY)))
            rest.append((0, 0.0, -np.inf))
        else:
            row = rng.permutation(VOCABULARY)[:kept]
            weights = rng.random(kept) + 0.1
            p = weights / weights.sum() * (1.0 if head is None else 0.8)
            token = int(rng.integers(kept))
            tokens.append(int(row[token]))
            ids += row.tolist()
            log_q += np.log(p).tolist()
            rest.append((VOCABULARY, np.log(p[token]), np.log(0.2)))
        offsets.append(len(ids))
    behavior = pb.Behavior(
        tokens=np.array(tokens, "<u4").tobytes(),
        offsets=np.array(offsets, "<u4").tobytes(),
        ids=np.array(ids, "<u4").tobytes(),
        log_q=np.array(log_q, "<f4").tobytes(),
    )
    if head is not None:
        columns = list(zip(*rest))
        behavior.rest.CopyFrom(
            pb.Rest(
                vocabulary=np.array(columns[0], "<u4").tobytes(),
                log_q_sampled=np.array(columns[1], "<f4").tobytes(),
                log_rest=np.array(columns[2], "<f4").tobytes(),
            )
        )
    return behavior


def pieces(plan, groups, answers, length=10, seed=0, reward=True, deltas=2, head=None, steps=(3, 4)):
    """A batch: each answer in two deltas at two versions."""
    rng = np.random.default_rng(seed)
    yield pb.BatchPiece(header=pb.BatchHeader(plan=plan, rollouts=groups * answers, profiles=[PROFILE]))
    for index in range(groups * answers):
        yield pb.BatchPiece(request=request(plan, index, index // answers))
        start = 0
        for part in range(deltas):
            count = length if deltas == 1 else length // 2 + index % 3 if part == 0 else length // 2
            delta = pb.Delta(
                rollout=pb.RolloutId(plan=plan, index=index),
                start=start,
                behavior=supports(rng, count, head=head),
                stamp=stamp(steps[min(part, len(steps) - 1)]),
                kv=pb.KV_HISTORY_FRESH,
                profile=0,
            )
            start += count
            if part == deltas - 1:
                delta.finish.CopyFrom(pb.Finish(length=True))
            yield pb.BatchPiece(delta=delta)
        if reward:
            yield pb.BatchPiece(reward=float(index % 2))


def chunks(of, size=1 << 20):
    """Messages of at most a size."""
    chunk, total = pb.BatchChunk(), 0
    for piece in of:
        more = piece.ByteSize()
        if total and total + more > size:
            yield chunk
            chunk, total = pb.BatchChunk(), 0
        chunk.pieces.append(piece)
        total += more
    yield chunk


class Fake(MiddlewareServicer):
    """What it was asked stands in `calls`; what it answers can be changed."""

    def __init__(self):
        self.calls, self.lock, self.beats = [], threading.Semaphore(1), threading.Semaphore(0)
        self.left, self.pull, self.resync, self.cut = 2, True, True, 0
        self.plans, self.fault, self.steps, self.batch_steps = {}, None, (3, 4), (3, 4)

    def note(self, name, message, context):
        with self.lock:
            self.calls.append((name, message))
        if self.fault and self.fault[0] == name:
            _, code, details = self.fault
            self.fault = None
            context.abort(code, details)

    def named(self, name):
        return [message for called, message in self.calls if called == name]

    def Describe(self, message, context):
        self.note("Describe", message, context)
        return pb.MiddlewareDescription(
            lockstep_version="0.1.0",
            stage=pb.STAGE_DLC,
            sampler=pb.SamplerDescription(profile=PROFILE, vocabulary=VOCABULARY),
            stamp=stamp(4),
            pull=self.pull,
            lease_seconds=1,
        )

    def NextBatch(self, message, context):
        self.note("NextBatch", message, context)
        if self.left == 0:
            return
        sent = list(chunks(pieces(9, 2, 2, steps=self.batch_steps), size=400))
        if self.cut:
            self.cut -= 1
            yield from sent[:2]
            context.abort(grpc.StatusCode.UNAVAILABLE, "the middleware restarts")
        self.left -= 1
        yield from sent

    def OpenPlan(self, message, context):
        self.note("OpenPlan", message, context)
        plan = len(self.plans) + 1
        self.plans[plan] = message
        count = message.groups * message.answers
        return pb.OpenedPlan(plan=plan, rollouts=[pb.RolloutId(plan=plan, index=i) for i in range(count)])

    def SealPlan(self, message, context):
        self.note("SealPlan", message, context)
        opened = self.plans[message.plan]
        yield from chunks(pieces(message.plan, opened.groups, opened.answers, reward=False, steps=self.steps))

    def Reward(self, message, context):
        self.note("Reward", message, context)
        return pb.Empty()

    def ReportConsumed(self, message, context):
        self.note("ReportConsumed", message, context)
        opened = self.plans.get(message.plan)
        if opened is None:
            return pb.Empty()
        if len(message.rollouts) != opened.groups * opened.answers:
            context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"plan {message.plan} has {opened.groups * opened.answers} rollouts, {len(message.rollouts)} were consumed",
            )
        return pb.Empty()

    def ReportStep(self, message, context):
        self.note("ReportStep", message, context)
        return pb.ResyncDecision(resynchronise=self.resync, level="horizon", ess=0.4, threshold=0.5)

    def Synchronise(self, message, context):
        self.note("Synchronise", message, context)
        return pb.Stamp(version=message.version, digest=b"\x01" * 32)

    def Heartbeat(self, message, context):
        self.note("Heartbeat", message, context)
        self.beats.release()
        return pb.Empty()


def serve(fake, port=0):
    server = grpc.server(futures.ThreadPoolExecutor(8))
    add_MiddlewareServicer_to_server(fake, server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    return server, f"127.0.0.1:{port}"
