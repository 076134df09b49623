"""Names, signs, and what is refused."""

import json
import sys
import types

import pytest

from lockstep import errors, sinks


class Kept:
    def __init__(self):
        self.steps, self.closed = [], False

    def log(self, step, metrics):
        self.steps.append((step, dict(metrics)))

    def close(self):
        self.closed = True


TERMS = {"lag": {"mean": -0.25, "max_abs": 1.5}, "numeric": {"mean": 0.125, "k3": 0.01, "max_abs": 0.5}}
RECORD = {"step": 3, "loss": 0.5, "reward": 0.75, "terms": TERMS, "null_ess": None, "version": "1.3"}


def test_raw_values_apart_with_the_names_of_verl_and_trl():
    kept = Kept()
    assert sinks.forward([RECORD], [kept]) == 1
    step, metrics = kept.steps[0]
    assert step == 3 and metrics["lockstep/lag/max_abs"] == 1.5 and metrics["lockstep/numeric/mean"] == 0.125
    assert (
        metrics["rollout_corr/kl"] == -0.125
        and metrics["rollout_corr/k3_kl"] == 0.01
        and metrics["actor/ppo_kl"] == 0.25
    )
    assert metrics["reward"] == metrics["critic/rewards/mean"] == 0.75
    assert metrics["sampling/sampling_logp_difference/max"] == 0.5
    assert "lockstep/version" not in metrics and "lockstep/step" not in metrics


def test_a_line_that_is_no_record_is_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for text, said in [
        (json.dumps(RECORD) + '\n{"step": 4, "rew', "line 2 of 2: "),
        (json.dumps(RECORD) + "\n\n" + json.dumps(RECORD), "line 2 of 3: "),
        ('{"loss": 1.0}\n', "line 1 of 1: a record without a step"),
    ]:
        path.write_text(text)
        with pytest.raises(errors.WireError, match=said):
            list(sinks.records_of(path))
    with pytest.raises(errors.WireError, match="absent"):
        list(sinks.records_of(tmp_path / "absent"))


def test_the_aliases_of_the_server_are_not_forwarded_twice():
    kept = Kept()
    sinks.forward([{**RECORD, "aliases": {"actor/ppo_kl": 0.25}}], [kept])
    assert not any("aliases" in name for name in kept.steps[0][1]) and kept.steps[0][1]["actor/ppo_kl"] == 0.25


def test_nothing_that_is_not_finite_is_forwarded():
    with pytest.raises(errors.NotANumber, match="metric lag/mean is nan"):
        sinks.forward([{"step": 1, "lag": {"mean": float("nan")}}], [Kept()])


def test_wandb_and_mlflow_get_one_call_a_step(monkeypatch, tmp_path):
    calls = []
    run = types.SimpleNamespace(
        log=lambda metrics, step: calls.append(("wandb", step, metrics)), finish=lambda: calls.append(("finish",))
    )
    monkeypatch.setitem(
        sys.modules, "wandb", types.SimpleNamespace(init=lambda project: calls.append(("init", project)) or run)
    )
    mlflow = types.SimpleNamespace(
        set_experiment=lambda name: calls.append(("experiment", name)),
        start_run=lambda: None,
        end_run=lambda: calls.append(("end",)),
        log_metrics=lambda metrics, step: calls.append(("mlflow", step, metrics)),
    )
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps(RECORD) + "\n")
    sinks.main([str(path), "--wandb", "p", "--mlflow", "e"])
    assert [call[:2] for call in calls] == [
        ("init", "p"),
        ("experiment", "e"),
        ("wandb", 3),
        ("mlflow", 3),
        ("finish",),
        ("end",),
    ]
    assert calls[2][2] == calls[3][2]


def test_a_sink_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(errors.NotSupported, match="wandb is not installed"):
        sinks.Wandb("p")
