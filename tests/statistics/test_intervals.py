"""An interval has a width, covers the truth as often as it says, and agrees with the test beside it."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.stats import t

from unmask.statistics.bootstrap import METRICS, Items, bootstrap, interval, score
from unmask.statistics.intervals import jackknife_interval, mean_interval, score_interval, wilson
from unmask.statistics.paired import SampledScores, compare_on_items, paired_bootstrap, with_holm

PERFECT: dict[str, dict[str, Any]] = {
    "mean": {"value": np.ones(20)},
    "spearman": {"predicted": np.arange(20.0), "gold": np.arange(20.0)},
    "average-precision": {"predicted": np.arange(20.0), "label": np.arange(20) > 12},
    "v-measure": {"assigned": np.arange(20)[:, None] % 4, "label": np.arange(20)[:, None] % 4},
    "ratio": {"above": np.full(20, 5), "below": np.full(20, 5), "gold": np.full(20, 5)},
}


@pytest.mark.parametrize("metric", METRICS)
def test_a_perfect_score_on_twenty_items_is_not_certain(metric: str) -> None:
    items = Items(metric, PERFECT[metric])
    width = 2 if metric == "spearman" else 1  # from -1 to 1
    assert score(items) == pytest.approx(1)
    assert score_interval(items) == pytest.approx((1 - width * 0.1611, 1), abs=1e-3)


@given(st.integers(0, 30), st.integers(1, 30), st.sampled_from([0.9, 0.95, 0.999]))
def test_wilson_is_scipys(successes: int, more: int, level: float) -> None:
    n = successes + more
    expected = stats.binomtest(successes, n).proportion_ci(level, method="wilson")
    assert wilson(successes, n, level) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_a_higher_level_is_wider_and_stays_within_the_scale() -> None:
    items = Items("mean", {"value": np.random.default_rng(0).random(20) ** 0.1})
    at = {level: score_interval(items, level) for level in (0.95, 0.99, 0.9999)}
    assert at[0.95] and at[0.99] and at[0.9999]
    assert at[0.9999][0] < at[0.99][0] < at[0.95][0] and at[0.95][1] <= at[0.99][1] <= at[0.9999][1] <= 1
    assert (score(items) - at[0.99][0]) / (score(items) - at[0.95][0]) == pytest.approx(2.5758 / 1.96, abs=1e-3)


def test_the_interval_of_a_mean_is_that_of_a_bootstrap_of_all_tasks() -> None:
    random = np.random.default_rng(0)
    tasks = [Items("mean", {"value": random.random(80) ** power}) for power in (1, 2, 5)]
    drawn = np.mean([bootstrap(items, 20_000, seed) for seed, items in enumerate(tasks)], axis=0)
    found = mean_interval([score(items) for items in tasks], [score_interval(items, resamples=20_000) for items in tasks])  # type: ignore[misc]
    assert found == pytest.approx(interval(drawn), abs=0.002)
    assert mean_interval([0.4], [(0.3, 0.6)]) == pytest.approx((0.3, 0.6))


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(2, 6), st.integers(5, 60), st.floats(0, 0.3), st.booleans())
def test_after_the_correction_interval_and_test_never_disagree(
    seed: int, designs: int, n: int, lead: float, normal: bool
) -> None:
    random = np.random.default_rng(seed)
    shared = random.random(n)
    values = [np.clip(shared + lead * k + random.normal(0, 0.1, n), 0, 1).round(random.integers(0, 4)) for k in range(designs)]
    drawn = [SampledScores.draw([[Items("mean", {"value": value})]], 600) for value in values]
    for test in with_holm([compare_on_items(a, b, normal=normal) for a, b in combinations(drawn, 2)]):
        low, high = test.interval
        assert low < high and low <= test.difference <= high and test.level >= 0.95
        assert test.is_significant() == (not low <= 0 <= high)
        assert not test.is_significant() or (test.p_holm or 0) < 0.05


def test_a_family_widens_intervals_as_it_raises_p() -> None:
    random = np.random.default_rng(1)
    base = random.random(200)
    items = [Items("mean", {"value": base + shift + random.normal(0, 0.2, 200)}) for shift in (0, 0.0, 0.005, 0.1, 0.3)]
    tests = [paired_bootstrap([one], [items[0]]) for one in items[1:]]
    family = with_holm(tests)
    assert [test.is_significant() for test in family] == [False, False, True, True]
    levels = [test.level for test in family]
    assert levels[:2] == pytest.approx([1 - 0.05 / 2] * 2), "where Holm stopped, two were left"
    assert sorted(levels[2:]) == pytest.approx([1 - 0.05 / 3, 1 - 0.05 / 4])
    for alone, corrected in zip(tests, family, strict=True):
        assert corrected.interval[0] <= alone.interval[0] and alone.interval[1] <= corrected.interval[1]


def test_the_jackknife_of_a_mean_is_students_interval_within_the_scale() -> None:
    values = np.random.default_rng(0).normal(size=40)
    left_out, error = (values.sum() - values) / 39, values.std(ddof=1) / np.sqrt(40)
    for level in (0.95, 0.5):
        expected = t.interval(level, 39, values.mean(), error)
        assert jackknife_interval(float(values.mean()), left_out, level=level) == pytest.approx(expected)
    low, high = jackknife_interval(0.95, np.array([0.8, 0.9, 1.0, 1.0, 1.0]), most=1.0) or (0, 0)
    assert low < 0.95 and high == 1
