"""Rank correlations equal scipy's, also on resamples; intervals and p hold in simulations."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import rankdata, spearmanr

from unmask.statistics.correlations import codes_of, correlations, rank_correlation, ranks_of, spearman_matrix

TABLE = np.random.default_rng(0).integers(6, size=(40, 4)).astype(float)  # with ties


def test_correlations_on_all_items_and_on_a_resample_are_scipys() -> None:
    np.testing.assert_allclose(spearman_matrix(TABLE), spearmanr(TABLE).statistic)
    drawn = np.random.default_rng(1).integers(40, size=40)
    counts = np.bincount(drawn, minlength=40)
    ranks = ranks_of(codes_of(TABLE), counts)
    np.testing.assert_allclose(ranks[:, drawn], rankdata(TABLE[drawn], axis=0).T)
    np.testing.assert_allclose(correlations(ranks, counts), spearmanr(TABLE[drawn]).statistic)


@pytest.mark.parametrize("decimals", [9, 0])  # without ties and with
def test_rho_and_p_are_scipys(decimals: int) -> None:
    a, noise = np.random.default_rng(1).normal(size=(2, 14))
    a, b = a.round(decimals), (a + noise).round(decimals)
    ours, theirs = rank_correlation(a.tolist(), b.tolist()), spearmanr(a, b)
    assert ours.rho == pytest.approx(theirs.statistic, abs=1e-12) and ours.p == pytest.approx(theirs.pvalue, abs=0.02)


def test_six_units_do_not_prove_a_perfect_order() -> None:
    up = rank_correlation([1, 2, 3, 4, 5, 6], [10, 20, 30, 40, 50, 60])
    assert up.rho == pytest.approx(1) and up.p < 0.02 and 0.2 < up.interval[0] < 0.9 and up.interval[1] == 1


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    """Spearman's rho of a normal pair with correlation r is 6/pi asin(r/2)."""
    random, r = np.random.default_rng(0), 0.6
    truth, held = 6 / np.pi * np.arcsin(r / 2), []
    for _ in range(300):
        a = random.normal(size=16)
        b = r * a + np.sqrt(1 - r**2) * random.normal(size=16)
        low, high = rank_correlation(a.tolist(), b.tolist()).interval
        held.append(low <= truth <= high)
    assert 0.91 <= np.mean(held) <= 0.99


def test_a_correlation_that_is_called_detectable_is_found_in_four_of_five_studies() -> None:
    n = 16
    detectable = rank_correlation(list(range(n)), list(range(n))).detectable
    r, random, seen = 2 * np.sin(detectable * np.pi / 6), np.random.default_rng(3), []
    for _ in range(200):
        a = random.normal(size=n)
        b = r * a + np.sqrt(1 - r**2) * random.normal(size=n)
        seen.append(rank_correlation(a.tolist(), b.tolist()).p < 0.05)
    assert 0.7 <= np.mean(seen) <= 0.9
