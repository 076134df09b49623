"""The worked values again, with gradients through the autograd function."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from checkers import CHECKERS
from golden import COMMITTED, DIRECTORY, Golden

from lockstep import torch as lt

WITH_A_LOSS = [
    number for number in CHECKERS if number not in {"01", "02", "24", "25", "29b", "30", "33", "35", "47", "50"}
]
PATHS = [path for path in sorted(DIRECTORY.glob("*.json")) if path.stem.split("_")[0] in WITH_A_LOSS]


def numpy_rows(rows):
    of = lambda t: (
        None if t is None else lt.Terms(*(None if x is None else x.numpy() for x in (t.entries, t.drawn, t.rest)))
    )  # noqa: E731
    return lt.Rows(
        rows.row.numpy(), of(rows.q), of(rows.theta), of(rows.scores), rows.advantages.numpy(), rows.sequence.numpy()
    )


def run_through(make_source, chunk_bytes):
    def run(
        problem, rule, behavior=None, advantages=None, coefficients=None, sampler=None, tokens_versions=None, theta=None
    ):
        golden = problem.golden
        z = torch.tensor(problem.theta if theta is None else theta, dtype=torch.float64, requires_grad=True)
        s = torch.tensor(problem.s if sampler is None else sampler, dtype=torch.float64)
        output = lt.loss(
            make_source(z),
            behavior or problem.behavior(),
            torch.tensor(golden.inputs["advantages"] if advantages is None else advantages, dtype=torch.float64),
            rule,
            temperature=problem.temperature,
            sampler=make_source(s),
            sequence=np.array(golden.inputs["sequence_of_token"]),
            versions=tokens_versions,
            coefficients=coefficients,
            reduction="sum",
            chunk_bytes=chunk_bytes,
        )
        output.loss.backward()
        assert torch.allclose(output.loss, output.per_token.sum(), rtol=0, atol=1e-12)
        first = output.corrections[0]
        joined = lt.Correction(
            torch.cat([c.w for c in output.corrections]).numpy(),
            info={
                name: (
                    torch.cat([c.info[name] for c in output.corrections])
                    if len(first.info[name]) == len(first.w)
                    else first.info[name]
                ).numpy()
                for name in first.info
            },
        )
        return SimpleNamespace(
            per_token=output.per_token.numpy(),
            gradient=z.grad.numpy(),
            correction=joined,
            centring=None,
            rows=numpy_rows(output.rows),
        )

    return run


def projection(z):
    """The logits as a head of themselves: hidden states times the identity."""
    return lt.Projection(z, torch.eye(z.shape[1], dtype=z.dtype))


@pytest.mark.parametrize("chunk_bytes", [1, 1 << 20], ids=["one row a chunk", "one chunk"])
@pytest.mark.parametrize("source", [lt.Logits, projection], ids=["logits", "hidden"])
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_every_vector_holds(path, source, chunk_bytes):
    golden = Golden.load(path)
    CHECKERS[path.stem.split("_")[0]](golden, run_through(source, chunk_bytes))
    unseen = set(golden.expected) - golden.seen
    assert not unseen or DIRECTORY != COMMITTED, f"nothing was compared with {unseen}"
