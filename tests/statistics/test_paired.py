"""Every metric equals the library's on every resample; every test does as its textbook or a simulation says."""

import subprocess
import sys
import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from scipy import stats
from sklearn.metrics import average_precision_score, f1_score, v_measure_score

from unmask.statistics import bootstrap as resampling
from unmask.statistics.bootstrap import METRICS, Items, bootstrap, interval, score, undefined
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


def items_of(metric: str, **columns: ArrayLike) -> Items:
    return Items(metric, {name: np.asarray(column) for name, column in columns.items()})


def random_items(metric: str, n: int = 40, seed: int = 0, design: int = 0) -> Items:
    """Items with many ties: what is given depends on the seed, what is made on the design too."""
    task, made = np.random.default_rng([seed, 0]), np.random.default_rng([seed, 1, design])
    if metric == "mean":
        return Items(metric, {"value": made.integers(0, 3, n) / 2})
    if metric == "spearman":
        return Items(metric, {"gold": task.integers(0, 6, n), "predicted": made.integers(0, 9, n) / 8})
    if metric == "average-precision":
        label = task.permutation(np.arange(n) < max(1, n // 3))
        return Items(metric, {"label": label.astype(int), "predicted": made.integers(-4, 5, n) / 8})
    if metric == "ratio":  # entities given and predicted, and how many of them are one
        gold, predicted = task.integers(0, 3, n), made.integers(0, 3, n)
        found = np.minimum(gold, np.minimum(predicted, made.integers(0, 3, n)))
        return Items(metric, {"gold": gold, "above": 2 * found, "below": gold + predicted})
    label = task.integers(0, 4, (n, 3))
    assigned = np.where(made.random((n, 3)) < 0.5, label, made.integers(5, 9, (n, 3)))
    return Items(metric, {"label": label, "assigned": assigned})


def reference(items: Items, drawn: np.ndarray, replicate: int) -> float:
    """The library's score of one resample, under the conventions of METRICS for what a library leaves undefined."""
    columns = {name: column[drawn] for name, column in items.columns.items()}
    match items.metric:
        case "mean":
            return float(np.mean(columns["value"]))
        case "spearman":
            if np.ptp(columns["gold"]) == 0:
                return np.nan
            if np.ptp(columns["predicted"]) == 0:
                return 0.0
            return float(stats.spearmanr(columns["predicted"], columns["gold"])[0])
        case "average-precision":
            return average_precision_score(columns["label"], columns["predicted"]) if columns["label"].any() else np.nan
        case "ratio":  # the mean of the items' own ratios, each weighing what it has below
            above, below = columns["above"], columns["below"]
            return float(np.average(above / np.maximum(below, 1), weights=below)) if below.any() else np.nan
        case _:
            return float(v_measure_score(columns["label"][:, replicate], columns["assigned"][:, replicate]))


# --- metrics ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", METRICS)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(3, 40))
def test_every_metric_equals_the_library_on_every_resample(metric: str, seed: int, n: int) -> None:
    try:
        items = random_items(metric, n, seed)
    except ValueError as error:  # few items may all have the same gold
        assert "undefined" in str(error)
        return
    indices = np.random.default_rng(seed).integers(n, size=(7, n))
    expected = [reference(items, drawn, row % 3) for row, drawn in enumerate(indices)]
    np.testing.assert_allclose(METRICS[metric](items.columns, indices), expected, atol=1e-12)


@pytest.mark.parametrize("metric", METRICS)
def test_score_is_the_librarys_on_all_items_averaged_over_the_replicates(metric: str) -> None:
    items = random_items(metric)
    expected = np.mean([reference(items, np.arange(items.n), replicate) for replicate in range(items.replicates)])
    assert items.replicates == (3 if metric == "v-measure" else 1)
    assert score(items) == pytest.approx(expected, abs=1e-12)


def test_metrics_by_hand() -> None:
    # Scores 4 and 3 (tied twice) and 1; of them positive: the 4, one of the 3s. AP = 1/2 * 1/1 + 1/2 * 2/3 = 5/6.
    precision = items_of("average-precision", predicted=[3, 4, 1, 3], label=[1, 1, 0, 0])
    assert score(precision) == pytest.approx(5 / 6)
    # Ranks 1.5 1.5 3 4 against 1 2 3 4, less 2.5: -1 -1 .5 1.5 . -1.5 -.5 .5 1.5 = 4.5; squares 4.5 and 5.
    ranks = items_of("spearman", predicted=[0.1, 0.1, 0.2, 0.9], gold=[1, 2, 3, 4])
    assert score(ranks) == pytest.approx(4.5 / np.sqrt(4.5 * 5))
    # Labels 0011, clusters 0012: H(label) = log 2, H(assigned) = 1.5 log 2, I = log 2; V = 2 / 2.5.
    clusters = items_of("v-measure", assigned=[[0], [0], [1], [2]], label=[[0], [0], [1], [1]])
    assert score(clusters) == pytest.approx(0.8)
    # Of 3 entities given 2 were found, and 1 was made up: precision 2/3, recall 2/3. By sentence they would be 1 and 1/2.
    entities = items_of("ratio", above=[2, 2, 0], below=[2, 3, 1], gold=[1, 2, 0])
    assert score(entities) == pytest.approx(4 / 6)
    assert score(entities) == f1_score([1, 1, 1, 0], [1, 1, 0, 1])


def test_what_cannot_be_scored_is_zero_where_the_design_is_at_fault_and_nan_where_the_draw_is() -> None:
    gold, label = np.array([1, 2, 3]), np.array([0, 0, 1])
    constant = {"predicted": np.ones(3)}
    assert score(Items("spearman", {**constant, "gold": gold})) == 0.0
    assert np.isnan(METRICS["spearman"]({"predicted": gold, "gold": gold}, np.array([[1, 1, 1]]))).all()
    assert np.isnan(METRICS["average-precision"]({"predicted": gold, "label": label}, np.array([[0, 1, 1]]))).all()
    nothing = {"above": np.array([0, 2]), "below": np.array([0, 2])}
    assert np.array_equal(METRICS["ratio"](nothing, np.array([[0, 0], [0, 1]])), [np.nan, 1.0], equal_nan=True)
    one_cluster = {"assigned": np.zeros((3, 1), int), "label": label[:, None]}
    assert list(METRICS["v-measure"](one_cluster, np.array([[0, 1, 2], [0, 1, 1]]))) == [0.0, 1.0]


# --- items -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "columns", "message"),
    [
        ("accuracy", {"value": [1.0]}, "Unknown metric 'accuracy'; known are mean, spearman"),
        ("spearman", {"predicted": [1, 2]}, "missing: gold"),
        ("spearman", {"predicted": [1, 2], "gold": [1, 2, 3]}, "one length"),
        ("mean", {"value": []}, "at least 1"),
        ("mean", {"value": 1.0}, "at least 1"),
        ("mean", {"value": [[1.0], [2.0]]}, r"one shape \(item,\)"),
        ("mean", {"value": ["good", "bad"]}, "needs numbers"),
        ("mean", {"value": [1.0, np.nan, np.inf]}, "2 of 3 in column value are nan or infinite"),
        ("spearman", {"predicted": [1, 2], "gold": [3, 3]}, "gold is the same"),
        ("average-precision", {"predicted": [1, 2], "label": [0, 0]}, "no item has label 1"),
        ("average-precision", {"predicted": [1, 2], "label": [1, 2]}, "labels 0 and 1"),
        ("v-measure", {"assigned": [1, 2], "label": [1, 2]}, r"\(item, replicate\)"),
        ("v-measure", {"assigned": [[1, 1], [2, 2]], "label": [[1], [2]]}, "one shape"),
        ("v-measure", {"assigned": [[0.5], [1.0]], "label": [[1], [2]]}, "needs integers in column assigned"),
        ("ratio", {"above": [1, 2], "gold": [1, 2]}, "needs the columns above, below, gold; missing: below"),
        ("ratio", {"above": [1, 2], "below": [1, 1], "gold": [1, 1]}, "0 <= above <= below"),
        ("ratio", {"above": [-1, 2], "below": [1, 2], "gold": [1, 1]}, "0 <= above <= below"),
        ("ratio", {"above": [0, 0], "below": [0, 0], "gold": [0, 0]}, "below is 0 for every item"),
        ("ratio", {"above": [1, 1], "below": [1, np.nan], "gold": [1, 1]}, "1 of 2 in column below are nan"),
    ],
)
def test_items_refuse_what_has_no_score(metric: str, columns: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Items(metric, columns)  # type: ignore[arg-type]


# --- bootstrap and interval ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", METRICS)
def test_bootstrap_is_seeded_and_does_not_depend_on_how_it_is_cut_into_blocks(
    metric: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = random_items(metric)
    samples = bootstrap(items, 100, seed=1)
    assert samples.shape == (100,)
    np.testing.assert_array_equal(bootstrap(items, 30, seed=1), samples[:30])
    assert not np.array_equal(bootstrap(items, 100, seed=2), samples)
    monkeypatch.setattr(resampling, "DRAWS_AT_ONCE", 11 * items.n)
    np.testing.assert_array_equal(bootstrap(items, 100, seed=1), samples)


def test_bootstrap_draws_the_same_items_for_every_metric_and_replicate_b_modulo_r() -> None:
    n = 9
    drawn = bootstrap(Items("mean", {"value": 10.0 ** np.arange(n)}), 50) * n  # the digits count the items
    counts = np.array([[int(digit) for digit in f"{round(total):0{n}d}"[::-1]] for total in drawn])
    assert (counts.sum(axis=1) == n).all()
    assert counts.any(axis=0).all()
    items = random_items("v-measure", n)
    expected = [reference(items, np.repeat(np.arange(n), count), row % 3) for row, count in enumerate(counts)]
    np.testing.assert_allclose(bootstrap(items, 50), expected, atol=1e-12)


def test_bootstrap_of_many_items_stays_small_in_memory() -> None:
    items = random_items("average-precision", 5000)
    tracemalloc.start()
    bootstrap(items, 1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100e6


def test_interval_is_the_middle_of_the_samples_without_nan() -> None:
    samples = np.append(np.arange(101.0), np.nan)  # 0..100: the 5th percentile is 5
    assert interval(samples, 0.9) == pytest.approx((5, 95))
    assert undefined(samples) == 1
    assert interval(samples, 0.9, around=0.0) == pytest.approx((-45, 45))  # mean 50, shifted to 0


def test_interval_around_a_v_measure_holds_it_where_the_plain_one_does_not() -> None:
    random = np.random.default_rng(0)
    label = random.integers(0, 30, (600, 5))
    assigned = np.where(random.random(label.shape) < 0.5, label, random.integers(0, 30, label.shape))
    items = Items("v-measure", {"assigned": assigned, "label": label})
    samples = bootstrap(items, 300)
    low, high = interval(samples, around=score(items))
    assert low < score(items) < high
    assert score(items) < interval(samples)[0]


def test_bootstrap_and_interval_refuse_what_they_cannot_answer() -> None:
    with pytest.raises(ValueError, match="at least 2 items"):
        bootstrap(items_of("mean", value=[1.0]))
    with pytest.raises(ValueError, match="at least 1 resample, not 0"):
        bootstrap(random_items("mean"), 0)
    with pytest.raises(ValueError, match="between 0 and 1, not at 95"):
        interval([1.0, 2.0], 95)
    with pytest.raises(ValueError, match="undefined on every resample"):
        interval([np.nan, np.nan])


def test_interval_of_a_mean_covers_it_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    samples = (Items("mean", {"value": random.normal(0.5, 0.2, 60)}) for _ in range(200))
    intervals = [interval(bootstrap(items, 400, seed)) for seed, items in enumerate(samples)]
    assert 0.90 <= np.mean([low <= 0.5 <= high for low, high in intervals]) <= 0.99


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
        (np.arange(6), np.zeros(7), "one score a task"),
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
        (design(1), design(2)[:3], "one has 5, the other 3"),
        (design(1), design(2)[::-1], "Task 0 .* mean of 40 items against ratio of 40"),
        (design(1), design(2, n=41), "mean of 40 items against mean of 41"),
        ([random_items("spearman", seed=1)], [random_items("spearman", seed=2)], "their columns gold differ"),
    ],
)
def test_paired_bootstrap_refuses_what_is_not_paired(a: list[Items], b: list[Items], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        paired_bootstrap(a, b, 10)


@pytest.mark.parametrize(
    ("samples_a", "samples_b", "points", "message"),
    [
        (np.zeros((2, 5)), np.zeros((2, 6)), [0, 0], "one shape"),
        (np.zeros(5), np.zeros(5), [0], r"\(task, resample\)"),
        (np.zeros((2, 5)), np.zeros((2, 5)), [0], "2 tasks need as many scores"),
        (np.full((1, 5), np.nan), np.zeros((1, 5)), [0], "0 have one"),
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


def test_importing_statistics_loads_no_heavy_library() -> None:
    code = "import sys, unmask.statistics.paired; print({'scipy', 'sklearn', 'torch', 'pandas'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


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
