"""Snapshots by version, and the probe over the wire."""

import grpc
import models
import numpy as np
import pytest
import torch
from fake import chunks, pieces

from lockstep import WeightVersion, errors, probe
from lockstep import torch as lt
from lockstep.batch import BatchReader
from lockstep.snapshots import SnapshotStore
from lockstep.wire import lockstep_pb2 as pb
from lockstep.wire.lockstep_pb2_grpc import TrainerStub

V3, V4, V5 = (WeightVersion(1, step) for step in (3, 4, 5))


def batch_of(**options):
    reader = BatchReader()
    for chunk in chunks(pieces(9, 2, 2, **options)):
        reader.push(chunk)
    return reader.finish()


def moved(model, by=0.1):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(by * torch.randn_like(parameter))


def kept():
    model = models.Causal()
    store = SnapshotStore(model, rollouts=3)
    for version in (V3, V4):
        store.keep(version)
        moved(model)
    return model, store


def test_each_token_is_scored_under_the_weights_that_drew_it():
    model, store = kept()
    batch = batch_of()
    log_s = store.log_s(batch)
    for version in (V3, V4):
        alone, rows = store.score(batch, version), batch.rows_at(version)
        assert torch.equal(log_s.log_p_sampled[rows], alone.log_p_sampled[rows])
    assert not torch.equal(log_s.log_p_sampled, store.score(batch, V3).log_p_sampled)
    theta = lt.support_logprobs(lt.source(model, batch), batch.behavior, 0.7)
    assert not torch.equal(theta.log_p_sampled, log_s.log_p_sampled)


def test_lag_is_exactly_zero_at_equal_versions():
    model, store = kept()
    store.keep(V5)
    batch = batch_of(steps=(5,))
    out = lt.batch_loss(model, batch, store=store)
    with pytest.raises(errors.LengthMismatch, match="take advantages from the whole batch"):
        batch.split(3)[0].advantages()
    small = [part for part in batch.split(store.rollouts)]
    lag = torch.cat(
        [
            lt.batch_loss(model, part, store=store, advantages=np.ones(len(part.tokens))).rows.log_ratio("lag")
            for part in small
        ]
    )
    assert torch.equal(lag, torch.zeros_like(lag)) and abs(float(out.rows.log_ratio("lag").abs().max())) < 1e-6


def test_the_model_is_left_as_it_was():
    model, store = kept()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.train()
    store.score(batch_of(), V3)
    assert model.training and all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_references_are_counted():
    _, store = kept()
    store.hold(V3)
    store.hold(V3)
    store.retain([])
    assert store.live == (V3,)
    store.release(V3)
    assert store.live == (V3,)
    store.release(V3)
    assert store.live == ()
    with pytest.raises(errors.UnknownVersion, match="version e1.s3 is not held"):
        store.release(V3)


def test_what_cannot_be_scored_is_refused_by_name():
    model, store = kept()
    batch = batch_of()
    with pytest.raises(errors.UnknownVersion, match=r"version e1.s5 is not among the 2 that are kept \(e1.s3, e1.s4\)"):
        store.score(batch, V5)
    with pytest.raises(errors.NoSnapshots, match="Dlc needs p_s"):
        lt.batch_loss(model, batch)
    with pytest.raises(errors.NoSnapshots, match="no weights were kept"):
        lt.batch_loss(model, batch, store=SnapshotStore(model))
    with pytest.raises(errors.NotSupported, match="version e1.s3 is kept already"):
        store.keep(V3)
    dropping = torch.nn.Sequential(model, torch.nn.Dropout(0.1))
    with pytest.raises(errors.NotSupported, match="module 1 drops out at 0.1"):
        lt.batch_loss(dropping, batch, store=store)
    assert torch.isfinite(lt.batch_loss(model, batch, lt.ScoreCentring()).loss)


def test_micro_batches_add_up_to_the_batch():
    model, store = kept()
    batch = batch_of()
    whole = lt.batch_loss(model, batch, store=store)
    parts = [
        lt.batch_loss(model, part, store=store, totals=batch.totals, advantages=advantages)
        for part, advantages in zip(batch.split(3), np.split(batch.advantages(), [int(batch.starts[3])]))
    ]
    assert abs(whole.loss.item() - sum(part.loss.item() for part in parts)) < 1e-6


def test_a_tail_on_p_s_takes_the_head_of_then():
    model, store = kept()
    batch = batch_of(head=True, steps=(3,))
    out = lt.batch_loss(model, batch, store=store)
    collapsed = lt.batch_loss(model, batch, lt.form_a(tail="collapsed"), store=store)
    assert torch.isfinite(out.loss) and not torch.equal(out.loss, collapsed.loss)


def test_a_tail_on_p_s_takes_the_head_of_each_version_that_drew():
    model, store = kept()
    batch = batch_of(head=True)
    assert len(batch.versions) == 2
    model.zero_grad()
    whole = lt.batch_loss(model, batch, store=store)
    whole.loss.backward()
    got = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    share = np.full(len(batch.tokens), 1 / len(batch.tokens), np.float32)
    for version in batch.versions:
        options = {"mask": torch.from_numpy(batch.rows_at(version)), "coefficients": share, "sequence": batch.sequence}
        sampler = lt.source(model, batch, store.load(version))
        advantages = torch.from_numpy(np.asarray(batch.advantages(), np.float32))
        one = lt.loss(
            lt.source(model, batch),
            batch.behavior,
            advantages,
            lt.form_a(),
            temperature=0.7,
            sampler=sampler,
            **options,
        )
        one.loss.backward()
    for a, p in zip(got, model.parameters()):
        assert torch.allclose(a, p.grad, atol=1e-6)


@pytest.fixture
def served(tmp_path):
    model, optimizer = models.make()
    one = probe.Probe(model, optimizer, out=tmp_path, epoch=1)
    server, port = probe.serve(one)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield one, TrainerStub(channel)
    server.stop(None)


def sent(version=None, options=None, log_s=None, **how):
    out = list(pieces(9, 2, 2, steps=(0,), **how))
    if version is not None:
        out[0].header.version.CopyFrom(version.message())
    if options is not None:
        out[0].header.options.CopyFrom(options)
    if log_s is not None:
        out = [piece for index, scores in enumerate(log_s) for piece in with_scores(out, index, scores)]
        out = [out[0]] + [piece for piece in out[1:] if piece.WhichOneof("piece") != "header"]
    return chunks(iter(out))


def with_scores(out, index, scores):
    starts = [i for i, piece in enumerate(out) if piece.WhichOneof("piece") == "request"] + [len(out)]
    own = out[starts[index] : starts[index + 1]]
    own.insert(len(own) - 1, pb.BatchPiece(scores=scores))
    return [out[0], *own] if index == 0 else own


def test_scores_over_the_wire_are_those_of_the_store(served):
    one, stub = served
    assert stub.Describe(pb.Empty()) == pb.TrainerDescription(
        version=one.version.message(), live=[one.version.message()], snapshots=True
    )
    scores = [s for chunk in stub.Score(sent(one.version)) for s in chunk.scores]
    assert [(s.rollout, s.segment) for s in scores] == [(0, 0), (1, 0), (2, 0), (3, 0)]
    want = one.store.score(batch_of(steps=(0,)), one.version)
    assert b"".join(s.log_p for s in scores) == want.log_p.numpy().tobytes()
    assert b"".join(s.log_p_sampled for s in scores) == want.log_p_sampled.numpy().tobytes()
    with pytest.raises(grpc.RpcError) as raised:
        list(stub.Score(sent(V5)))
    assert raised.value.code() == grpc.StatusCode.NOT_FOUND and "version e1.s5 is not among" in raised.value.details()


def test_gradients_over_the_wire_follow_the_formula(served):
    one, stub = served
    tokens, support, w, c, t = [5, 6, 7, 8], [8, 1, 2], 1.3, [0.4, 0.3, 0.1], 0.7
    asked = pb.ProbeLoss(
        tokens=np.array(tokens, "<u4").tobytes(),
        position=3,
        support=np.array(support, "<u4").tobytes(),
        w=w,
        c=c,
        temperature=t,
    )
    found = np.array(stub.Gradient(asked).gradient)
    ids = torch.tensor([tokens[:3]])
    hidden, weight, _ = lt.projected(one.model, ids, torch.ones_like(ids))
    p = torch.softmax((hidden[0, -1] @ weight.T)[support] / t, 0).detach().double().numpy()
    want = -(w * np.array([1, 0, 0]) - np.array(c) - (w - sum(c)) * p) / t
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-7)
    with pytest.raises(grpc.RpcError) as raised:
        stub.Gradient(
            pb.ProbeLoss(
                tokens=asked.tokens, position=3, support=np.array([1, 2], "<u4").tobytes(), w=1, c=[0, 0], temperature=1
            )
        )
    assert "token 8 is outside its support (2 ids)" in raised.value.details()


def test_a_step_over_the_wire_moves_the_weights_and_reports(served):
    one, stub = served
    scores = [s for chunk in stub.Score(sent(one.version)) for s in chunk.scores]
    rule = pb.Rule(dlc=pb.Dlc(clip_low=0, clip_high=2, tail=pb.TAIL_MODEL_SAMPLER_WEIGHTS))
    report = stub.Step(sent(options=pb.StepOptions(rule=rule, horizon=24), log_s=scores))
    assert (report.before, report.after) == (WeightVersion(1, 0).message(), WeightVersion(1, 1).message())
    assert report.gradient_norm > 0 and report.lag.max_abs < 1e-6 and report.ess[0].token == pytest.approx(1.0)
    again = stub.Step(sent(options=pb.StepOptions(rule=rule, horizon=24), log_s=scores))
    assert (
        again.lag.max_abs > 1e-3 and again.ess[0].drawn_at == WeightVersion(1, 0).message() and again.ess[0].horizon < 1
    )
    stub.Retain(pb.WeightVersions())
    assert one.store.live == (WeightVersion(1, 2),)
    from safetensors.torch import load_file

    published = stub.Publish(one.version.message())
    held = load_file(published.path)
    assert published.path.endswith("e1.s2.safetensors") and torch.equal(
        held["lm_head.weight"], one.model.lm_head.weight
    )
    assert (
        published.digest == probe.digest(held) != probe.digest({**held, "lm_head.weight": held["lm_head.weight"] + 1})
    )


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("absent:make", "absent:make: No module named 'absent'"),
        ("models:absent", "models:absent: module 'models' has no attribute 'absent'"),
        ("math:gcd", "math:gcd gave int, not a model"),
    ],
)
def test_a_model_that_is_none_is_named(model, said, capsys):
    with pytest.raises(SystemExit) as ended:
        probe.main(["--model", model])
    assert ended.value.code == 2 and said in capsys.readouterr().err
