"""A random run of tokens with every kind of support there is."""

from __future__ import annotations

import numpy as np

from lockstep import Behavior, Rest
from lockstep.reference import log_softmax


def mixed(count: int, vocabulary: int, seed: int = 0, kinds: str = "esph", temperature: float = 0.7):
    """Logits of q, p_s and p, and a behaviour: e(xact), s(ingleton), p(artly known kept ids), h(ead of the vocabulary)."""
    rng = np.random.default_rng(seed)
    theta = rng.normal(size=(count, vocabulary)) * 1.5
    s = theta + rng.normal(size=theta.shape) * 0.3
    q = s + rng.normal(size=theta.shape) * 0.05
    tokens, offsets, ids, log_q, rests = [], [0], [], [], []
    for t in range(count):
        kind = kinds[t % len(kinds)]
        order = np.argsort(-q[t])
        kept = order[: 1 if kind == "s" else 6] if kind != "h" else order
        row = log_softmax(q[t][kept] / temperature)
        token = int(rng.choice(len(kept), p=np.exp(row)))
        known = {"e": len(kept), "s": 1, "p": 4, "h": 5}[kind]
        listed = {"e": len(kept), "s": 0, "p": len(kept), "h": known}[kind]
        tokens.append(int(kept[token]))
        ids += kept[:listed].tolist()
        log_q += [row[i] if i < known else -np.inf for i in range(listed)]
        offsets.append(len(ids))
        rest = np.log(np.exp(row[known:]).sum()) if kind in "ph" else -np.inf
        rests.append((vocabulary if kind == "h" else 0, row[token], rest))
    columns = [np.array(column) for column in zip(*rests)]
    rest = Rest(columns[0].astype(np.int64), columns[1], columns[2]) if set(kinds) & set("ph") else None
    behavior = Behavior(
        np.array(tokens), np.array(offsets), np.array(ids, np.int64), np.array(log_q), rest, temperature
    ).check()
    return theta, s, behavior


RULE_NAMES = (
    "dlc_a",
    "dlc_b",
    "dlc_f",
    "dlc_collapsed",
    "dlc_mask",
    "dlc_e",
    "sc",
    "sc_tis",
    "pg",
    "tis",
    "seq_tis",
    "ppo",
    "gspo",
    "cispo",
    "m2po",
    "geo",
)


def rules(r):
    """One of each, from `lockstep.reference` or `lockstep.torch`."""
    return {
        "dlc_a": r.form_a(),
        "dlc_b": r.form_b(),
        "dlc_f": r.form_f(),
        "dlc_collapsed": r.form_a(tail="collapsed"),
        "dlc_mask": r.Dlc(r.LagMask(0.8, 1.2), tail="collapsed"),
        "dlc_e": r.form_e(r.PpoClip(0.1, 0.1)),
        "sc": r.ScoreCentring(),
        "sc_tis": r.ScoreCentring("truncated", cap=1.1),
        "pg": r.Importance(None),
        "tis": r.Importance("numeric", "token", 1.01),
        "seq_tis": r.Importance("full", "sequence", 2.0),
        "ppo": r.Ppo(r.PpoClip(0.1, 0.1), 1.5, "lag"),
        "gspo": r.Gspo(r.PpoClip(0.01, 0.01)),
        "cispo": r.Cispo(),
        "m2po": r.M2po("areal", 0.04),
        "geo": r.Rejection(r.Importance(None), (r.Criterion.parse("seq_mean_k1", "0.9_1.1"),)),
    }
