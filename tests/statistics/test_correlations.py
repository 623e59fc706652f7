"""Ranks: those of scipy, also on resamples."""

from __future__ import annotations

import numpy as np
from scipy.stats import rankdata, spearmanr

from unmask.statistics.correlations import RESAMPLES, codes_of, correlations, ranks_of, resampled, spearman_matrix

TABLE = np.random.default_rng(0).integers(6, size=(40, 4)).astype(float)  # with ties


def test_correlations_are_scipys() -> None:
    np.testing.assert_allclose(spearman_matrix(TABLE), spearmanr(TABLE).statistic)


def test_only_order_counts_and_what_orders_nothing_has_none() -> None:
    one = np.array([0.1, 0.5, 0.2, 0.9])
    found = spearman_matrix(np.stack([one, np.exp(9 * one), -one, np.ones(4)], axis=1))
    np.testing.assert_allclose(found[:3, :3], [[1, 1, -1], [1, 1, -1], [-1, -1, 1]])
    assert not found[3].any()


def test_ranks_within_a_resample_are_those_of_the_drawn_items() -> None:
    drawn = np.random.default_rng(1).integers(40, size=40)
    counts = np.bincount(drawn, minlength=40)
    ranks = ranks_of(codes_of(TABLE), counts)
    np.testing.assert_allclose(ranks[:, drawn], rankdata(TABLE[drawn], axis=0).T)
    np.testing.assert_allclose(correlations(ranks, counts), spearmanr(TABLE[drawn]).statistic)


def test_a_seed_draws_the_same_and_as_many_as_there_are() -> None:
    first, again, other = ([counts.tolist() for counts in resampled(7, seed)] for seed in (0, 0, 1))
    assert first == again != other
    assert len(first) == RESAMPLES and {sum(counts) for counts in first} == {7} and {len(counts) for counts in first} == {7}
    assert np.allclose(np.mean(first, axis=0), 1, atol=0.15)
