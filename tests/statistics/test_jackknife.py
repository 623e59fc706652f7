"""The jackknife knows the error of a mean, and of measures that a bootstrap would raise."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import t

from unmask.statistics.intervals import jackknife_interval, ratio_left_out

VALUES = np.random.default_rng(0).normal(size=40)


def test_the_interval_of_a_mean_is_that_of_student() -> None:
    left_out = (VALUES.sum() - VALUES) / 39
    expected = t.interval(0.95, 39, VALUES.mean(), VALUES.std(ddof=1) / np.sqrt(40))
    assert jackknife_interval(float(VALUES.mean()), left_out) == pytest.approx(expected)
    narrow = jackknife_interval(float(VALUES.mean()), left_out, level=0.5)
    assert narrow == pytest.approx(t.interval(0.5, 39, VALUES.mean(), VALUES.std(ddof=1) / np.sqrt(40)))


def test_a_ratio_without_each_text() -> None:
    above, below = np.array([[1.0], [2], [6]]), np.array([[2.0], [3], [0]])
    assert ratio_left_out(above, below)[:, 0] == pytest.approx([8 / 3, 7 / 2, 3 / 5])
    assert np.isnan(ratio_left_out(above[:2, 0], np.array([2.0, 0]))[0]), "nothing is left below"


def test_what_has_no_interval() -> None:
    assert jackknife_interval(0.5, np.full(4, 0.5)) is None
    assert jackknife_interval(0.5, np.array([0.5, 0.4, 0.6, 0.5, np.nan])) is None


def test_no_interval_goes_beyond_what_is_possible_nor_leaves_out_the_value() -> None:
    left_out = np.array([0.8, 0.9, 1.0, 1.0, 1.0])
    low, high = jackknife_interval(0.95, left_out, most=1.0) or (0, 0)
    assert low < 0.95 and high == 1
    assert (jackknife_interval(1.1, left_out, most=1.0) or (0, 0))[1] == 1.1
    assert (jackknife_interval(0.95, left_out) or (0, 0))[1] > 1


def test_a_mean_over_pairs_of_texts_is_covered() -> None:
    """The mean product of two different texts is the square of the mean. A text beside its copy would add the variance."""
    covered = []
    for seed in range(300):
        values = np.random.default_rng(seed).normal(1, 1, size=20)
        total, squares = values.sum() - np.append(values, 0), np.square(values).sum() - np.square(np.append(values, 0))
        n = np.append(np.full(20, 19), 20)
        products = (total**2 - squares) / n / (n - 1)
        low, high = jackknife_interval(products[-1], products[:-1]) or (0, 0)
        covered.append(low <= 1 <= high)
    assert 0.91 <= np.mean(covered) <= 0.98
