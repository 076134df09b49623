"""The clients against a server that speaks the contract."""

import asyncio

import grpc
import numpy as np
import pytest
from fake import Fake, chunks, pieces, serve

import lockstep
from lockstep import Consumed, RolloutId, WeightVersion, aio, errors
from lockstep.batch import BatchReader
from lockstep.calls import REPORTED, SHAPE
from lockstep.rules import EssReport
from lockstep.wire import lockstep_pb2 as pb


@pytest.fixture
def fake():
    fake = Fake()
    server, fake.address = serve(fake)
    yield fake
    server.stop(None)


@pytest.fixture
def client(fake):
    with lockstep.connect(fake.address, consumer="me", rank=1, ranks=2, patience=5.0) as client:
        yield client


def read(of):
    reader = BatchReader()
    for chunk in of:
        reader.push(chunk)
    return reader.finish()


def test_pull_gives_whole_batches_in_order(fake, client):
    batches = list(client.batches())
    assert len(batches) == 2
    batch = batches[0]
    assert (batch.plan, len(batch), batch.groups.tolist()) == (9, 4, [0, 0, 1, 1])
    assert batch.lengths.tolist() == [10, 11, 12, 10] and len(batch.tokens) == 43
    assert batch.versions == (WeightVersion(1, 3), WeightVersion(1, 4))
    assert batch.rows_at(WeightVersion(1, 3)).sum() == 5 + 6 + 7 + 5
    assert batch.temperature == 0.7 and batch.behavior.temperature == 0.7
    assert batch.rewards.tolist() == [0.0, 1.0, 0.0, 1.0]
    assert np.allclose(batch.advantages()[:10], -0.5)
    assert batch.rollout(2)[0].tolist() == [1, 2, 3]
    assert fake.named("NextBatch")[0].consumer == pb.ConsumerId(consumer="me", rank=1, ranks=2)
    assert batch.tokens.dtype == np.uint32 and batch.behavior.log_q.dtype == np.float32


def test_a_pulled_batch_counts_as_trained_on_once(fake, client):
    fake.left = 3
    batches = client.batches()
    first = next(batches)
    assert not fake.named("ReportConsumed")
    before, after = WeightVersion(1, 4), WeightVersion(1, 5)
    client.report_step(before, after, METRICS, {before: EssReport(1.0, 0.4, 0.4, 24, 8, 64)}, gradient_norm=1.0, tokens=64)
    second = next(batches)
    mask = np.ones(len(second.tokens), bool)
    mask[0] = False
    client.report_consumed(second.plan, second.consumed(mask))
    next(batches)
    sent = fake.named("ReportConsumed")
    assert [row.masked_in for row in sent[0].rollouts] == first.lengths.tolist()
    assert len(sent) == 2 and sent[1].rollouts[0].masked_in == 9


def test_a_batch_reads_as_it_was_written():
    sent = list(pieces(3, 1, 3, length=6, seed=5))
    batch = read(chunks(iter(sent), size=300))
    deltas = [piece.delta for piece in sent if piece.WhichOneof("piece") == "delta"]
    assert batch.tokens.tobytes() == b"".join(delta.behavior.tokens for delta in deltas)
    assert batch.behavior.ids.tobytes() == b"".join(delta.behavior.ids for delta in deltas)
    assert batch.behavior.log_q.tobytes() == b"".join(delta.behavior.log_q for delta in deltas)
    parts = [batch.take([i]) for i in range(3)]
    assert np.array_equal(np.concatenate([part.tokens for part in parts]), batch.tokens)
    assert [part.segments[1].start for part in parts] == [3, 4, 5]
    batch.check()


def test_heads_and_exact_answers_in_one_batch():
    exact, heads = list(pieces(1, 1, 1)), list(pieces(1, 1, 1, head=True))
    exact[0].header.rollouts = 2
    for piece in heads[1:]:
        name = piece.WhichOneof("piece")
        if name == "request":
            piece.request.id.index = 1
        if name == "delta":
            piece.delta.rollout.index = 1
    batch = read(chunks(iter(exact + heads[1:]))).check()
    assert batch.behavior.whole_vocabulary.tolist() == [False] * 10 + [True] * 10


def test_driven_mode(fake, client):
    plan = client.open_plan(groups=2, answers=3)
    assert len(plan.rollouts) == 6 and plan.headers(4) == {"X-Plan-ID": "1", "X-Rollout-ID": "p1.r4"}
    client.reward({rollout: 1.0 for rollout in plan.rollouts})
    batch = client.seal(plan)
    assert batch.ids == plan.rollouts and batch.rewards is None
    with pytest.raises(errors.NotANumber, match="6 rollouts have no reward yet"):
        batch.advantages()
    with pytest.raises(errors.LengthMismatch, match=r"rewards \(none for p1.r1\) has 1 values, not 6"):
        batch.with_rewards({plan.rollouts[0]: 1.0})
    mask = np.ones(len(batch.tokens), bool)
    mask[:3] = False
    client.report_consumed(plan, batch.consumed(mask))
    sent = fake.named("ReportConsumed")[0].rollouts
    assert [row.masked_in for row in sent] == [7, 11, 12, 10, 11, 12] and [
        row.tokens for row in sent
    ] == batch.lengths.tolist()
    with pytest.raises(errors.PlanMismatch, match="plan 1 has 6 rollouts, 5 were consumed"):
        client.report_consumed(plan, batch.consumed()[1:])


# Every metric that a report needs, and those it may have.
METRICS = {name: 0.25 for name in (*REPORTED, *(f"shape/{name}" for name in SHAPE), "clipped_share")}


def test_a_report_leaves_no_field_of_the_contract_empty(fake, client):
    before, after = WeightVersion(1, 4), WeightVersion(1, 5)
    ess = {before: EssReport(1.0, 0.4, 0.4, 24, 8, 64)}
    client.report_step(before, after, METRICS, ess, gradient_norm=1.0, tokens=64)

    def empty(message, path=""):
        filled = {field.name: value for field, value in message.ListFields()}
        for field in message.DESCRIPTOR.fields:
            inside = filled.get(field.name)
            if inside is None:
                yield path + field.name
            for one in [inside] if hasattr(inside, "DESCRIPTOR") else []:
                yield from empty(one, f"{path}{field.name}.")

    (sent,) = fake.named("ReportStep")
    assert list(empty(sent)) == []


def test_a_report_that_is_no_number_is_refused_and_counts_nothing(fake, client):
    next(client.batches())
    before, after = WeightVersion(1, 4), WeightVersion(1, 5)
    for value in (float("nan"), -0.5, 9.0):
        with pytest.raises(errors.NotANumber, match=r"horizon ESS of the answers drawn at e1.s4 in the step from e1.s4 to e1.s5 is"):
            client.report_step(before, after, METRICS, {before: EssReport(1.0, 0.4, value, 24, 8, 64)}, gradient_norm=1.0, tokens=64)
    with pytest.raises(errors.WrongDtype, match="gradient_norm of the step .* has dtype NoneType"):
        client.report_step(before, after, METRICS, {}, gradient_norm=None, tokens=64)
    assert not fake.named("ReportConsumed"), "a refused report trains on nothing"


def test_a_closed_client_says_so(fake):
    client = lockstep.connect(fake.address)
    client.close()
    for call in (client.describe, lambda: client.open_plan(1, 1), lambda: next(client.batches())):
        with pytest.raises(errors.Refused, match=f"this client of {fake.address} is closed"):
            call()

    async def run():
        client = aio.connect(fake.address)
        await client.close()
        for call in (client.describe, lambda: client.open_plan(1, 1)):
            with pytest.raises(errors.Refused, match=f"this client of {fake.address} is closed"):
                await call()

    asyncio.run(run())


def test_what_is_no_reward_is_named(client):
    for rewards, said in [
        ({"p0.r0": 1.0}, "rollout 'p0.r0' has dtype str, not a RolloutId"),
        ({RolloutId(9, 0): None}, "reward of rollout p9.r0 has dtype NoneType, not a number"),
        ({RolloutId(9, 0): "1"}, "reward of rollout p9.r0 has dtype str, not a number"),
    ]:
        with pytest.raises(errors.WrongDtype, match=said):
            client.reward(rewards)


def test_a_micro_batch_has_rollouts_of_its_batch(client):
    batch = next(client.batches())
    with pytest.raises(errors.LengthMismatch, match="rollouts of a micro-batch has 0 values, not at least 1"):
        batch.split(0)
    with pytest.raises(errors.LengthMismatch, match="has 0 values"):
        batch.take([])
    for outside in (-1, 4):
        with pytest.raises(errors.PlanMismatch, match=f"rollout {outside} of a batch of 4"):
            batch.take([outside])


def test_a_mask_must_be_one_of_the_batch(client):
    batch = next(client.batches())
    with pytest.raises(errors.LengthMismatch, match="mask has 3 values, not 43"):
        batch.consumed(np.ones(3, bool))
    with pytest.raises(errors.WrongDtype, match="mask"):
        batch.consumed(np.full(43, 0.9))


def test_a_report_without_a_metric_is_refused_by_name(fake, client):
    before, after = WeightVersion(1, 4), WeightVersion(1, 5)
    for lacking in REPORTED:
        metrics = {name: value for name, value in METRICS.items() if name != lacking}
        with pytest.raises(errors.MissingMetric, match=f"lacks 1 of 25 metrics, the first is {lacking}:"):
            client.report_step(before, after, metrics, {}, gradient_norm=1.0, tokens=64)


def test_a_report_says_whether_to_synchronise(fake, client):
    before, after = WeightVersion(1, 4), WeightVersion(1, 5)
    ess = {before: EssReport(1.0, 0.4, 0.4, 24, 8, 64)}
    decision = client.report_step(before, after, METRICS, ess, gradient_norm=1.0, tokens=64)
    assert decision == lockstep.Decision(True, "horizon", pytest.approx(0.4), 0.5)
    stamp = client.synchronise(after, "/weights/5", b"\x02" * 32)
    assert stamp.version == after and stamp.evidence == "digest:" + "01" * 32
    assert fake.named("Synchronise")[0].digest == b"\x02" * 32
    with pytest.raises(errors.NotANumber, match="loss of the step from e1.s4 to e1.s5 is not finite"):
        client.report_step(before, after, {**METRICS, "loss": float("nan")}, ess, gradient_norm=1.0, tokens=64)


def test_a_lost_batch_is_asked_for_again(fake, client):
    fake.cut = 1
    batch = next(client.batches())
    assert len(batch) == 4 and len(fake.named("NextBatch")) == 2


def test_a_call_that_must_not_be_made_twice_is_not(fake, client):
    fake.fault = ("OpenPlan", grpc.StatusCode.UNAVAILABLE, "gone")
    with pytest.raises(errors.Disconnected, match="open_plan: the middleware did not answer"):
        client.open_plan(1, 1)
    assert len(fake.named("OpenPlan")) == 1


def test_a_middleware_that_comes_back_is_found(fake):
    first, address = serve(Fake())
    first.stop(None).wait()
    with lockstep.connect(address, patience=30.0) as client:
        server, _ = serve(fake, int(address.rsplit(":", 1)[1]))
        assert client.describe().lockstep_version == "0.1.0"
        server.stop(None)


def test_patience_ends():
    with lockstep.connect("127.0.0.1:1", patience=0.0) as client:
        with pytest.raises(errors.Disconnected, match="describe: the middleware did not answer"):
            client.describe()


def test_the_lease_is_kept_alive_from_the_first_batch_on(fake, client):
    client.describe()
    assert not fake.named("Heartbeat")
    next(client.batches())
    assert fake.beats.acquire(timeout=20) and fake.beats.acquire(timeout=20)
    assert fake.named("Heartbeat")[0].consumer == "me"


def test_a_refused_heartbeat_is_kept(fake, client):
    fake.fault = ("Heartbeat", grpc.StatusCode.NOT_FOUND, "consumer me has no lease")
    next(client.batches())
    client._heart.join(timeout=20)
    assert isinstance(client.refused, errors.Refused) and "consumer me has no lease" in str(client.refused)


def test_a_refusal_carries_the_middlewares_words(fake, client):
    fake.fault = ("Reward", grpc.StatusCode.INVALID_ARGUMENT, "rollout p1.r0 has reward 1, not 2")
    with pytest.raises(errors.Refused, match="reward: invalid_argument: rollout p1.r0 has reward 1, not 2"):
        client.reward({RolloutId(1, 0): 2.0})
    with pytest.raises(errors.NotANumber, match="reward nan of rollout p1.r0"):
        client.reward({RolloutId(1, 0): float("nan")})


def test_driven_middlewares_have_no_batches(fake, client):
    fake.pull = False
    with pytest.raises(errors.Refused, match="open plans instead"):
        next(client.batches())


def test_asyncio_does_the_same(fake):
    async def run():
        async with aio.connect(fake.address, consumer="me", patience=5.0) as client:
            fake.cut = 1
            batches = [batch async for batch in client.batches()]
            plan = await client.open_plan(1, 2)
            await client.reward({rollout: 0.5 for rollout in plan.rollouts})
            sealed = await client.seal(plan)
            await client.report_consumed(plan, sealed.consumed())
            ess = {WeightVersion(1, 4): EssReport(1.0, 0.4, 0.4, 24, 8, 64)}
            decision = await client.report_step(
                WeightVersion(1, 4), WeightVersion(1, 5), METRICS, ess, gradient_norm=1.0, tokens=64
            )
            stamp = await client.synchronise(WeightVersion(1, 5), "/weights/5")
            with pytest.raises(errors.PlanMismatch):
                await client.report_consumed(plan, [Consumed(plan.rollouts[0], 1, 1)])
            return batches, sealed, decision, stamp

    batches, sealed, decision, stamp = asyncio.run(run())
    assert len(batches) == 2 and len(sealed) == 2 and decision.resynchronise and stamp.version.step == 5


def corrupt(change):
    sent = list(pieces(3, 1, 2))
    change(sent)
    return lambda: read(chunks(iter(sent)))


def ragged(sent):
    sent[2].delta.behavior.tokens += b"\x00"


def short(sent):
    sent[2].delta.behavior.log_q = sent[2].delta.behavior.log_q[:-4]


WRONG = {
    "no header": (errors.WireError, "does not begin with its header", lambda sent: sent.pop(0)),
    "two headers": (errors.WireError, "two headers", lambda sent: sent.insert(1, sent[0])),
    "rollouts": (
        errors.WireError,
        "a batch of 5 rollouts came with 2",
        lambda sent: setattr(sent[0].header, "rollouts", 5),
    ),
    "gap": (errors.WireError, "rollout p3.r0: a delta starts at 5, not at 0", lambda sent: sent.pop(2)),
    "unfinished": (errors.WireError, "rollout p3.r0 has 5 tokens and no finish", lambda sent: sent.pop(3)),
    "ragged": (errors.WireError, "column tokens has 21 bytes, not a multiple of 4", ragged),
    "short": (errors.LengthMismatch, "column log_q has", short),
    "profile": (
        errors.WireError,
        "profile 4 of a delta is not among the 1 sent before",
        lambda sent: setattr(sent[2].delta, "profile", 4),
    ),
    "reward": (errors.LengthMismatch, "rewards has 1 values, not 2", lambda sent: sent.pop(4)),
    "kv": (errors.WireError, "kv history is 0", lambda sent: setattr(sent[2].delta, "kv", 0)),
}


@pytest.mark.parametrize("name", WRONG)
def test_messages_that_make_no_batch_are_named(name):
    error, message, change = WRONG[name]
    with pytest.raises(error, match=message):
        corrupt(change)()


def test_undeclared_versions_are_not_version_0():
    sent = list(pieces(3, 1, 1))
    sent[2].delta.stamp.CopyFrom(pb.Stamp())
    with pytest.raises(errors.UnknownVersion, match="rollout p3.r0, token 0: the sampler declared no version"):
        _ = read(chunks(iter(sent))).versions
