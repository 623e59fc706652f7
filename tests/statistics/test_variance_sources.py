"""A difference between trained designs has an error from items and one from trainings."""

import numpy as np
import pytest
from scipy import stats
from unmask.statistics.variance_sources import items_and_seeds_test, t_of_sources


def test_one_source_is_the_t_test() -> None:
    values = np.random.default_rng(0).normal(0.3, 1, 20)
    wanted = stats.ttest_1samp(values, 0)
    found = t_of_sources(float(values.mean()), [(float(values.var(ddof=1)) / 20, 19)], 20, "items")
    assert found.p == pytest.approx(wanted.pvalue)
    assert found.interval == pytest.approx(tuple(wanted.confidence_interval(0.95)))


def test_two_sources_are_welchs_test() -> None:
    """The difference of two means has the variance of both, with Satterthwaite's degrees of freedom. That is Welch's t-test."""
    random = np.random.default_rng(1)
    a, b = random.normal(0.5, 1, 8), random.normal(0, 3, 5)
    found = t_of_sources(a.mean() - b.mean(), [(a.var(ddof=1) / 8, 7), (b.var(ddof=1) / 5, 4)], 13, "items")
    assert found.p == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue)


def simulated(random: np.random.Generator, seeds: int, of_seeds: float, difference: float = 0.0) -> float:
    """p of two designs on 60 items. Items are hard for both alike, and each training has an error of its own on all items."""
    hard = random.normal(0, 1, 60)
    scores = [
        hard + random.normal(0, of_seeds, (seeds, 1)) + random.normal(0, 0.5, (seeds, 60)) + shift
        for shift in (difference, 0.0)
    ]
    drawn = random.integers(0, 60, (400, 60))
    samples = tuple(side[:, None, drawn].mean(axis=3) for side in scores)
    points = tuple(side.mean(axis=1, keepdims=True) for side in scores)
    return items_and_seeds_test(samples, points, [60]).p  # type: ignore[arg-type]


@pytest.mark.sample(1)
@pytest.mark.parametrize("of_seeds", [0.0, 0.3, 2.0])
def test_equal_designs_are_rarely_told_apart_however_much_trainings_differ(of_seeds: float) -> None:
    random = np.random.default_rng(2)
    found = np.mean([simulated(random, 3, of_seeds) < 0.05 for _ in range(300)])
    assert found < 0.09


def test_designs_that_differ_are_told_apart() -> None:
    random = np.random.default_rng(3)
    assert np.mean([simulated(random, 3, 0.05, difference=1.0) < 0.05 for _ in range(50)]) > 0.9


def test_a_design_without_training_has_one_run() -> None:
    random = np.random.default_rng(4)
    samples, points = random.normal(size=(3, 2, 200)), random.normal(size=(3, 2))
    found = items_and_seeds_test((samples, np.zeros((1, 2, 200))), (points, np.zeros((1, 2))), [25, 25])
    assert found.difference == pytest.approx(points.mean())
    with pytest.raises(ValueError, match="several seeds"):
        items_and_seeds_test((samples[:1], samples[:1]), (points[:1], points[:1]), [25, 25])


def test_two_readings_of_the_same_trainings_are_paired() -> None:
    """A training moves both alike, so only the spread of the differences counts."""
    run = np.array([[0.0], [0.3], [-0.3]])
    points = (run + 0.02 + np.array([[0.001], [0.0], [-0.001]]), run)
    samples = tuple(side[:, :, None] + np.zeros((3, 1, 200)) for side in points)
    apart, paired = (items_and_seeds_test(samples, points, [50], paired=one) for one in (False, True))  # type: ignore[arg-type]
    assert apart.p > 0.5 and paired.p == pytest.approx(stats.ttest_1samp([0.021, 0.02, 0.019], 0).pvalue)
    assert apart.difference == paired.difference


def test_few_items_of_a_task_leave_few_degrees_of_freedom() -> None:
    """One task of five items decides the variance. Then there are four degrees of freedom, however many items the other task has."""
    random = np.random.default_rng(5)
    samples = np.stack([random.normal(0, 1, (2, 4000)), random.normal(0, 0.01, (2, 4000))], axis=1)
    found = items_and_seeds_test((samples, np.zeros((1, 2, 4000))), (np.full((2, 2), 0.2), np.zeros((1, 2))), [5, 500])
    half = np.ptp(found.interval) / 2
    error = np.sqrt(samples[:, 0].mean(axis=0).var(ddof=1) / 4 * 5 / 4)
    assert half == pytest.approx(error * stats.t.ppf(0.975, 4), rel=0.02)


def test_items_that_all_agree_do_not_prove_a_difference_of_exactly_zero() -> None:
    low, high = t_of_sources(0.0, [(0.0, 9)], 10, "items").interval
    assert low < -0.1 and high > 0.1
