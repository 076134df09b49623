"""The README's ten lines, as they stand there, and every example."""

import re
import subprocess
import sys
from pathlib import Path

import models
import pytest
import torch
from fake import Fake, serve

PACKAGE = Path(__file__).parents[2]


def test_the_ten_lines_train():
    (code,) = re.findall(r"```python\n(.*?)```", (PACKAGE / "README.md").read_text(), re.S)
    fake = Fake()
    fake.batch_steps = (4,)
    server, address = serve(fake)
    model, optimizer = models.make()
    before = model.lm_head.weight.detach().clone()
    exec(
        compile(code, "README.md", "exec"),
        {
            "address": address,
            "model": model,
            "optimizer": optimizer,
            "save": lambda model, version: f"/weights/{version}",
        },
    )
    server.stop(None)
    assert not torch.equal(model.lm_head.weight, before)
    assert [(r.before.step, r.after.step) for r in fake.named("ReportStep")] == [(4, 5), (5, 6)]
    assert [m.path for m in fake.named("Synchronise")] == ["/weights/e1.s5", "/weights/e1.s6"]


@pytest.mark.parametrize("name", ["verl_step", "prime_rl_loss", "slime_loss", "areal_step"])
def test_the_examples_run(name):
    out = subprocess.run(
        [sys.executable, str(PACKAGE / f"examples/{name}.py")],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(p for p in sys.path if p)},
    )
    assert out.returncode == 0 and out.stdout.startswith("loss "), out.stderr
