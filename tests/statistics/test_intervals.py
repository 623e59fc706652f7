"""An interval has a width, holds the truth as often as it says, and agrees with the test that is printed beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from unmask.statistics.bootstrap import METRICS, Items, bootstrap, interval, score
from unmask.statistics.intervals import mean_interval, score_interval, unseen, wilson
from unmask.statistics.paired import difference_test, paired_bootstrap, told_apart, with_holm

PERFECT: dict[str, dict[str, Any]] = {
    "mean": {"value": np.ones(20)},
    "spearman": {"predicted": np.arange(20.0), "gold": np.arange(20.0)},
    "average-precision": {"predicted": np.arange(20.0), "label": np.arange(20) > 12},
    "v-measure": {"assigned": np.arange(20)[:, None] % 4, "label": np.arange(20)[:, None] % 4},
    "ratio": {"above": np.full(20, 5), "below": np.full(20, 5), "gold": np.full(20, 5)},
}


def known(items: Items, resamples: int = 1000) -> tuple[float, float]:
    found = score_interval(items, resamples=resamples)
    assert found is not None
    return found


@pytest.mark.parametrize("metric", METRICS)
def test_a_perfect_score_on_twenty_items_is_not_certain(metric: str) -> None:
    items = Items(metric, PERFECT[metric])
    assert score(items) == pytest.approx(1)
    low, high = known(items)
    width = 2 if metric == "spearman" else 1  # from -1 to 1
    assert (low, high) == pytest.approx((1 - width * 0.1611, 1), abs=1e-3)


def test_twenty_of_twenty_is_84_to_100() -> None:
    assert wilson(20, 20) == pytest.approx((0.8389, 1), abs=1e-4)
    assert score_interval(Items("mean", {"value": np.zeros(20)})) == pytest.approx((0, 0.1611), abs=1e-4)
    assert score_interval(Items("mean", {"value": np.arange(20) > 0})) == pytest.approx(wilson(19, 20))


@given(st.integers(0, 30), st.integers(1, 30), st.sampled_from([0.9, 0.95, 0.999]))
def test_wilson_is_scipys(successes: int, more: int, level: float) -> None:
    n = successes + more
    expected = stats.binomtest(successes, n).proportion_ci(level, method="wilson")
    assert wilson(successes, n, level) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_other_scores_keep_their_bootstrap() -> None:
    items = Items("mean", {"value": np.random.default_rng(0).random(50)})
    assert score_interval(items) == interval(bootstrap(items, 1000))


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
    found = mean_interval([score(items) for items in tasks], [known(items, 20_000) for items in tasks])
    assert found == pytest.approx(interval(drawn), abs=0.002)
    assert mean_interval([0.4], [(0.3, 0.6)]) == pytest.approx((0.3, 0.6))


def test_designs_that_no_item_tells_apart_may_differ_on_others() -> None:
    items = Items("mean", {"value": np.random.default_rng(0).random(40)})
    test = paired_bootstrap([items], [items])
    assert test.interval == pytest.approx((-unseen(40), unseen(40)))
    assert 0.08 < unseen(40) < 0.09, "about three in a hundred and twenty (the rule of three is one-sided)"
    few = Items("mean", {"value": np.random.default_rng(0).random(5)})
    low, high = paired_bootstrap([items, few], [items, few]).interval
    assert (low, high) == pytest.approx((-unseen(10), unseen(10))), "what is not known of the smaller task counts"


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(2, 7), st.integers(5, 60), st.floats(0, 0.3), st.booleans())
def test_after_the_correction_interval_and_test_never_disagree(
    seed: int, designs: int, n: int, lead: float, normal: bool
) -> None:
    random = np.random.default_rng(seed)
    shared = random.random(n)
    values = [
        np.clip(shared + lead * place + random.normal(0, 0.1, n), 0, 1).round(random.integers(0, 4)) for place in range(designs)
    ]
    items = [Items("mean", {"value": value}) for value in values]
    drawn = [bootstrap(one, 600)[None] for one in items]
    tests = with_holm(
        [
            difference_test(drawn[a], drawn[b], [score(items[a])], [score(items[b])], n, normal=normal)
            for a in range(designs)
            for b in range(a)
        ]
    )
    for test in tests:
        low, high = test.interval
        assert low < high
        assert low <= test.difference <= high
        assert told_apart(test) == (not low <= 0 <= high)
        assert not told_apart(test) or (test.p_holm or 0) < 0.05
        assert test.level >= 0.95


def test_a_family_widens_intervals_as_it_raises_p() -> None:
    random = np.random.default_rng(1)
    base = random.random(200)
    items = [Items("mean", {"value": base + shift + random.normal(0, 0.2, 200)}) for shift in (0, 0.0, 0.005, 0.1, 0.3)]
    tests = [paired_bootstrap([one], [items[0]]) for one in items[1:]]
    family = with_holm(tests)
    assert [told_apart(test) for test in family] == [False, False, True, True]
    levels = [test.level for test in family]
    assert levels[:2] == pytest.approx([1 - 0.05 / 2] * 2), "where Holm stopped, two were left"
    assert sorted(levels[2:]) == pytest.approx([1 - 0.05 / 3, 1 - 0.05 / 4])
    for alone, corrected in zip(tests, family, strict=True):
        assert corrected.interval[0] <= alone.interval[0] and alone.interval[1] <= corrected.interval[1]
