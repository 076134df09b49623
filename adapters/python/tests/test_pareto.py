"""Pareto-k finds the shape of a tail that is known."""

import numpy as np
import pytest

from lockstep.rules import pareto_k


def quantiles(k, n):
    """Of the generalised Pareto distribution of a shape, as log ratios above 1."""
    u = (np.arange(n) + 0.5) / n
    return np.log1p(-np.log1p(-u) if k == 0 else ((1 - u) ** -k - 1) / k)


@pytest.mark.parametrize("k", [0.0, 0.2, 0.5, 0.8, 1.2])
def test_a_known_shape_is_found(k):
    assert abs(pareto_k(quantiles(k, 20_000)) - k) < 0.06


def test_a_bounded_ratio_has_a_negative_shape_and_a_common_factor_changes_nothing():
    assert pareto_k(np.log((np.arange(5000) + 0.5) / 5000)) < -0.5
    assert abs(pareto_k(quantiles(0.5, 1000) + 600) - pareto_k(quantiles(0.5, 1000))) < 1e-9


def test_few_or_equal_ratios_have_no_tail():
    assert pareto_k(np.zeros(400)) is None
    assert pareto_k(quantiles(0.5, 24)) is None
    assert pareto_k([]) is None
    assert pareto_k(quantiles(0.5, 25)) is not None


def test_the_value_is_that_of_the_core():
    # `lockstep_core::dlc::pareto` on the same thousand quantiles.
    assert abs(pareto_k(quantiles(0.5, 1000)) - 0.49663017516362906) < 1e-12
