"""A sealed plan of two groups of two answers, made here: what `client.seal(plan)` gives."""

import numpy as np

from lockstep import Batch, Behavior, RolloutId, SamplingParams, Segment, Stamp, WeightVersion


def sealed_plan(vocabulary=32, lengths=(4, 6, 5, 3), seed=0):
    draw, rows, tokens = np.random.default_rng(seed), [], []
    for _ in range(sum(lengths)):
        ids = draw.permutation(vocabulary)[:5]
        q = draw.dirichlet(np.ones(5))
        tokens.append(int(draw.choice(ids, p=q)))
        rows.append((ids.tolist(), np.log(q).tolist()))
    starts = np.concatenate([[0], np.cumsum(lengths)])
    stamp = Stamp(WeightVersion(1, 3), "label:v3")
    params = SamplingParams(1.0, 0, 0.9, 0.0, 1, 8)
    return Batch(
        plan=7,
        ids=tuple(RolloutId(7, i) for i in range(len(lengths))),
        groups=np.array([0, 0, 1, 1]),
        prompts=tuple(np.array([1, 2, 3]) for _ in lengths),
        params=(params,) * len(lengths),
        starts=starts,
        behavior=Behavior.of_rows(tokens, rows, 1.0),
        segments=tuple(Segment(i, int(starts[i]), int(starts[i + 1]), stamp, "fresh", 0) for i in range(len(lengths))),
        stops=(None,) * len(lengths),
        rewards=np.array([1.0, 0.0, 0.5, 0.0]),
    )
