"""What is reported of a batch: ours, and verl's `rollout_corr/` names."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .array import to_numpy
from .ess import clamped_effective_sample_size
from .kl import exact_kl, k3
from .rows import LOG_CLAMP, Ratio, Rows


def _by_sequence(values: Any, sequence: Any) -> list[Any]:
    return [values[sequence == i] for i in np.unique(sequence)]


def off_policy(rows: Rows, ratio: Ratio = "full") -> dict[str, float]:
    """verl's off-policy metrics."""
    sequence = to_numpy(rows.sequence)
    logs = to_numpy(rows.log_ratio(ratio)).astype(np.float64)
    log_p = to_numpy(rows.s.drawn if ratio == "numeric" else rows.theta.drawn).astype(np.float64)

    def mean(values: Any) -> Any:
        return np.array([-part.mean() for part in _by_sequence(values, sequence)])

    def chi2(x: Any) -> float:
        return float(np.expm1(2 * np.clip(x, -LOG_CLAMP, LOG_CLAMP)).mean())

    p, q, diff = mean(log_p), mean(log_p - logs), mean(logs)
    sums = np.array([part.sum() for part in _by_sequence(logs, sequence)])
    values = {
        "training_ppl": np.exp(p).mean(),
        "training_log_ppl": p.mean(),
        "kl": -logs.mean(),
        "k3_kl": k3(logs).mean(),
        "rollout_ppl": np.exp(q).mean(),
        "rollout_log_ppl": q.mean(),
        "log_ppl_diff": diff.mean(),
        "log_ppl_abs_diff": np.abs(diff).mean(),
        "log_ppl_diff_max": diff.max(),
        "log_ppl_diff_min": diff.min(),
        "ppl_ratio": np.exp(diff).mean(),
        "chi2_token": chi2(logs),
        "chi2_seq": chi2(sums),
    }
    return {f"rollout_corr/{name}": float(value) for name, value in values.items()}


def importance_weights(rows: Rows, ratio: Ratio, level: str, cap: float) -> dict[str, float]:
    """verl's metrics of the weights; its std and ESS see weights clamped to ``[1/C, C]``."""
    sequence = to_numpy(rows.sequence)
    logs = to_numpy(rows.log_ratio(ratio)).astype(np.float64)
    if level == "sequence":
        logs = np.bincount(sequence, logs)[sequence]
    raw = np.exp(np.clip(logs, -LOG_CLAMP, LOG_CLAMP))
    w, c = np.minimum(raw, cap), math.log(cap)
    of_sequences = np.array([part.mean() for part in _by_sequence(w, sequence)])
    raw_sequences = np.array([part.mean() for part in _by_sequence(raw, sequence)])
    clamped = np.exp(np.clip(logs, -c, c))
    values = {
        "mean": w.mean(),
        "max": w.max(),
        "min": w.min(),
        "std": clamped.std(),
        "ratio_fraction_high": (logs > c).mean(),
        "ratio_fraction_low": (logs < -c).mean(),
        "eff_sample_size": clamped_effective_sample_size(logs, cap),
        "seq_mean": of_sequences.mean(),
        "seq_std": of_sequences.std(ddof=1) if len(of_sequences) > 1 else 0.0,
        "seq_max": of_sequences.max(),
        "seq_min": of_sequences.min(),
        "seq_max_deviation": np.abs(of_sequences - 1).max(),
        "seq_fraction_high": (raw_sequences > cap).mean(),
        "seq_fraction_low": (raw_sequences < 1 / cap).mean(),
    }
    return {f"rollout_corr/rollout_is_{name}": float(value) for name, value in values.items()}


def term(rows: Rows, ratio: Ratio) -> dict[str, float]:
    """Mean, k3, largest size and exact KL over the recorded supports of one of the two terms."""
    x = to_numpy(rows.log_ratio(ratio)).astype(np.float64)
    a, b = (rows.s, rows.theta) if ratio == "lag" else (rows.q, rows.s)
    kl = exact_kl(
        to_numpy(a.entries).astype(np.float64), to_numpy(b.entries).astype(np.float64), to_numpy(rows.row), len(x)
    )
    if a.rest is not None and b.rest is not None:
        rest_a, rest_b = to_numpy(a.rest).astype(np.float64), to_numpy(b.rest).astype(np.float64)
        has = np.isfinite(rest_a) & np.isfinite(rest_b)
        kl[has] += np.exp(rest_a[has]) * k3(rest_b[has] - rest_a[has])
    return {
        "mean": float(x.mean()),
        "k3": float(k3(x).mean()),
        "max_abs": float(np.abs(x).max()),
        "kl": float(kl.mean()),
    }
