"""The README's loop against a server that speaks the contract."""

import sys
import types
from pathlib import Path

import models
import numpy as np
import torch
from fake import Fake, serve

from lockstep import WeightVersion


def test_the_readmes_loop_trains_reports_and_synchronises(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "transformers", types.SimpleNamespace(AutoModelForCausalLM=None))
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    import pull

    fake = Fake()
    fake.batch_steps = (4,)
    server, address = serve(fake)
    monkeypatch.setattr(pull, "save", lambda model, weights, version: f"{weights}/{version}")
    model = models.Causal()
    before = model.lm_head.weight.detach().clone()
    done = pull.train(address, model, tmp_path, rollouts=2, learning_rate=0.05)
    server.stop(None)
    assert len(done) == 2 and not torch.equal(model.lm_head.weight, before)
    reports = fake.named("ReportStep")
    assert [(r.before.step, r.after.step) for r in reports] == [(4, 5), (5, 6)] and reports[0].tokens == 43
    assert reports[0].lag.max_abs == 0.0 and reports[1].lag.max_abs > 1e-4 and np.isfinite(reports[1].loss)
    assert reports[1].ess[0].drawn_at == WeightVersion(1, 4).message() and reports[1].ess[0].sequences == 4
    assert [m.version.step for m in fake.named("Synchronise")] == [5, 6] and fake.named("Synchronise")[0].path.endswith(
        "/e1.s5"
    )
