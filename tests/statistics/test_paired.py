"""Every paired test does as its textbook or a simulation says."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tests.statistics.made_items import items_of, random_items
from unmask.statistics import paired
from unmask.statistics.bootstrap import METRICS, Items, score
from unmask.statistics.intervals import unseen
from unmask.statistics.paired import (
    bootstrap_tasks,
    difference_test,
    holm,
    paired_bootstrap,
    sign_flip_p,
    task_changes,
    told_apart,
    wilcoxon,
    with_holm,
)

# --- Wilcoxon --------------------------------------------------------------------------------------------------------

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


def test_wilcoxon_drops_ties_between_designs_and_shares_ranks_between_tasks() -> None:
    # Differences 1 1 1 1 1 -1, 0 0: ranks all 3.5, W+ = 17.5, W- = 3.5, r = 14/21. Five pluses or six: 7 of 64 ways.
    a, b = np.array([3, 3, 3, 3, 3, 1, 2, 2]) / 10, np.full(8, 0.2)  # 0.3 - 0.2 is not 0.2 - 0.1 in floating point
    test = wilcoxon(a, b)
    assert test.p == pytest.approx(2 * 7 / 64)
    assert test.effect == pytest.approx(14 / 21)
    assert test.difference == pytest.approx(0.05)  # 0.4 over all 8 tasks
    assert (test.n, test.test) == (8, "Wilcoxon signed-rank (two-sided, exact, 2 zero differences dropped)")


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(6, 60))
def test_wilcoxon_is_scipys_exact_test_where_nothing_ties(seed: int, n: int) -> None:
    a, b = np.random.default_rng(seed).normal(size=(2, n))
    assert wilcoxon(a, b, resamples=2).p == pytest.approx(stats.wilcoxon(a, b, method="exact").pvalue, rel=1e-9)


@pytest.mark.sample(0)
@settings(deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=6, max_size=8).filter(any))
def test_wilcoxon_is_scipys_permutation_test_where_something_does(differences: list[int]) -> None:
    expected = stats.wilcoxon(differences, method=stats.PermutationMethod(n_resamples=2**8)).pvalue
    assert wilcoxon(differences, np.zeros(len(differences)), resamples=2).p == pytest.approx(expected)


def test_wilcoxon_of_equal_designs_finds_nothing() -> None:
    test = wilcoxon(FIRST, FIRST)
    assert (test.p, test.effect, test.difference) == (1.0, 0.0, 0.0)
    assert test.interval == pytest.approx((-unseen(9), unseen(9)))


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (np.arange(5), np.zeros(5), "at least 6 tasks, not 5: .* 0.0625"),
        (np.arange(6), np.zeros(7), "one score for each task"),
        (np.append(np.arange(6.0), np.nan), np.zeros(7), "nan or infinite"),
    ],
)
def test_wilcoxon_refuses(a: np.ndarray, b: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wilcoxon(a, b)


def test_six_tasks_are_the_fewest_that_can_be_significant() -> None:
    assert wilcoxon(np.arange(1, 7), np.zeros(6)).p == pytest.approx(2 / 64)


# --- paired bootstrap ------------------------------------------------------------------------------------------------


def design(number: int, n: int = 40) -> list[Items]:
    return [random_items(metric, n, seed, number) for seed, metric in enumerate(METRICS)]


def test_a_design_does_not_differ_from_itself() -> None:
    test = paired_bootstrap(design(1), design(1), 200)
    assert (test.difference, test.p, test.effect) == (0.0, 1.0, 0.0)
    assert test.interval == pytest.approx((-unseen(200), unseen(200))), "of 200 items none tells them apart"


@pytest.mark.parametrize("metric", METRICS)
def test_designs_that_differ_on_one_item_are_not_told_apart(metric: str) -> None:
    # That item is missing from (1 - 1/n)^n, a third, of the resamples, which count for both sides: p is above a half.
    items = random_items(metric)
    made = METRICS[metric].made
    changed = items.columns[made].copy()
    changed[0] = changed[0] + 1
    test = paired_bootstrap([items], [Items(metric, {**items.columns, made: changed})], 500)
    assert test.difference != 0
    assert test.p > 0.5


@pytest.mark.parametrize("compare", ["wilcoxon", "paired bootstrap"])
def test_swapping_the_designs_swaps_the_signs_and_nothing_else(compare: str) -> None:
    if compare == "wilcoxon":
        there, back = wilcoxon(FIRST, SECOND), wilcoxon(SECOND, FIRST)
    else:
        there, back = paired_bootstrap(design(1), design(2), 300), paired_bootstrap(design(2), design(1), 300)
    assert 0 < there.p == back.p < 1
    assert there.difference == -back.difference != 0
    assert there.effect == pytest.approx(-back.effect)
    assert there.interval == pytest.approx((-back.interval[1], -back.interval[0]))


def test_difference_test_by_hand() -> None:
    # Two tasks; differences averaged over them: -1 0 1 2 3, of mean 1, the one observed. 2 are <= 0, 4 are >= 0:
    # p = 2 (2 + 1) / (5 + 1) = 1. Standard deviation sqrt(10 / 4); the last resample has no score on the second task.
    samples = np.array([[-2.0, 0, 2, 4, 6, 1], [0, 0, 0, 0, 0, np.nan]])
    test = difference_test(samples, np.zeros((2, 6)), [1.5, 0.5], [0, 0], n=30)
    assert (test.n, test.unit, test.difference, test.p) == (30, "items", 1.0, 1.0)
    assert test.effect == pytest.approx(1 / np.sqrt(2.5))
    assert test.interval == pytest.approx((-0.9, 2.9))
    assert test.test == "paired bootstrap over items (two-sided, 5 resamples, 1 more undefined)"
    # 1 2 3 ... 99: none is <= 0, and p = 2 (0 + 1) / (99 + 1), never zero.
    assert difference_test(np.arange(1.0, 100)[None], np.zeros((1, 99)), [50], [0], n=2).p == pytest.approx(0.02)


def test_difference_test_centres_on_the_observed_difference_but_leaves_ties_alone() -> None:
    # 0 0 2 6 of mean 2, observed 3: 0 0 3 7. All four are >= 0 and two <= 0: p = 2 (2 + 1) / 5, at most 1.
    test = difference_test([[0.0, 0, 2, 6]], np.zeros((1, 4)), [3], [0], n=2, level=0.999999)
    assert test.interval == pytest.approx((0, 7), abs=1e-4)
    assert test.p == 1.0


def test_the_same_difference_on_every_item_is_infinitely_many_standard_errors() -> None:
    value = np.random.default_rng(0).random(20)
    test = paired_bootstrap([Items("mean", {"value": value + 0.1})], [Items("mean", {"value": value})], 99)
    assert (test.effect, test.difference) == (np.inf, 0.1)
    assert test.p == pytest.approx(2 / 2**20), "two of all ways to set twenty signs"
    assert test.interval == pytest.approx((0.1 - 0.2 * unseen(20), 0.1 + 0.2 * unseen(20)))
    assert told_apart(test)


def test_paired_bootstrap_is_one_difference_test_of_what_each_design_left_behind() -> None:
    a, b = design(1), design(2)
    samples_a, samples_b = (bootstrap_tasks(tasks, 200, seed=5) for tasks in (a, b))
    points_a, points_b = ([score(items) for items in tasks] for tasks in (a, b))
    expected = difference_test(samples_a, samples_b, points_a, points_b, n=200)
    assert paired_bootstrap(a, b, 200, seed=5) == expected
    assert expected.difference == pytest.approx(np.mean(points_a) - np.mean(points_b))


def test_tasks_are_drawn_independently_and_designs_alike() -> None:
    task = random_items("mean", 200)
    first, second = bootstrap_tasks([task, task], 500)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.2
    np.testing.assert_array_equal(bootstrap_tasks([task, task], 500)[1], second)


def test_paired_bootstrap_finds_as_many_false_differences_as_it_says() -> None:
    random = np.random.default_rng(0)
    found = []
    for seed in range(200):
        shared = random.normal(size=50)  # items are hard or easy for both: what the pairing takes out
        a, b = (Items("mean", {"value": shared + random.normal(0, 0.2, 50)}) for _ in range(2))
        found.append(paired_bootstrap([a], [b], 400, seed).p <= 0.05)
    assert 0.01 <= np.mean(found) <= 0.10
    better = Items("mean", {"value": shared + random.normal(0.2, 0.2, 50)})
    assert paired_bootstrap([better], [b], 400).p < 0.05  # unpaired, 0.2 would be one standard error


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ([], [], "at least 1"),
        (design(1), design(2)[:3], "One has 5, the other 3"),
        (design(1), design(2)[::-1], "Task 0 .* mean of 40 items, and ratio of 40"),
        (design(1), design(2, n=41), "mean of 40 items, and mean of 41"),
        ([random_items("spearman", seed=1)], [random_items("spearman", seed=2)], "their columns gold differ"),
    ],
)
def test_paired_bootstrap_refuses_what_is_not_paired(a: list[Items], b: list[Items], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        paired_bootstrap(a, b, 10)


@pytest.mark.parametrize(
    ("samples_a", "samples_b", "points", "message"),
    [
        (np.zeros((2, 5)), np.zeros((2, 6)), [0, 0], "same shape"),
        (np.zeros(5), np.zeros(5), [0], r"\(task, resample\)"),
        (np.zeros((2, 5)), np.zeros((2, 5)), [0], r"shape \(2,\), one score for each task"),
        (np.full((1, 5), np.nan), np.zeros((1, 5)), [0], "Here are 0"),
    ],
)
def test_difference_test_refuses(samples_a: np.ndarray, samples_b: np.ndarray, points: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        difference_test(samples_a, samples_b, points, points, n=10)


# --- sign flips ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("better", "worse"), [(4, 0), (10, 3), (1, 1), (300, 260)])
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


def test_few_items_that_differ_are_not_told_apart_more_often_than_said() -> None:
    random, found = np.random.default_rng(0), []
    for _ in range(400):
        a, b = np.ones(60), np.ones(60)
        for value in (a, b):
            value[random.random(60) < 0.04] = 0
        changes = (a - b) / 60
        found.append((sign_flip_p(changes) or 0.0) < 0.05)
    assert np.mean(found) <= 0.05


# --- Holm ------------------------------------------------------------------------------------------------------------


def test_holm_by_hand() -> None:
    # p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm"). Sorted: .005 * 4 = .02, .01 * 3 = .03, .03 * 2 = .06,
    # .04 * 1 = .04, lifted to the .06 before it.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_keeps_the_order_and_lies_between_nothing_and_bonferroni(p_values: list[float]) -> None:
    p, corrected = np.array(p_values), np.array(holm(p_values))
    assert (np.diff(corrected[np.argsort(p)]) >= 0).all()
    assert (corrected >= p).all()
    assert (corrected <= np.minimum(1, p * len(p))).all()
    # Rejecting at 0.05 is the step-down procedure itself: from the smallest p, until one fails alpha / (those left).
    steps = np.sort(p) * np.arange(len(p), 0, -1) <= 0.05
    assert (corrected <= 0.05).sum() == np.cumprod(steps).sum()


@pytest.mark.parametrize("wrong", [-0.1, 1.1, np.nan])
def test_holm_refuses_what_is_no_probability(wrong: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        holm([0.5, wrong])


def test_with_holm_corrects_all_the_tests_as_one_family_and_changes_nothing_else() -> None:
    tests = [wilcoxon(FIRST, SECOND), wilcoxon(FIRST, FIRST)]
    corrected = with_holm(tests)
    assert [test.p_holm for test in corrected] == pytest.approx([2 * 20 / 512, 1.0])
    assert [test.p for test in corrected] == [test.p for test in tests]


@pytest.mark.parametrize("lead", [0.0, 0.02, 0.03])
def test_the_normal_p_is_that_of_counting_where_both_can_be_had(lead: float) -> None:
    random = np.random.default_rng(3)
    shared = random.normal(size=(400, 1))
    a, b = (Items("mean", {"value": (shared[:, 0] + random.normal(0, 0.2, 400) + shift)}) for shift in (lead, 0.0))
    drawn_a, drawn_b = (bootstrap_tasks([one], 20_000) for one in (a, b))
    counted, normal = (
        difference_test(drawn_a, drawn_b, [score(a)], [score(b)], 400, normal=normal) for normal in (False, True)
    )
    assert normal.p == pytest.approx(counted.p, rel=0.12, abs=0.003)
    assert "normal with the error of 20000 resamples" in normal.test and "normal" not in counted.test
    assert (normal.effect, normal.difference) == (counted.effect, counted.difference)
    assert normal.interval == pytest.approx(counted.interval, abs=0.001)
    assert np.mean(normal.interval) == pytest.approx(normal.difference)


def test_the_normal_p_has_no_smallest_value() -> None:
    samples = np.random.default_rng(0).normal(size=(1, 2000))
    assert difference_test(samples + 12, samples * 0, [12.0], [0.0], n=9, normal=True).p < 1e-20
    assert difference_test(samples + 12, samples * 0, [12.0], [0.0], n=9).p == pytest.approx(2 / 2001)


@pytest.mark.parametrize("shift", [0.0, 0.05, 0.12])
def test_many_differences_have_nearly_the_exact_p(shift: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above 500 differences p is from the normal distribution. Ties are among them."""
    differences = np.round(np.random.default_rng(3).normal(shift, 1, 400), 1)
    exact = wilcoxon(differences, np.zeros(400))
    monkeypatch.setattr(paired, "_COUNTED", 100)
    quick = wilcoxon(differences, np.zeros(400))
    assert quick.p == pytest.approx(exact.p, rel=0.03)
    assert quick.effect == exact.effect
