"""Real TRL code: what its importance ratio is under top-p, and what it is through the adapter."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import trl_dlc
from fake import Fake, serve
from transformers import set_seed
from trl import GRPOTrainer

import lockstep
from lockstep import WeightVersion, errors
from lockstep.frameworks.trl import DlcGRPOTrainer, GatewaySampler, TransformersSampler
from lockstep.rules import ScoreCentring, Trigger


def sampler_of(policy, **options):
    given = {
        "temperature": 1.0,
        "top_p": trl_dlc.TOP_P,
        "max_new_tokens": trl_dlc.LENGTH,
        "eos": [1],
        "pad": 0,
        **options,
    }
    return TransformersSampler(policy, **given)


def plain_with_processed_log_probs(tmp_path, policy, sampler):
    """TRL's own correction, as it runs with vLLM's processed log-probs: only the engine is replaced."""
    answers = []

    def rollout(prompts, trainer):
        prompt_ids, _, _ = trainer._tokenize_prompts(prompts)
        answers[:] = sampler.generate(prompt_ids)
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": [a.tokens.tolist() for a in answers],
            "logprobs": [a.behavior.log_q_drawn.tolist() for a in answers],
        }

    config = trl_dlc.config(
        str(tmp_path), 1, vllm_importance_sampling_mode="token_truncate", vllm_importance_sampling_clip_max=1e9
    )
    trainer = GRPOTrainer(
        policy,
        reward_funcs=trl_dlc.even,
        args=config,
        train_dataset=trl_dlc.prompts(),
        processing_class=trl_dlc.tokenizer(),
        rollout_func=rollout,
    )
    trainer.use_vllm, trainer._last_loaded_step, trainer.vllm_generation = (
        True,
        -1,
        SimpleNamespace(sync_weights=lambda: None),
    )
    inputs = [row for row in trl_dlc.prompts(4) for _ in range(8)]
    output = trainer._generate_and_score_completions(inputs)
    return output, answers


def test_plain_trls_ratio_under_top_p_is_the_kept_mass(tmp_path):
    """trl#6789: q is renormalised over the nucleus, p is not, so that p / q = P(nucleus) at equal weights."""
    set_seed(3)
    policy = trl_dlc.model(7)
    output, answers = plain_with_processed_log_probs(tmp_path, policy, sampler_of(policy))
    ids = torch.cat([output["prompt_ids"], output["completion_ids"]], 1)
    mask = torch.cat([output["prompt_mask"], output["completion_mask"]], 1)
    with torch.no_grad():
        logits = policy(input_ids=ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)).logits
    p = torch.softmax(logits.double(), -1)
    first, masses = output["prompt_ids"].shape[1] - 1, []
    for row, answer in enumerate(answers):
        for t in range(len(answer.behavior)):
            kept = torch.tensor(answer.behavior.support(t)[0].astype(np.int64))
            mass = float(p[row, first + t, kept].sum())
            masses.append(mass)
            assert abs(float(output["importance_sampling_ratio"][row, t]) - mass) < 2e-5
    assert 0.9 <= min(masses) and max(masses) < 0.97 and len(masses) > 200


def trainer_of(tmp_path, steps, policy=None, sampler=None, config=None, **options):
    policy = policy or trl_dlc.model()
    return DlcGRPOTrainer(
        policy,
        reward_funcs=trl_dlc.even,
        args=config or trl_dlc.config(str(tmp_path), steps),
        train_dataset=trl_dlc.prompts(),
        processing_class=trl_dlc.tokenizer(),
        sampler=sampler or sampler_of(policy),
        **options,
    )


def test_with_the_adapter_the_ratio_is_1_up_to_the_numeric_term(tmp_path):
    set_seed(1)
    trainer = trainer_of(tmp_path, 3)
    trainer.train()
    log = [row for row in trainer.state.log_history if "reward" in row]
    assert len(log) == 3
    for row in log:
        assert (
            abs(row["sampling/importance_sampling_ratio/min"] - 1) < 1e-5
            and abs(row["sampling/importance_sampling_ratio/max"] - 1) < 1e-5
        )
        assert row["lockstep/support_size"] < trl_dlc.WORDS
    assert log[0]["lockstep/lag/max_abs"] == 0.0 and log[1]["lockstep/lag/max_abs"] > 0.01


def test_the_sampler_waits_for_the_trigger(tmp_path):
    set_seed(1)
    never = trainer_of(tmp_path, 3, trigger=Trigger(threshold=1e-6))
    before = {name: value.clone() for name, value in never.sampler.model.state_dict().items()}
    never.train()
    assert never.resynchronised == [] and never.sampler.version == WeightVersion(1, 0)
    assert all(torch.equal(value, before[name]) for name, value in never.sampler.model.state_dict().items())
    set_seed(1)
    eager = trainer_of(tmp_path, 4, trigger=Trigger(threshold=0.99))
    eager.train()
    assert eager.resynchronised[0] == 2 and eager.sampler.version.step == eager.resynchronised[-1]


def test_every_sampled_answer_is_consumed_once(tmp_path):
    set_seed(1)
    trainer = trainer_of(tmp_path, 2)
    trainer.train()
    consumed = trainer.sampler.trained_on
    assert len({row.rollout for row in consumed}) == len(consumed) == 64
    assert all(row.tokens == row.masked_in > 0 for row in consumed)


@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dr_grpo", "dapo"])
def test_the_reduction_is_trls(tmp_path, loss_type):
    """At equal weights and untruncated sampling, uncentred, the gradient of our loss is TRL's own."""
    from lockstep.rules import Importance

    gradients = []
    config = trl_dlc.config(str(tmp_path), 1)
    config.loss_type, config.top_p = loss_type, 1.0
    for ours in (True, False):
        set_seed(5)
        policy = trl_dlc.model()
        trainer = trainer_of(tmp_path, 1, policy, sampler_of(policy, top_p=1.0), config, rule=Importance(None))
        trainer.model.train()
        inputs = trainer._generate_and_score_completions([row for row in trl_dlc.prompts(4) for _ in range(8)])
        trainer.current_gradient_accumulation_steps = 1
        loss = trainer._compute_loss(policy, inputs) if ours else GRPOTrainer._compute_loss(trainer, policy, inputs)
        loss.backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in policy.parameters()]))
    assert gradients[0].abs().max() > 1e-3
    assert (gradients[0] - gradients[1]).abs().max() < 1e-5 * gradients[1].abs().max() + 1e-7


REFUSED = {
    "mask_truncated_completions": ({"mask_truncated_completions": True}, "drops answers by length"),
    "beta": ({"beta": 0.1}, "a KL term over the full vocabulary"),
    "loss_type": ({"loss_type": "cispo"}, "only grpo, bnpo, dr_grpo, dapo"),
    "top_entropy_quantile": ({"top_entropy_quantile": 0.5}, "it drops tokens"),
    "importance_sampling_level": ({"importance_sampling_level": "sequence", "loss_type": "grpo"}, "DLC weighs tokens"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_adapter_cannot_do_is_refused(tmp_path, name):
    change, message = REFUSED[name]
    config = trl_dlc.config(str(tmp_path), 1)
    for key, value in change.items():
        setattr(config, key, value)
    with pytest.raises(errors.NotSupported, match=message):
        trainer_of(tmp_path, 1, config=config)


def test_another_temperature_is_refused(tmp_path):
    policy = trl_dlc.model()
    with pytest.raises(errors.TemperatureMismatch, match="divides by temperature 1.0, but the sampler draws at 0.7"):
        trainer_of(tmp_path, 1, policy, sampler_of(policy, temperature=0.7))


def test_other_ids_than_were_sampled_are_refused(tmp_path):
    set_seed(1)
    trainer = trainer_of(tmp_path, 1)
    inputs = trainer._generate_and_score_completions([row for row in trl_dlc.prompts(1) for _ in range(8)])
    inputs["completion_ids"][0, 0] = (inputs["completion_ids"][0, 0] + 1) % 60 + 3
    with pytest.raises(errors.PlanMismatch, match="row 0: TRL would train on"):
        trainer._compute_loss(trainer.model, inputs)


class Gateway(BaseHTTPRequestHandler):
    """Answers requests of a plan; what was drawn comes with the seal."""

    asked: list = []

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append((self.path, self.headers["X-Plan-ID"], self.headers["X-Rollout-ID"], body))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass


def test_driven_through_a_gateway(tmp_path):
    """Plan, requests with its ids, seal, consumption, and synchronisation by ESS."""
    fake, http = Fake(), ThreadingHTTPServer(("127.0.0.1", 0), Gateway)
    server, address = serve(fake)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    published = []

    def publish(version, model):
        published.append(version)
        return f"/weights/{version}", b""

    with lockstep.connect(address, patience=5.0) as client:
        sampler = GatewaySampler(
            client,
            f"http://127.0.0.1:{http.server_port}",
            "m",
            8,
            publish,
            temperature=0.7,
            top_p=0.9,
            max_new_tokens=12,
        )
        assert sampler.version == WeightVersion(1, 4)
        with pytest.raises(errors.NotSupported, match="was drawn at 2 versions"):
            sampler.generate([[5, 6, 7]] * 16)
        assert {rollout for _, plan, rollout, _ in Gateway.asked if plan == "1"} == {f"p1.r{i}" for i in range(16)}
        assert (
            Gateway.asked[0][0] == "/v1/completions"
            and Gateway.asked[0][3]["prompt"] == [5, 6, 7]
            and Gateway.asked[0][3]["top_p"] == 0.9
        )
        fake.steps = (4,)
        answers = sampler.generate([[5, 6, 7]] * 16)
        assert [answer.version for answer in answers] == [WeightVersion(1, 4)] * 16
        rows = [lockstep.Consumed(answer.rollout, len(answer.tokens), len(answer.tokens)) for answer in answers]
        sampler.consumed(rows[:10])
        assert not fake.named("ReportConsumed")
        sampler.consumed(rows[10:])
        assert len(fake.named("ReportConsumed")[0].rollouts) == 16
        sampler.load(WeightVersion(1, 7), None)
        assert published == [WeightVersion(1, 7)] and sampler.version == WeightVersion(1, 7)
    http.shutdown()
    server.stop(None)


def test_score_centring_needs_no_snapshots(tmp_path):
    set_seed(1)
    trainer = trainer_of(tmp_path, 1, rule=ScoreCentring())
    trainer.train()
    assert trainer.resynchronised == []
