"""Loss calls of each adapter with real tensors, and what each refuses."""

import sys
import types
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fake import chunks, pieces
from mixed import mixed

from lockstep import errors
from lockstep import torch as lt
from lockstep.batch import BatchReader
from lockstep.behavior import SupportLogProbs
from lockstep.frameworks import areal, prime_rl, slime, verl
from lockstep.frameworks.tokens import HeldSync, lag_clipped, rule_of


def batch_of(**options):
    reader = BatchReader()
    for chunk in chunks(pieces(9, 2, 2, **options)):
        reader.push(chunk)
    return reader.finish()


def tokens(count=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    log_theta = -torch.rand(count, generator=generator) * 3
    log_s = (log_theta + 0.4 * torch.randn(count, generator=generator)).clamp(max=-0.01)
    log_q = (log_s + 0.02 * torch.randn(count, generator=generator)).clamp(max=-0.01)
    return (
        log_theta.requires_grad_(),
        log_s,
        log_q,
        torch.randn(count, generator=generator),
        torch.tensor([1, 1, 0, 1, 1, 1]),
    )


def test_the_token_weight_is_the_clipped_lag():
    log_theta, log_s, log_q, advantages, mask = tokens()
    per_token, metrics = lag_clipped(log_theta, log_s, log_q, advantages, mask, rule_of(0.9, 1.1))
    w = torch.exp(log_theta.detach() - log_s).clip(0.9, 1.1)
    assert torch.allclose(per_token, torch.where(mask.bool(), -advantages * w * log_theta, torch.zeros(6)))
    (gradient,) = torch.autograd.grad(per_token.sum(), log_theta)
    assert torch.allclose(gradient, torch.where(mask.bool(), -advantages * w, torch.zeros(6)))
    assert metrics["lockstep/clipped_share"] > 0 and metrics["lockstep/lag/max_abs"] > 0.1


def test_centring_without_logits_is_refused():
    with pytest.raises(errors.NotSupported, match="centring needs the logits of every kept id"):
        lag_clipped(*tokens(), lt.form_a())
    log_theta, log_s, log_q, advantages, mask = tokens()
    with pytest.raises(errors.NotANumber, match="lag nan"):
        lag_clipped(log_theta, log_s.masked_fill(torch.arange(6) == 1, torch.nan), log_q, advantages, mask)
    with pytest.raises(errors.LengthMismatch, match=r"log_s has \(5,\) values, not \(6,\)"):
        lag_clipped(log_theta, log_s[1:], log_q, advantages, mask)


@pytest.mark.parametrize(
    "make", [lt.Logits, lambda z: lt.Projection(z, torch.eye(30, dtype=z.dtype))], ids=["logits", "hidden"]
)
def test_a_replaced_log_prob_op_turns_a_plain_loss_into_dlc(make):
    theta, s, behavior = mixed(12, 30)
    advantages = torch.linspace(-1, 1, 12, dtype=torch.float64)
    gradients = []
    for through_op in (True, False):
        z = torch.tensor(theta, requires_grad=True)
        options = {"temperature": 0.7, "sampler": make(torch.tensor(s))}
        if through_op:
            log_p = lt.centred_logprobs(make(z), behavior, **options)
            assert torch.allclose(log_p, lt.support_logprobs(make(z), behavior, 0.7).log_p_sampled)
            (-advantages * log_p).mean().backward()
        else:
            lt.dlc_loss(make(z), behavior, advantages, **options).loss.backward()
        gradients.append(z.grad)
    assert gradients[0].abs().max() > 1e-3 and torch.allclose(*gradients, rtol=1e-10, atol=1e-13)
    with pytest.raises(errors.NotSupported, match="Ppo: its coefficients need the advantages"):
        lt.centred_logprobs(
            make(torch.tensor(theta)), behavior, lt.Ppo(), temperature=0.7, sampler=make(torch.tensor(s))
        )


def test_a_held_sync_waits_until_it_is_released():
    calls = []
    held = HeldSync(calls.append)
    for step in range(4):
        if step == 3:
            held.release()
        held(step)
    assert calls == [0, 3] and held.held_back == 2 and held.passed == 2


GOOD_VERL = {
    "actor_rollout_ref": {
        "rollout": {"top_p": 1.0, "calculate_log_probs": True},
        "actor": {"policy_loss": {"loss_mode": "lockstep_dlc"}},
    },
    "algorithm": {},
}


def test_verl_refuses_its_filters():
    verl.check_config(GOOD_VERL)
    for change, message in [
        ({"algorithm": {"filter_groups": {"enable": True}}}, "drops groups by their rewards"),
        (
            {"actor_rollout_ref": {"rollout": {"top_p": 0.9, "calculate_log_probs": True, "over_sample_rate": 0.1}}},
            "aborts the slowest answers.*over the whole vocabulary",
        ),
    ]:
        with pytest.raises(errors.NotSupported, match=message):
            verl.check_config({**GOOD_VERL, **change})
    with pytest.raises(errors.NotSupported, match="the numeric term is centred"):
        verl.policy_loss(None, None, None, None, rollout_is_weights=torch.ones(1))


def test_verl_rows_carry_p_s_and_q(monkeypatch):
    batch = batch_of()
    width = int(batch.lengths.max())
    data = {
        "responses": torch.zeros(len(batch), width, dtype=torch.long),
        "response_mask": torch.zeros(len(batch), width, dtype=torch.long),
    }
    for row in range(len(batch)):
        fields = verl.agent_loop_fields(batch, row)
        data["responses"][row, : len(fields["response_ids"])] = torch.tensor(fields["response_ids"])
        data["response_mask"][row, : len(fields["response_ids"])] = torch.tensor(fields["response_mask"])
        assert fields["extra_fields"]["min_global_steps"] == 3 and fields["extra_fields"]["max_global_steps"] == 4
    log_s = SupportLogProbs(np.zeros(len(batch.behavior.ids)), np.linspace(-2, -1, len(batch.tokens)), None)
    verl.write_p_s(data, batch, log_s)
    mask = data["response_mask"].bool()
    assert torch.allclose(data["old_log_probs"][mask], torch.linspace(-2, -1, len(batch.tokens)))
    assert torch.allclose(data["rollout_log_probs"][mask], torch.from_numpy(batch.behavior.log_q_drawn).float())
    assert [row.masked_in for row in verl.consumed(batch, data["response_mask"])] == batch.lengths.tolist()
    core = types.ModuleType("verl.trainer.ppo.core_algos")
    core.agg_loss = lambda loss_mat, loss_mask, loss_agg_mode: (loss_mat * loss_mask).sum() / loss_mask.sum()
    registered = {}
    core.register_policy_loss = lambda name: lambda function: registered.setdefault(name, function)
    monkeypatch.setitem(sys.modules, "verl.trainer.ppo.core_algos", core)
    verl.register()
    log_p = (data["old_log_probs"] - 0.1).requires_grad_()
    loss, metrics = registered["lockstep_dlc"](
        data["old_log_probs"],
        log_p,
        torch.ones_like(log_p),
        data["response_mask"],
        "token-mean",
        SimpleNamespace(policy_loss={"lag_clip_high": 1.5}),
        None,
    )
    loss.backward()
    assert (
        torch.allclose(log_p.grad[mask], torch.tensor(-np.exp(-0.1) / len(batch.tokens), dtype=torch.float32))
        and abs(metrics["lockstep/lag/mean"] + 0.1) < 1e-6
    )
    data["responses"][0, 0] += 1
    with pytest.raises(errors.LengthMismatch, match="the tokens of row 0"):
        verl.write_p_s(data, batch, log_s)


def test_prime_rl_loss(monkeypatch):
    module = types.ModuleType("prime_rl.trainer.rl.loss")
    module.LossOutputs = SimpleNamespace
    monkeypatch.setitem(sys.modules, "prime_rl.trainer.rl.loss", module)
    log_theta, log_s, log_q, advantages, mask = tokens()
    inputs = SimpleNamespace(
        trainer_logprobs=log_theta,
        inference_logprobs=log_q,
        ref_logprobs=log_s,
        advantages=advantages,
        loss_mask=mask.bool(),
        loss_weights=None,
    )
    out = prime_rl.loss(inputs, lag_clip_high=1.5)
    want, _ = lag_clipped(log_theta, log_s, log_q, advantages, mask, rule_of(0.0, 1.5))
    assert torch.equal(out.loss, want.sum()) and "lockstep/numeric/mean" in out.metrics
    inputs.ref_logprobs = None
    with pytest.raises(errors.MissingScores, match="ref_logprobs of 6 tokens is None"):
        prime_rl.loss(inputs)
    with pytest.raises(errors.NotSupported, match="filter_zero_advantages"):
        prime_rl.check_config({"trainer": {"loss": {"type": "custom"}}})
    assert 'base_url = "http://h:1/v1"' in prime_rl.client_section("h:1", admin="h:2")


def test_slime_loss_is_dlc_with_its_centring():
    theta, s, behavior = mixed(12, 30, kinds="e")
    lengths = [5, 7]
    packed = torch.zeros(1, 17, 30)
    rows = [range(1, 6), range(9, 16)]
    packed[0, list(rows[0]) + list(rows[1])] = torch.tensor(theta, dtype=torch.float32)
    packed.requires_grad_()
    parts = [behavior.select(range(0, 5)), behavior.select(range(5, 12))]
    scores = [lt.support_logprobs(torch.tensor(s[a:b]), part, 0.7) for (a, b), part in zip([(0, 5), (5, 12)], parts)]
    batch = {
        "total_lengths": [7, 10],
        "response_lengths": lengths,
        "loss_masks": [torch.ones(5), torch.ones(7)],
        "advantages": [torch.full((5,), 1.0), torch.full((7,), -1.0)],
        "lockstep_behavior": parts,
        "lockstep_log_s": scores,
    }
    args = SimpleNamespace(rollout_temperature=0.7, padded_vocab_size=30, tis_clip=2.0)
    mean_of_samples = lambda x: x[:5].mean() + x[5:].mean()  # noqa: E731
    loss, metrics = slime.loss(args, batch, packed, mean_of_samples)
    loss.backward()
    z = torch.tensor(theta, dtype=torch.float32, requires_grad=True)
    k = torch.cat([torch.full((5,), 1 / 5), torch.full((7,), 1 / 7)])
    want = lt.dlc_loss(
        z,
        behavior,
        torch.cat(batch["advantages"]),
        lt.form_a(tail="collapsed"),
        temperature=0.7,
        sampler=torch.tensor(s, dtype=torch.float32),
        coefficients=k,
    )
    want.loss.backward()
    assert torch.allclose(loss, want.loss) and torch.allclose(
        packed.grad[0, list(rows[0]) + list(rows[1])], z.grad, atol=1e-6
    )
    assert float(metrics["lockstep/ess/sequence"]) < 1.0
    with pytest.raises(errors.MissingSupport, match="a batch of 2 samples carries no lockstep_behavior"):
        slime.loss(args, {"response_lengths": lengths}, packed, mean_of_samples)
    with pytest.raises(errors.MissingScores, match="carries no lockstep_log_s, which Dlc needs"):
        slime.loss(args, {k: v for k, v in batch.items() if k != "lockstep_log_s"}, packed, mean_of_samples)
    pg, masks, info = slime.tis(
        args,
        pg_loss=torch.ones(4),
        train_log_probs=[torch.zeros(2), torch.zeros(2)],
        rollout_log_probs=[torch.full((2,), -1.0), torch.zeros(2)],
        loss_masks=[1],
    )
    assert pg.tolist() == [2.0, 2.0, 1.0, 1.0] and masks == [1] and info["lockstep/numeric_ratio"][0] > 2.7
    with pytest.raises(errors.NotSupported, match="takes the groups that finish first"):
        slime.check_args(SimpleNamespace(over_sampling_batch_size=64, rollout_batch_size=32))


def test_areal_trajectories_and_loss():
    batch = batch_of()
    log_s = SupportLogProbs(np.zeros(len(batch.behavior.ids)), np.linspace(-2, -1, len(batch.tokens)), None)
    row = areal.trajectory(batch, 1, log_s)
    assert row["input_ids"].shape == (1, 3 + 11) and row["versions"][0].tolist() == [-1] * 3 + [3] * 6 + [4] * 5
    assert row["loss_mask"].sum() == 11 and torch.allclose(
        row["prox_logp"][0, 2:-1], torch.linspace(-2, -1, len(batch.tokens))[10:21]
    )
    log_theta, log_s_drawn, log_q, advantages, mask = tokens()
    data = {"logprobs": log_q, "prox_logp": log_s_drawn, "advantages": advantages, "loss_mask": mask}
    loss = areal.grpo_loss_fn(log_theta, torch.zeros(6), data, 0.2, None, None, lag_clip_high=1.5)
    want, _ = lag_clipped(log_theta, log_s_drawn, log_q, advantages, mask, rule_of(0.0, 1.5))
    assert torch.equal(loss, want.sum() / 5)
    with pytest.raises(errors.MissingScores, match="prox_logp of 6 tokens is missing"):
        areal.grpo_loss_fn(log_theta, None, {**data, "prox_logp": None})
    areal.check_config({"actor": {"prox_logp_method": "loglinear", "use_decoupled_loss": True}})
    with pytest.raises(errors.NotSupported, match="writes q over prox_logp; actor.prox_logp_method is 'recompute'"):
        areal.check_config({"actor": {}})
