"""Every test of two systems equals scipy's, a textbook's or a simulation's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tests.statistics.made_items import items_of, random_items
from unmask.statistics import paired
from unmask.statistics.bootstrap import METRICS, Items
from unmask.statistics.intervals import unseen
from unmask.statistics.paired import (
    SampledScores,
    compare_on_items,
    holm,
    paired_bootstrap,
    seed_test,
    sign_flip_p,
    t_test,
    task_changes,
    wilcoxon,
)

# Depression scores of nine patients, first and second visit: Hollander and Wolfe (1973), as in R's ?wilcox.test.
FIRST = np.array([1.83, 0.50, 1.62, 2.48, 1.68, 1.88, 1.55, 3.06, 1.30])

SECOND = np.array([0.878, 0.647, 0.598, 2.05, 1.06, 1.29, 1.06, 3.14, 1.29])


def test_wilcoxon_of_the_depression_data_is_rs() -> None:
    # wilcox.test(x, y, paired = TRUE): V = 40, p-value = 0.03906 = 20/512. W- = 45 - 40 = 5; r = (40 - 5) / 45.
    test = wilcoxon(FIRST, SECOND)
    assert test.p == pytest.approx(20 / 512)
    assert test.effect == pytest.approx(35 / 45)
    assert test.difference == pytest.approx((FIRST - SECOND).mean())
    assert test.interval[0] < test.difference < test.interval[1]
    assert (test.n, test.unit, test.p_holm, test.level) == (9, "tasks", None, 0.95)
    assert test.test == "Wilcoxon signed-rank (two-sided, exact)"


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(-3, 3), min_size=6, max_size=8).filter(any))
def test_wilcoxon_is_scipys_permutation_test_with_ties(differences: list[int]) -> None:
    expected = stats.wilcoxon(differences, method=stats.PermutationMethod(n_resamples=2**8)).pvalue
    assert wilcoxon(differences, np.zeros(len(differences)), resamples=2).p == pytest.approx(expected)


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 2**32 - 1), st.integers(6, 60))
def test_wilcoxon_is_scipys_exact_test_without_ties(seed: int, n: int) -> None:
    a, b = np.random.default_rng(seed).normal(size=(2, n))
    assert wilcoxon(a, b, resamples=2).p == pytest.approx(stats.wilcoxon(a, b, method="exact").pvalue, rel=1e-9)


def design(number: int) -> list[Items]:
    return [random_items(metric, 40, seed, number) for seed, metric in enumerate(METRICS)]


def test_swapping_the_designs_swaps_the_signs_and_nothing_else() -> None:
    tests = [(wilcoxon, FIRST, SECOND), (paired_bootstrap, design(1), design(2))]
    for test, a, b in tests:
        there, back = test(a, b), test(b, a)  # type: ignore[operator]
        assert 0 < there.p == back.p < 1
        assert (there.difference, there.effect) == pytest.approx((-back.difference, -back.effect))
        assert there.interval == pytest.approx(back.mirrored().interval)


def sampled(points: Sequence[float], samples: np.ndarray) -> SampledScores:
    items = [[Items("mean", {"value": np.zeros(15)})] for _ in points]
    return SampledScores(items, np.array([points], float), samples)


def test_the_bootstrap_test_by_hand() -> None:
    # Two tasks; differences averaged over them: -1 0 1 2 3, of mean 1, the one observed. 2 are <= 0, 4 are >= 0:
    # p = 2 (2 + 1) / (5 + 1) = 1. Standard deviation sqrt(10 / 4); the last resample has no score on the second task.
    a, b = sampled([1.5, 0.5], np.array([[-2.0, 0, 2, 4, 6, 1], [0, 0, 0, 0, 0, np.nan]])), sampled([0, 0], np.zeros((2, 6)))
    test = compare_on_items(a, b, interaction=True)
    assert (test.n, test.unit, test.difference, test.p) == (30, "items", 1.0, 1.0)
    assert test.effect == pytest.approx(1 / np.sqrt(2.5))
    assert test.interval == pytest.approx((-0.9, 2.9))
    assert test.test == "paired bootstrap over items (two-sided, 5 resamples, 1 more undefined)"
    # 1 2 3 ... 99: none is <= 0, and p = 2 (0 + 1) / (99 + 1), never zero.
    a, b = sampled([50], np.arange(1.0, 100)[None]), sampled([0], np.zeros((1, 99)))
    assert compare_on_items(a, b, interaction=True).p == pytest.approx(0.02)


def test_the_normal_p_is_that_of_counting() -> None:
    random = np.random.default_rng(3)
    shared = random.normal(size=400)
    a, b = (
        SampledScores.draw([[Items("mean", {"value": shared + random.normal(shift, 0.2, 400)})]], 20_000) for shift in (0.03, 0)
    )
    counted, normal = (compare_on_items(a, b, normal=normal, interaction=True) for normal in (False, True))
    assert normal.p == pytest.approx(counted.p, rel=0.12, abs=0.003)
    assert (normal.effect, normal.difference) == (counted.effect, counted.difference)
    assert normal.interval == pytest.approx(counted.interval, abs=0.001)


def test_the_same_difference_on_every_item_is_infinitely_many_standard_errors() -> None:
    value = np.random.default_rng(0).random(20)
    test = paired_bootstrap([Items("mean", {"value": value + 0.1})], [Items("mean", {"value": value})], 99)
    assert (test.effect, test.difference) == (np.inf, 0.1)
    assert test.p == pytest.approx(2 / 2**20), "two of all ways to set twenty signs"
    assert test.interval == pytest.approx((0.1 - 0.2 * unseen(20), 0.1 + 0.2 * unseen(20)))
    assert test.winner == "a"


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([], []),
        (design(1), design(2)[:3]),
        (design(1), design(2)[::-1]),
        ([random_items("spearman", seed=1)], [random_items("spearman", seed=2)]),
    ],
)
def test_paired_bootstrap_refuses_other_tasks_items_or_gold(a: list[Items], b: list[Items]) -> None:
    with pytest.raises(ValueError, match=r"the same (tasks|items)"):
        paired_bootstrap(a, b, 10)


@pytest.mark.parametrize(("better", "worse"), [(4, 0), (300, 260)])
def test_the_sign_flip_test_of_items_that_are_right_or_wrong_is_mcnemars(better: int, worse: int) -> None:
    a, b = np.ones(600), np.ones(600)
    b[:better], a[better : better + worse] = 0, 0
    test = paired_bootstrap([Items("mean", {"value": a})], [Items("mean", {"value": b})], 500)
    assert test.p == pytest.approx(stats.binomtest(better, better + worse).pvalue)
    assert test.test == "exact sign-flip test over items (two-sided; interval: paired bootstrap, 500 resamples)"


@settings(deadline=None, max_examples=30)
@given(st.lists(st.sampled_from([-0.3, -0.2, -0.1, 0.0, 0.1, 0.2, 0.3]), min_size=1, max_size=9))
def test_the_sign_flip_test_is_scipys_permutation_test(changes: list[float]) -> None:
    signs = np.array(np.meshgrid(*[[-1, 1]] * len(changes))).reshape(len(changes), -1)
    expected = np.mean(np.abs(np.array(changes) @ signs) >= abs(sum(changes)) - 1e-9)
    assert sign_flip_p(changes) == pytest.approx(expected)


def test_the_sign_flip_test_weighs_items_by_the_size_of_their_task_and_averages_seeds() -> None:
    def runs(*values: Sequence[float]) -> list[Items]:
        return [items_of("mean", value=value) for value in values]

    small, large = ([1, 1, 0, 0], [0, 1, 0, 0]), ([1] * 9 + [0], [0] * 9 + [1])
    changes = task_changes(*([runs(small[side]), runs(large[side])] for side in (0, 1)))
    assert changes == pytest.approx([1 / 8, 0, 0, 0, *[1 / 20] * 9, -1 / 20])
    # One change of 2.5 twentieths, ten of 1; observed 2.5 + 9 - 1 = 10.5. As far: 2.5 + 8 (10 ways), 2.5 + 10 (1 way), and their mirrors.
    assert sign_flip_p(changes) == pytest.approx(2 * 11 / 2**11)
    seeds = task_changes([runs([1, 1], [1, 0])], [runs([0, 0])])
    assert seeds == pytest.approx([1 / 2, 1 / 4])


def test_scores_that_are_no_sum_over_items_keep_the_p_of_the_bootstrap() -> None:
    assert [task_changes([[random_items(metric)]], [[random_items(metric, design=1)]]) is None for metric in METRICS] == [
        False,
        True,
        True,
        True,
        True,
    ], "a ratio whose denominators differ is an F1"
    words = [items_of("ratio", above=above, below=[3, 5], gold=[3, 5]) for above in ([3, 2], [1, 2])]
    assert task_changes([[words[0]]], [[words[1]]]) == pytest.approx([2 / 8, 0])
    assert paired_bootstrap(design(1), design(2), 300).test == "paired bootstrap over items (two-sided, 300 resamples)"
    assert sign_flip_p(np.random.default_rng(0).random(20)) == pytest.approx(2 / 2**20)
    assert sign_flip_p(np.random.default_rng(0).random(21)) is None, "too many sums to count"


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_keeps_the_order_and_lies_between_nothing_and_bonferroni(p_values: list[float]) -> None:
    p, corrected = np.array(p_values), np.array(holm(p_values))
    assert (np.diff(corrected[np.argsort(p)]) >= 0).all()
    assert (corrected >= p).all()
    assert (corrected <= np.minimum(1, p * len(p))).all()
    # Rejecting at 0.05 is the step-down procedure itself: from the smallest p, until one fails alpha / (those left).
    steps = np.sort(p) * np.arange(len(p), 0, -1) <= 0.05
    assert (corrected <= 0.05).sum() == np.cumprod(steps).sum()


@pytest.mark.parametrize("shift", [0.0, 0.05, 0.12])
def test_many_differences_have_nearly_the_exact_p(shift: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above 500 differences p is from the normal distribution. Ties are among them."""
    differences = np.round(np.random.default_rng(3).normal(shift, 1, 400), 1)
    exact = wilcoxon(differences, np.zeros(400))
    monkeypatch.setattr(paired, "_MOST_COUNTED", 100)
    quick = wilcoxon(differences, np.zeros(400))
    assert quick.p == pytest.approx(exact.p, rel=0.03)
    assert quick.effect == exact.effect


Scores = np.ndarray


def simulated(
    random: np.random.Generator, seeds: tuple[int, int], tasks: int, runs: tuple[float, float], task: float, rest: float
) -> tuple[Scores, Scores]:
    """Scores (seed, task) of two designs that are equal on average, with deviations of runs, of designs by task, and the rest."""
    shared, own = random.normal(0, 5, tasks), random.normal(0, task, tasks)
    a, b = (random.normal(0, run, (n, 1)) + random.normal(0, rest, (n, tasks)) for n, run in zip(seeds, runs, strict=True))
    return a + shared + own, b + shared


def example() -> tuple[Scores, Scores]:
    return simulated(np.random.default_rng(1), (3, 4), 8, (0.5, 0.5), 1, 0.3)


def test_the_error_is_that_of_tasks_and_of_the_runs_of_each_design() -> None:
    a, b = example()
    found, difference = seed_test(a, b), a.mean(axis=0) - b.mean(axis=0)
    parts = [(difference.var(ddof=1) / 8, 7), (a.mean(axis=1).var(ddof=1) / 3, 2), (b.mean(axis=1).var(ddof=1) / 4, 3)]
    variance = sum(part for part, _ in parts)
    freedom = variance**2 / sum(part**2 / count for part, count in parts)
    assert found.p_both == pytest.approx(2 * stats.t.sf(abs(difference.mean()) / np.sqrt(variance), freedom))


SIMULATIONS = [((2, 2), (1, 1), 0.1, 0.1), ((5, 5), (0, 0), 1, 0.3), ((3, 5), (1, 0.2), 0.3, 0.3), ((5, 3), (0.2, 1), 0.3, 0.3)]
"""Seeds of both designs, the deviations of their runs, of designs by task, and of the rest. A test with one variance for the runs of both
designs finds 17 % of the last two."""


@pytest.mark.sample(3)
@pytest.mark.parametrize(("seeds", "runs", "task", "rest"), SIMULATIONS)
def test_false_findings_and_intervals_are_as_stated_whatever_varies(
    seeds: tuple[int, int], runs: tuple[float, float], task: float, rest: float
) -> None:
    random = np.random.default_rng(seeds[0])
    found = [seed_test(*simulated(random, seeds, 12, runs, task, rest)) for _ in range(300)]
    assert np.mean([test.test.p < 0.05 for test in found]) <= 0.095  # 0.05 and 3.5 standard errors
    assert np.mean([test.p_both < 0.05 for test in found]) >= 0.003
    held = np.mean([test.test.interval[0] <= 0 <= test.test.interval[1] for test in found])
    assert 0.905 <= held <= 0.997
    if min(runs):  # why p_tasks does not do
        assert np.mean([test.p_tasks < 0.05 for test in found]) > 0.2


def test_p_tasks_is_wilcoxons_of_the_means_and_the_larger_p_counts() -> None:
    a, b = example()
    found, expected = seed_test(a, b), wilcoxon(a.mean(axis=0), b.mean(axis=0))
    assert (found.p_tasks, found.test.effect, found.test.difference) == (expected.p, expected.effect, expected.difference)
    assert found.test.p == max(found.p_tasks, found.p_both)
    assert found.test.test == (
        "Wilcoxon signed-rank (two-sided, exact) of means over 3 seeds and 4 seeds, and t over tasks and seeds: the larger p"
    )


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (np.ones((1, 8)), np.ones((3, 8)), "With one seed"),
        (np.tile(np.arange(8.0), (3, 1)), np.ones(8), "seeds that all score the same"),
        (np.ones(8), np.ones(8), "compare them with wilcoxon"),
        (example()[0], np.ones(7), "one score for each task"),
        (np.where(np.eye(3, 8), np.nan, 1.0), np.ones(8), "nan or infinite"),
        (example()[0][:, :5], np.ones(5), "at least 6 tasks, not 5"),
    ],
)
def test_what_a_seed_test_cannot_answer_is_refused(a: Scores, b: Scores, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        seed_test(a, b)


def read_twice(random: np.random.Generator, shift: float) -> tuple[Scores, Scores]:
    """Two readings of the same four trained models: a training moves both alike."""
    run, own = random.normal(0, 3, (4, 1)), random.normal(0, 1, 10)
    a, b = (run + random.normal(0, 0.2, (4, 1)) + random.normal(0, 0.3, (4, 10)) for _ in range(2))
    return a + own + shift, b


def test_two_readings_of_the_same_trainings_are_paired() -> None:
    """A training that is worse for both says nothing of their difference."""
    random = np.random.default_rng(11)
    equal = [seed_test(*read_twice(random, 0), paired=True).test.p < 0.05 for _ in range(400)]
    assert np.mean(equal) < 0.09
    apart = [read_twice(random, 1.5) for _ in range(50)]
    found, alone = (np.mean([seed_test(*pair, paired=paired).test.p < 0.05 for pair in apart]) for paired in (True, False))
    assert found > 0.8 > 0.2 > alone
    paired = seed_test(*apart[0], paired=True)
    assert "of means over the same 4 seeds" in paired.test.test


def test_t_of_two_variances_is_welchs_test() -> None:
    random = np.random.default_rng(1)
    a, b = random.normal(0.5, 1, 8), random.normal(0, 3, 5)
    test, welch = (
        t_test(a.mean() - b.mean(), [(a.var(ddof=1) / 8, 7), (b.var(ddof=1) / 5, 4)], 13, "items"),
        stats.ttest_ind(a, b, equal_var=False),
    )
    assert (test.p, *test.interval) == pytest.approx((welch.pvalue, *welch.confidence_interval(0.95)))


def items_of_runs(runs: np.ndarray) -> SampledScores:
    """Scores (run, item) on one task."""
    return SampledScores.draw([[Items("mean", {"value": run}) for run in runs]], 400)


def test_two_readings_of_the_same_trainings_are_paired_over_items() -> None:
    """A training moves both, so only the spread of the differences counts. A design with one run counts as this embedder."""
    run, items = np.array([[0.0], [0.3], [-0.3]]), np.zeros(50)
    a, b = items_of_runs(run + 0.02 + np.array([[0.001], [0.0], [-0.001]]) + items), items_of_runs(run + items)
    apart, paired = (compare_on_items(a, b, same_trainings=same) for same in (False, True))
    exact = sign_flip_p(np.full(50, 0.02 / 50)) or 0.0
    assert apart.p > 0.5 and paired.p == pytest.approx(max(exact, stats.ttest_1samp([0.021, 0.02, 0.019], 0).pvalue))
    assert apart.difference == paired.difference
    assert compare_on_items(a, items_of_runs(run[:1] + items)).difference == pytest.approx(0.02)


def test_few_items_of_a_task_leave_few_degrees_of_freedom() -> None:
    """One task of five items decides the variance. Then there are four degrees of freedom, however many items the other task has."""
    random = np.random.default_rng(5)
    tasks = [[Items("mean", {"value": random.normal(0, spread, n)})] * 2 for spread, n in ((1, 5), (0.01, 500))]
    none = [[Items("mean", {"value": np.zeros(n)})] * 2 for n in (5, 500)]
    a, b = (SampledScores.draw(side, 4000) for side in (tasks, none))
    test = compare_on_items(a, b)
    error = np.sqrt(a.samples[0].var(ddof=1) / 4 * 5 / 4)
    assert np.ptp(test.interval) / 2 == pytest.approx(error * stats.t.ppf(0.975, 4), rel=0.02)
