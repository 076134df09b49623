"""The adapters against the source that verl and AReaL publish: signatures, field names, and a loss through their own code.

The wheels are downloaded once, without their dependencies, and read, not imported.
"""

import ast
import inspect
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from test_frameworks import batch_of, tokens

from lockstep.behavior import SupportLogProbs
from lockstep.frameworks import areal, verl

CACHE = Path(__file__).parents[4] / "target/python-published"
VERSIONS = {"verl": "0.9.1", "areal": "1.0.4"}


def source(package, path):
    """One file of a published wheel, parsed."""
    wheels = list(CACHE.glob(f"{package}-{VERSIONS[package]}-*.whl"))
    if not wheels:
        CACHE.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--dest",
                str(CACHE),
                f"{package}=={VERSIONS[package]}",
            ],
            check=True,
        )
        wheels = list(CACHE.glob(f"{package}-{VERSIONS[package]}-*.whl"))
    with zipfile.ZipFile(wheels[0]) as wheel:
        return ast.parse(wheel.read(path).decode())


def function(tree, name):
    return next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name)


def parameters(node):
    return [a.arg for a in node.args.posonlyargs + node.args.args + node.args.kwonlyargs]


def fields(tree, name):
    cls = next(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name)
    return {node.target.id for node in cls.body if isinstance(node, ast.AnnAssign)}


def call(tree, name):
    return next(node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == name)


def run(tree, name, **names):
    """One function of a published file, alone."""
    node = function(tree, name)
    node.decorator_list, node.returns = [], None
    for argument in node.args.args:
        argument.annotation = None
    exec(compile(ast.Module([node], []), name, "exec"), names)
    return names[name]


def strings(node):
    return {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}


CORE, LOSSES, LOOP, HELPER, RAY = (
    f"verl/{p}.py"
    for p in (
        "trainer/ppo/core_algos",
        "workers/utils/losses",
        "experimental/agent_loop/agent_loop",
        "trainer/ppo/rollout_corr_helper",
        "trainer/ppo/ray_trainer",
    )
)


def test_verl_calls_a_policy_loss_with_what_ours_takes():
    asked = {keyword.arg for keyword in call(source("verl", LOSSES), "policy_loss_fn").keywords}
    assert asked == set(inspect.signature(verl.policy_loss).parameters)
    core = source("verl", CORE)
    assert parameters(function(core, "register_policy_loss")) == ["name"]
    assert parameters(function(core, "agg_loss"))[:3] == ["loss_mat", "loss_mask", "loss_agg_mode"]


def test_a_verl_loss_plug_in_still_sees_no_logits():
    """What makes the adapter refuse to centre: the fields that reach a loss."""
    assert strings(function(source("verl", LOSSES), "ppo_loss")) >= {
        "response_mask",
        "old_log_probs",
        "advantages",
        "rollout_is_weights",
        "ref_log_prob",
    }
    assert "rollout_log_probs" not in strings(function(source("verl", LOSSES), "ppo_loss"))


def test_verls_agent_loop_output_has_our_fields():
    known = fields(source("verl", LOOP), "AgentLoopOutput")
    assert set(verl.agent_loop_fields(batch_of(), 0)) <= known


def test_verls_weight_sync_is_the_one_that_is_held_back():
    calls = [
        node
        for node in ast.walk(source("verl", RAY))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "self.checkpoint_manager.update_weights"
    ]
    assert len(calls) >= 2
    assert parameters(function(source("verl", HELPER), "compute_rollout_correction_and_add_to_batch")) == [
        "batch",
        "rollout_corr_config",
    ]


def test_a_loss_through_verls_own_reduction(monkeypatch):
    utilities = source("verl", "verl/utils/torch_functional.py")
    masked_sum = run(utilities, "masked_sum", torch=torch)
    agg_loss = run(
        source("verl", CORE), "agg_loss", torch=torch, verl_F=SimpleNamespace(masked_sum=masked_sum), Optional=None
    )
    monkeypatch.setitem(sys.modules, "verl.trainer.ppo.core_algos", SimpleNamespace(agg_loss=agg_loss))
    log_theta, log_s, _, advantages, mask = (x.reshape(2, 3) for x in tokens())
    for mode, want in [("token-mean", 1 / 5), ("seq-mean-token-sum", 1 / 2)]:
        (x := log_theta.detach().clone()).requires_grad_()
        loss, _ = verl.policy_loss(log_s, x, advantages, mask, mode, SimpleNamespace(policy_loss={}), None)
        loss.backward()
        w = torch.exp(x.detach() - log_s).clip(0, 2)
        assert torch.allclose(x.grad, -advantages * w * mask * want, atol=1e-6)


def test_areal_binds_a_loss_with_what_ours_takes():
    actor = source("areal", "areal/trainer/ppo/actor.py")
    assert parameters(function(actor, "grpo_loss_fn"))[:3] == ["logprobs", "entropy", "input_data"]
    assert {"logprobs", "advantages", "loss_mask", "prox_logp"} <= strings(function(actor, "grpo_loss_fn"))
    partial = next(
        node
        for node in ast.walk(actor)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "functools.partial"
        and ast.unparse(node.args[0]) == "grpo_loss_fn"
    )
    log_theta, log_s, log_q, advantages, mask = tokens()
    data = {"logprobs": log_q, "prox_logp": log_s, "advantages": advantages, "loss_mask": mask}
    loss = areal.grpo_loss_fn(log_theta, torch.zeros(6), data, **{keyword.arg: None for keyword in partial.keywords})
    assert torch.isfinite(loss) and loss.requires_grad


def test_areal_trajectories_have_the_keys_of_its_own_workflow():
    workflow = source("areal", "areal/workflow/rlvr.py")
    batch = batch_of()
    log_s = SupportLogProbs(torch.zeros(len(batch.behavior.ids)), -torch.ones(len(batch.tokens)), None)
    ours = areal.trajectory(batch, 0, log_s)
    assert set(ours) - {"prox_logp"} <= strings(workflow)
    assert all(value.shape[0] == 1 for value in ours.values())


def test_areal_writes_over_p_s_where_the_adapter_says_so():
    """The two places that make `check_config` ask for a decoupled loss and a method that skips the forward."""
    trainer, actor = source("areal", "areal/trainer/rl_trainer.py"), source("areal", "areal/trainer/ppo/actor.py")
    written = [
        ast.unparse(node)
        for tree in (trainer, actor)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and "prox_logp" in ast.unparse(node.targets[0])
    ]
    assert "traj['prox_logp'] = logp" in written and "data['prox_logp'] = old_logp" in written
    decides = ast.unparse(function(source("areal", "areal/api/cli_args.py"), "should_compute_prox_logp"))
    assert "self.use_decoupled_loss and (not method.skips_forward_pass())" in decides


def test_areals_switches_still_have_their_names():
    text = strings(source("areal", "areal/api/cli_args.py")) | {
        node.target.id
        for node in ast.walk(source("areal", "areal/api/cli_args.py"))
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assert {
        "dynamic_bs",
        "rejection_sampling",
        "m2_threshold",
        "overlong_reward_penalty",
        "prox_logp_method",
        "max_head_offpolicyness",
    } <= text
    assert "AREAL_LLM_SERVER_ADDRS" in strings(source("areal", "areal/infra/remote_inf_engine.py"))


def test_a_changed_signature_is_seen():
    with pytest.raises(StopIteration):
        function(source("verl", CORE), "register_policy_losses")
