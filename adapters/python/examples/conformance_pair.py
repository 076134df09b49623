"""The conformance suite on the pair of `trl_dlc.py`: Lockstep's engine and the torch model, scored as the adapter and as plain TRL do.

    python examples/conformance_pair.py target/release/lockstep

Plain TRL takes log p over the whole vocabulary, whatever the sampler kept: the suite must say so.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import trl_dlc

from lockstep.behavior import SupportLogProbs
from lockstep.probe import Probe, serve
from lockstep.snapshots import SnapshotStore
from lockstep.torch import source


class PlainStore(SnapshotStore):
    """p over the vocabulary, as `_get_per_token_logps_and_entropies` has it."""

    @torch.no_grad()
    def score(self, batch, version):
        rows = source(self.model, batch, self.load(version), self.project)
        log_p = torch.log_softmax(rows.chunk(torch.arange(rows.rows)) / batch.temperature, -1)
        row, ids = torch.from_numpy(batch.behavior.row), torch.from_numpy(batch.behavior.ids.astype(np.int64))
        return SupportLogProbs(
            log_p[row, ids], log_p[torch.arange(rows.rows), torch.from_numpy(batch.tokens.astype(np.int64))], None
        )


def verdicts(lockstep, plain):
    """The suite's lines on one pair, and its exit code."""
    model = trl_dlc.model()
    with tempfile.TemporaryDirectory() as out:
        model.save_pretrained(f"{out}/model")
        probe = Probe(model, torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0), out=Path(out))
        if plain:
            kept = probe.store.live[0]
            probe.store = PlainStore(model)
            probe.store.keep(kept)
        server, port = serve(probe)
        with trl_dlc.serving(lockstep, "sampler", "--model", f"{out}/model", "--listen", "127.0.0.1:0") as address:
            done = subprocess.run(
                [lockstep, "conformance", "--sampler", address, "--trainer", f"127.0.0.1:{port}"],
                capture_output=True,
                text=True,
            )
        server.stop(None)
    return [line for line in done.stdout.splitlines() if line[:1].strip()], done.returncode


def main():
    for name, plain in [("with the adapter", False), ("plain TRL", True)]:
        lines, code = verdicts(sys.argv[1], plain)
        print(f"{name} (exit code {code})")
        print("\n".join(f"  {line[:60]}" for line in lines))
        if code != (1 if plain else 0):
            raise SystemExit(f"{name}: exit code {code} was not expected")


if __name__ == "__main__":
    main()
