"""How heavy the tail of a ratio is: the shape k of a generalised Pareto distribution fitted to its largest values, as in
Pareto-smoothed importance sampling (Vehtari, Simpson, Gelman, Yao & Gabry, JMLR 25, 2024), by the estimator of Zhang &
Stephens (Technometrics 51, 2009).

With shape k the ratio has ``1/k`` moments: below 0.5 its variance is finite, from 0.7 on an ESS says too much, from 1 on not
even its mean exists.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

FEWEST = 5
"""Fewest exceedances that a fit is made of."""

PRIOR = (10.0, 0.5)
"""Pseudo-observations at k = 0.5 that keep a fit of few exceedances from running wild."""


def pareto_k(log_ratios: Any) -> float | None:
    """k of the ratios ``exp(l)``, from the ``M = min(N / 5, 3 sqrt(N))`` largest of them.

        x_i = exp(l_i) - u, u the largest ratio that is not among them
        k = mean_i log(1 - b x_i) at the profile-posterior mean of b; then (M k + 10 * 0.5) / (M + 10)

    None where M is below `FEWEST`, or where the ratios do not differ in their tail.
    """
    logs = np.sort(np.asarray(log_ratios, np.float64))
    m = int(min(len(logs) / 5, 3 * math.sqrt(len(logs))))
    if m < FEWEST:
        return None
    ratios = np.exp(logs[-m - 1 :] - logs[-1])
    k = _shape(ratios[1:] - ratios[0])
    return None if k is None else (m * k + PRIOR[0] * PRIOR[1]) / (m + PRIOR[0])


def _shape(x: Any) -> float | None:
    """The shape alone, of exceedances in ascending order; positive for heavy tails."""
    quartile, largest = x[math.floor(len(x) / 4 + 0.5) - 1], x[-1]
    if not (quartile > 0 and math.isfinite(largest)):
        return None
    m = 30 + int(math.sqrt(len(x)))
    b = 1 / largest + (1 - np.sqrt(m / (np.arange(m) + 0.5))) / (3 * quartile)
    with np.errstate(divide="ignore", invalid="ignore"):
        k = np.log1p(-b[:, None] * x).mean(-1)
        profile = len(x) * (np.log(-b / k) - k - 1)
    kept = np.isfinite(profile)
    if not kept.any():
        return None
    weight = np.exp(profile[kept] - profile[kept].max())
    found = float(np.log1p(-float((weight * b[kept]).sum() / weight.sum()) * x).mean())
    return found if math.isfinite(found) else None
