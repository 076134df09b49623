"""Pull: train on Lockstep's batches with DLC on. Needs `lockstep serve --prompts FILE`, torch and transformers.

python examples/pull.py HOST:PORT MODEL_DIRECTORY WEIGHTS_DIRECTORY
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

import lockstep
import lockstep.torch as lt
from lockstep import WeightVersion
from lockstep.snapshots import SnapshotStore


def train(address, model, weights, *, steps=None, rollouts=8, learning_rate=1e-5):
    """One update a batch; the sampler gets new weights when the middleware says so."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    store, done = SnapshotStore(model), []
    with lockstep.connect(address) as client:
        version = client.describe().stamp.version
        store.keep(version)
        for batch in client.batches():
            optimizer.zero_grad()
            advantages, at, outputs = batch.advantages(), 0, []
            for part in batch.split(rollouts):
                output = lt.batch_loss(
                    model, part, store=store, advantages=advantages[at : at + len(part.tokens)], totals=batch.totals
                )
                output.loss.backward()
                outputs.append(output)
                at += len(part.tokens)
            norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
            before, version = version, WeightVersion(version.epoch, version.step + 1)
            optimizer.step()
            metrics = lt.combined(outputs)
            decision = client.report_step(
                before,
                version,
                metrics,
                lt.ess_by_version(batch, outputs),
                gradient_norm=norm,
                tokens=len(batch.tokens),
            )
            done.append((metrics, decision))
            if decision.resynchronise:
                store.keep(version)
                client.synchronise(version, save(model, weights, version))
                store.retain([version, *batch.versions])
            if steps is not None and len(done) == steps:
                break
    return done


def save(model, weights, version):
    """Where the sampler reads them."""
    path = Path(weights) / str(version)
    model.save_pretrained(path)
    return str(path.resolve())


if __name__ == "__main__":
    train(sys.argv[1], AutoModelForCausalLM.from_pretrained(sys.argv[2]), sys.argv[3])
