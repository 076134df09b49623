"""KL estimators, written so that small ratios keep their digits."""

from __future__ import annotations

from .array import Array, segment_sum, xp


def k1(x: Array) -> Array:
    """``-x``: unbiased, signed. ``x`` is the log ratio of the other policy to the sampling one."""
    return -x


def k2(x: Array) -> Array:
    """``x^2 / 2``: biased value, right gradient."""
    return x * x / 2


def k3(x: Array) -> Array:
    """``exp(x) - 1 - x``; by its series below 1e-3, where the difference would lose every digit."""
    m = xp(x)
    series = x * x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5)))
    small = m.abs(x) < 1e-3
    return m.where(small, series, m.expm1(m.where(small, x * 0, x)) - x)


def unbiased_k3(log_p: Array, log_q: Array, log_ref: Array) -> Array:
    """``p / q`` times k3 of ``ref / p``: unbiased for KL(p || ref) under tokens drawn from q (DeepSeek-V3.2)."""
    return xp(log_p).exp(log_p - log_q) * k3(log_ref - log_p)


def exact_kl(log_a: Array, log_b: Array, row: Array, count: int) -> Array:
    """``sum_v a_v (log a_v - log b_v)`` of each row, by ``a k3(log b - log a)``: right when both sum to 1."""
    return segment_sum(xp(log_a).exp(log_a) * k3(log_b - log_a), row, count)
