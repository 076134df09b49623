"""The autograd function: every kind of support, chunks, bf16, shards, wrong use."""

import numpy as np
import pytest
import torch
from mixed import RULE_NAMES, mixed, rules
from torch.autograd.gradcheck import GradcheckError
from torch.multiprocessing import spawn

from lockstep import Behavior, SupportLogProbs, errors
from lockstep import reference as ref
from lockstep import torch as lt
from lockstep.calls import REPORTED
from lockstep.rules import shape

T, V, H = 12, 30, 7


def problem(kinds="esph", seed=0):
    theta, s, behavior = mixed(T, V, seed, kinds)
    advantages = np.random.default_rng(seed + 1).normal(size=T)
    return theta, s, behavior, advantages, np.repeat([0, 1, 2], 4)


def run(make, theta, s, behavior, advantages, rule, sequence, **options):
    z = torch.tensor(theta, requires_grad=True)
    out = lt.loss(
        make(z),
        behavior,
        torch.tensor(advantages),
        rule,
        temperature=0.7,
        sampler=make(torch.tensor(s)),
        sequence=sequence,
        reduction="sum",
        **options,
    )
    out.loss.backward()
    return out, z.grad.numpy()


@pytest.mark.parametrize("name", RULE_NAMES)
@pytest.mark.parametrize(
    "make", [lt.Logits, lambda z: lt.Projection(z, torch.eye(V, dtype=z.dtype))], ids=["logits", "hidden"]
)
def test_torch_and_numpy_agree_on_mixed_supports(name, make):
    theta, s, behavior, advantages, sequence = problem()
    want = ref.loss(theta, behavior, advantages, rules(ref)[name], temperature=0.7, sampler_logits=s, sequence=sequence)
    for chunk in (1, 1 << 20):
        out, gradient = run(make, theta, s, behavior, advantages, rules(lt)[name], sequence, chunk_bytes=chunk)
        np.testing.assert_allclose(out.per_token.numpy(), want.per_token, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(gradient, want.gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kinds", ["e", "h", "p", "esph"])
def test_gradcheck_with_frozen_coefficients(kinds):
    theta, s, behavior, advantages, sequence = problem(kinds)
    first = ref.loss(theta, behavior, advantages, ref.form_a(), temperature=0.7, sampler_logits=s)
    hidden = torch.randn(T, H, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    weight = torch.randn(V, H, dtype=torch.float64, generator=torch.Generator().manual_seed(2), requires_grad=True)
    bias = torch.randn(V, dtype=torch.float64, generator=torch.Generator().manual_seed(3), requires_grad=True)
    frozen = lt.Fixed(torch.tensor(first.correction.w), torch.tensor(first.correction.c))
    options = {"temperature": 0.7, "sequence": sequence, "chunk_bytes": 700}

    def of_hidden(hidden, weight, bias):
        return lt.loss(lt.Projection(hidden, weight, bias), behavior, torch.tensor(advantages), frozen, **options).loss

    def of_logits(z):
        return lt.loss(z, behavior, torch.tensor(advantages), frozen, **options).loss

    assert torch.autograd.gradcheck(of_hidden, (hidden, weight, bias))
    assert torch.autograd.gradcheck(of_logits, (torch.tensor(theta, requires_grad=True),))


def test_gradcheck_sees_a_wrong_gradient():
    """Differentiating through w is another estimator: unfrozen coefficients must not pass."""
    theta, s, behavior, advantages, _ = problem("e")

    def unfrozen(z):
        return lt.dlc_loss(z, behavior, torch.tensor(advantages), temperature=0.7, sampler=torch.tensor(s)).loss

    with pytest.raises(GradcheckError):
        torch.autograd.gradcheck(unfrozen, (torch.tensor(theta, requires_grad=True),))


def test_log_s_and_a_sampler_give_the_same_loss():
    theta, s, behavior, advantages, sequence = problem("esp")
    log_s = lt.support_logprobs(torch.tensor(s), behavior, 0.7, chunk_bytes=1)
    want, gradient = run(lt.Logits, theta, s, behavior, advantages, lt.form_a(), sequence)
    z = torch.tensor(theta, requires_grad=True)
    out = lt.dlc_loss(
        z, behavior, torch.tensor(advantages), temperature=0.7, log_s=log_s, sequence=sequence, reduction="sum"
    )
    out.loss.backward()
    np.testing.assert_allclose(z.grad.numpy(), gradient, rtol=1e-12, atol=1e-14)
    assert torch.equal(out.per_token, want.per_token)


def test_scores_match_the_reference():
    theta, _, behavior, _, _ = problem()
    want, found = (
        ref.support_logprobs(theta, behavior, 0.7),
        lt.support_logprobs(torch.tensor(theta), behavior, 0.7, chunk_bytes=1),
    )
    for name in ("log_p", "log_p_sampled"):
        np.testing.assert_allclose(getattr(found, name).numpy(), getattr(want, name), rtol=1e-12, atol=1e-14)
    finite = np.isfinite(behavior.rest.log_rest)
    np.testing.assert_allclose(found.log_rest.numpy()[finite], want.log_rest[finite], rtol=1e-12)


def test_lag_is_exactly_zero_at_equal_weights():
    theta, _, behavior, advantages, sequence = problem()
    out, _ = run(lt.Logits, theta, theta, behavior, advantages, lt.form_a(), sequence)
    assert torch.equal(torch.as_tensor(out.rows.log_ratio("lag")), torch.zeros(T, dtype=torch.float64))
    assert out.ess().horizon == 1.0


def test_masked_positions_are_not_looked_at():
    theta, s, behavior, advantages, sequence = problem("esp")
    keep = np.arange(T) % 3 != 1
    poisoned = theta.copy()
    poisoned[~keep] = np.nan
    out, gradient = run(lt.Logits, poisoned, s, behavior, advantages, lt.form_a(), sequence, mask=keep)
    want, clean = run(lt.Logits, theta, s, behavior, advantages, lt.form_a(), sequence, mask=keep)
    assert torch.equal(out.loss, want.loss) and np.array_equal(gradient, clean) and not gradient[~keep].any()


def test_a_bf16_model_has_an_f32_head():
    theta, s, behavior, advantages, sequence = problem()
    generator = torch.Generator().manual_seed(4)
    hidden, weight = (torch.randn(*shape, generator=generator).bfloat16() for shape in ((T, H), (V, H)))
    h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
    options = {"temperature": 0.7, "sequence": sequence}
    half = lt.dlc_loss(
        lt.Projection(h, w), behavior, torch.tensor(advantages), sampler=lt.Projection(hidden, weight), **options
    )
    half.loss.backward()
    h64, w64 = hidden.double().requires_grad_(), weight.double().requires_grad_()
    full = lt.dlc_loss(
        lt.Projection(h64, w64),
        behavior,
        torch.tensor(advantages),
        sampler=lt.Projection(h64.detach(), w64.detach()),
        **options,
    )
    full.loss.backward()
    assert half.loss.dtype == torch.float32 and h.grad.dtype == torch.bfloat16
    assert abs(half.loss.item() - full.loss.item()) < 1e-6
    assert (h.grad.double() - h64.grad).abs().max() < 4e-3 * h64.grad.abs().max()
    assert (w.grad.double() - w64.grad).abs().max() < 4e-3 * w64.grad.abs().max()


def _shard_worker(rank, path, ranks, name):
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}/rendezvous", rank=rank, world_size=ranks)
    theta, s, behavior, advantages, sequence = problem()
    size = V // ranks
    part = slice(rank * size, (rank + 1) * size)
    shard = lt.process_shard(size)
    hidden = torch.tensor(theta, requires_grad=True)
    weight = torch.eye(V, dtype=torch.float64)[part].clone().requires_grad_()
    sampler = lt.Projection(torch.tensor(s), weight.detach())
    options = {"temperature": 0.7, "sequence": sequence, "shard": shard, "reduction": "sum", "chunk_bytes": 256}
    out = lt.loss(
        lt.Projection(hidden, weight), behavior, torch.tensor(advantages), rules(lt)[name], sampler=sampler, **options
    )
    out.loss.backward()
    logits = torch.tensor(theta[:, part], requires_grad=True)
    again = lt.loss(
        logits, behavior, torch.tensor(advantages), rules(lt)[name], sampler=torch.tensor(s[:, part]), **options
    )
    again.loss.backward()
    torch.save((out.per_token, hidden.grad, weight.grad, logits.grad, again.per_token), f"{path}/{name}{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("name", ["dlc_a", "sc_tis", "gspo"])
def test_shards_of_the_vocabulary_on_two_processes(name, tmp_path):
    spawn(_shard_worker, (str(tmp_path), 2, name), nprocs=2)
    theta, s, behavior, advantages, sequence = problem()
    want = ref.loss(theta, behavior, advantages, rules(ref)[name], temperature=0.7, sampler_logits=s, sequence=sequence)
    for rank in range(2):
        part = slice(rank * V // 2, (rank + 1) * V // 2)
        per_token, hidden, weight, logits, again = (x.numpy() for x in torch.load(tmp_path / f"{name}{rank}.pt"))
        np.testing.assert_allclose(per_token, want.per_token, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(again, want.per_token, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(hidden, want.gradient, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(logits, want.gradient[:, part], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(weight, (want.gradient.T @ theta)[part], rtol=1e-10, atol=1e-11)


def _unequal_worker(rank, path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}/rendezvous", rank=rank, world_size=2)
    with pytest.raises(errors.LengthMismatch, match=rf"rank {rank} of 2 has {5 + rank} values, not that of the others, \[5, 6\]"):
        lt.process_shard(5 + rank)
    torch.distributed.destroy_process_group()


def test_parts_of_different_sizes_are_refused_on_every_rank(tmp_path):
    spawn(_unequal_worker, (str(tmp_path),), nprocs=2)


def wrong(change):
    theta, s, behavior, advantages, sequence = problem()
    given = {
        "source": torch.tensor(theta),
        "behavior": behavior,
        "advantages": torch.tensor(advantages),
        "temperature": 0.7,
        "sampler": torch.tensor(s),
        "sequence": sequence,
    }
    given.update(change(given))
    return lambda: lt.dlc_loss(given.pop("source"), given.pop("behavior"), given.pop("advantages"), **given)


def nan_row(given):
    given["source"][4, :] = float("nan")
    return {}


def bad_q(given):
    b = given["behavior"]
    return {"behavior": Behavior(b.tokens, b.offsets, b.ids, b.log_q, b.rest, 1.0)}


WRONG = {
    "lengths": (errors.LengthMismatch, "rows of logits has 11 values, not 12", lambda g: {"source": g["source"][1:]}),
    "advantages": (
        errors.LengthMismatch,
        "advantages has (3,) values, not (12,)",
        lambda g: {"advantages": torch.ones(3)},
    ),
    "integer advantages": (
        errors.WrongDtype,
        "advantages has dtype torch.int64, not a floating type",
        lambda g: {"advantages": torch.ones(12, dtype=torch.long)},
    ),
    "integer logits": (
        errors.WrongDtype,
        "logits has dtype torch.int64, not a floating type",
        lambda g: {"source": g["source"].long()},
    ),
    "temperature": (
        errors.TemperatureMismatch,
        "temperature 1.0, but the sampler drew at 0.7",
        lambda g: {"temperature": 1.0},
    ),
    "greedy": (
        errors.InvalidTemperature,
        "temperature 0.0 is not a finite number above 0",
        lambda g: {"temperature": 0.0},
    ),
    "recorded temperature": (errors.TemperatureMismatch, "temperature 0.7, but the sampler drew at 1.0", bad_q),
    "no p_s": (
        errors.MissingScores,
        "Dlc needs log p_s of 12 positions and was given none",
        lambda g: {"sampler": None},
    ),
    "nan logits": (errors.NotANumber, "the logits of position 4 have no finite normaliser", nan_row),
    "nan advantage": (
        errors.NotANumber,
        "advantage nan at index 2 of 12 is not finite",
        lambda g: {"advantages": torch.tensor([1.0, 1, np.nan] + [1.0] * 9)},
    ),
    "small vocabulary": (
        errors.OutsideVocabulary,
        "is outside the trainer's vocabulary of 4",
        lambda g: {"source": g["source"][:, :4], "sampler": g["sampler"][:, :4]},
    ),
    "nothing active": (
        errors.LengthMismatch,
        "active positions has 0 values",
        lambda g: {"mask": torch.zeros(12, dtype=torch.bool)},
    ),
    "scores of another batch": (
        errors.LengthMismatch,
        "log_p has 3 values",
        lambda g: {"sampler": None, "log_s": SupportLogProbs(torch.zeros(3), torch.zeros(12), None)},
    ),
    "no tail on p_s": (
        errors.MissingScores,
        "whole distribution at the sampler's weights",
        lambda g: {"sampler": None, "log_s": lt.support_logprobs(g["sampler"], g["behavior"], 0.7)},
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_use_is_named_with_numbers(name):
    error, message, change = WRONG[name]
    with pytest.raises(error) as raised:
        wrong(change)()
    assert message in str(raised.value)


def test_the_control_of_wrong_use_is_right():
    assert torch.isfinite(wrong(lambda given: {})().loss)


def test_metrics_are_raw_and_apart():
    theta, s, behavior, advantages, sequence = problem()
    out, _ = run(lt.Logits, theta, s, behavior, advantages, lt.form_a(lt.LagClip(0.9, 1.1)), sequence)
    metrics = out.metrics()
    lag = np.asarray(out.rows.log_ratio("lag"))
    assert metrics["lag/max_abs"] == np.abs(lag).max() > np.log(1.1)
    assert metrics["clipped_share"] > 0 and {"numeric/kl", "ess/horizon", "ess/token"} <= set(metrics)


@pytest.mark.parametrize("make", [lt.Logits, lambda z: lt.Projection(z, torch.eye(V, dtype=z.dtype))], ids=["logits", "hidden"])
def test_a_scaled_loss_keeps_what_f16_alone_would_lose(make):
    theta, s, behavior, advantages, sequence = problem()

    def gradient(dtype, scale):
        z = torch.tensor(theta, dtype=dtype, requires_grad=True)
        options = {"temperature": 0.7, "sampler": make(torch.tensor(s, dtype=dtype)), "sequence": sequence}
        k = np.full(T, 1e-6, np.float32)
        out = lt.loss(make(z), behavior, torch.tensor(advantages, dtype=torch.float32), lt.form_a(), coefficients=k, **options)
        (out.loss * scale).backward()
        return z.grad.double() / scale

    exact, scale = gradient(torch.float32, 1.0), 65536.0
    off = lambda scale: float((gradient(torch.float16, scale) - exact).norm() / exact.norm())  # noqa: E731
    assert off(scale) < 5e-3 < off(1.0)


def test_what_cannot_be_is_refused_whoever_built_it():
    theta, s, behavior, advantages, sequence = problem("e")
    good = {"ids": behavior.ids, "log_q": behavior.log_q, "tokens": behavior.tokens}
    wrong = [
        ("ids", np.full_like(behavior.ids, behavior.ids[0]), errors.SupportError),
        ("log_q", behavior.log_q + 0.5, errors.LockstepError),
        ("tokens", np.full_like(behavior.tokens, V - 1), errors.SupportError),
    ]
    for name, value, error in wrong:
        columns = {**good, name: value}
        bad = Behavior(columns["tokens"], behavior.offsets, columns["ids"], columns["log_q"], None, behavior.temperature)
        with pytest.raises(error):
            run(lt.Logits, theta, s, bad, advantages, lt.form_a(), sequence)
    with pytest.raises(errors.NotANumber, match="coefficient nan"):
        coefficients = np.full(T, np.nan, np.float32)
        run(lt.Logits, theta, s, behavior, advantages, lt.form_a(), sequence, coefficients=coefficients)
    with pytest.raises(errors.NotALogProb, match="log_p of"):
        SupportLogProbs(np.full(len(behavior.ids), 0.5), np.full(T, -1.0), None).check(behavior)


def test_metrics_of_nothing_or_of_a_mixture_are_refused():
    theta, s, behavior, advantages, sequence = problem("e")
    scored, _ = run(lt.Logits, theta, s, behavior, advantages, lt.form_a(), sequence)
    z = torch.tensor(theta)
    bare = lt.loss(z, behavior, torch.tensor(advantages), lt.ScoreCentring(), temperature=0.7, sequence=sequence)
    with pytest.raises(errors.LengthMismatch, match="micro-batches has 0 values"):
        lt.combined([])
    with pytest.raises(errors.MissingScores, match="1 of 2 micro-batches know log p_s"):
        lt.combined([scored, bare])
    assert "full/mean" in lt.combined([bare, bare]) and "lag/mean" not in lt.combined([bare, bare])


def test_metrics_of_micro_batches_are_those_of_their_tokens_together():
    def part(tokens, seed):
        theta, s, behavior = mixed(tokens, V, seed, "esph")
        advantages = np.random.default_rng(seed).normal(size=tokens)
        return run(lt.Logits, theta, s, behavior, advantages, lt.form_a(), np.arange(tokens) // 4)[0]

    parts = [part(tokens, seed) for seed, tokens in enumerate((120, 8))]
    assert "shape/numeric_pareto_k" in parts[0].metrics() and "shape/numeric_pareto_k" not in parts[1].metrics()
    for order in (parts, parts[::-1]):
        metrics = lt.combined(order)
        assert set(REPORTED) <= set(metrics)
        ratios = ("lag", "numeric")
        logs = {name: np.concatenate([np.asarray(one.rows.log_ratio(name)) for one in order]) for name in ratios}
        first, second = (one.rows for one in order)
        sequence = np.concatenate([np.asarray(first.sequence), np.asarray(second.sequence) + first.sequences])
        for name, value in shape(logs["lag"], sequence, logs["numeric"], 24).items():
            assert metrics[f"shape/{name}"] == value
        for term, x in {**logs, "full": logs["lag"] + logs["numeric"]}.items():
            wanted = {"mean": x.mean(), "mean_abs": np.abs(x).mean(), "k2": (x * x).mean() / 2, "max_abs": np.abs(x).max()}
            wanted |= {"k3": (np.exp(x) - 1 - x).mean(), "chi2": (np.exp(2 * x) - 1).mean()}
            for name, value in wanted.items():
                assert metrics[f"{term}/{name}"] == pytest.approx(value, abs=1e-12)
