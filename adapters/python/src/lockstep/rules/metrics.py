"""What is reported of a batch: ours, and verl's `rollout_corr/` names."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .array import to_numpy
from .ess import clamped_effective_sample_size, log_weights
from .kl import exact_kl, k3
from .pareto import pareto_k
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
    """A term's log ratio over the drawn tokens, and its exact KL over the recorded supports, in nats: the signed mean, the mean
    size, ``k2 = x^2 / 2``, ``k3 = e^x - 1 - x``, ``chi2 = mean e^2x - 1``, the largest size."""
    x = to_numpy(rows.log_ratio(ratio)).astype(np.float64)
    a = rows.s if ratio == "lag" else rows.q
    b = rows.s if ratio == "numeric" else rows.theta
    kl = exact_kl(
        to_numpy(a.entries).astype(np.float64), to_numpy(b.entries).astype(np.float64), to_numpy(rows.row), len(x)
    )
    if a.rest is not None and b.rest is not None:
        rest_a, rest_b = to_numpy(a.rest).astype(np.float64), to_numpy(b.rest).astype(np.float64)
        has = np.isfinite(rest_a) & np.isfinite(rest_b)
        kl[has] += np.exp(rest_a[has]) * k3(rest_b[has] - rest_a[has])
    return {
        "mean": float(x.mean()),
        "mean_abs": float(np.abs(x).mean()),
        "k2": float((x * x).mean() / 2),
        "k3": float(k3(x).mean()),
        "chi2": float(np.expm1(2 * x).mean()),
        "max_abs": float(np.abs(x).max()),
        "kl": float(kl.mean()),
    }


def head_mass(rows: Rows) -> float:
    """Mean mass of q on the known entries: 1 where supports are exact."""
    return float(np.exp(to_numpy(rows.q.entries).astype(np.float64)).sum() / len(rows.advantages))


def shape(lags: Any, sequence: Any, numeric: Any, horizon: int) -> dict[str, float]:
    """The variance of the answers' log ratios at the horizon level, where a Gaussian lag has an ESS of ``exp(-variance)``; and
    Pareto-k of those ratios and of the tokens' ``p_s / q``, each left out where there is no tail to fit."""
    answers = log_weights(lags, sequence, "horizon", horizon)
    tails = {"lag_pareto_k": pareto_k(answers), "numeric_pareto_k": pareto_k(numeric)}
    return {"lag_variance": float(answers.var()), **{name: k for name, k in tails.items() if k is not None}}
