"""Every metric equals the library's on every resample; a bootstrap is seeded; an interval covers as often as it says."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import average_precision_score, v_measure_score

from tests.statistics.made_items import random_items
from unmask.statistics import bootstrap as resampling
from unmask.statistics.bootstrap import METRICS, Items, bootstrap, each_replicate, interval, score, undefined


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


@pytest.mark.sample(3)
@pytest.mark.parametrize("metric", METRICS)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(3, 40))
def test_every_metric_equals_the_library_on_every_resample(metric: str, seed: int, n: int) -> None:
    try:
        items = random_items(metric, n, seed)
    except ValueError as error:  # few items may all have the same gold
        assert "undefined" in str(error)
        return
    indices = np.random.default_rng(seed).integers(n, size=(3, n))
    expected = [reference(items, drawn, row) for row, drawn in enumerate(indices)]  # each has its replicate
    np.testing.assert_allclose(METRICS[metric](items.columns, indices), expected, atol=1e-12)


@pytest.mark.parametrize("metric", METRICS)
def test_score_is_the_librarys_on_all_items_averaged_over_the_replicates(metric: str) -> None:
    items = random_items(metric)
    expected = np.mean([reference(items, np.arange(items.n), replicate) for replicate in range(items.replicates)])
    assert items.replicates == (3 if metric == "v-measure" else 1)
    assert score(items) == pytest.approx(expected, abs=1e-12)


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


@pytest.mark.parametrize(
    ("metric", "columns", "message"),
    [
        ("accuracy", {"value": [1.0]}, "Unknown metric 'accuracy'; known are mean, spearman"),
        ("spearman", {"predicted": [1, 2]}, "missing: gold"),
        ("spearman", {"predicted": [1, 2], "gold": [1, 2, 3]}, "equal length"),
        ("mean", {"value": []}, "at least 1"),
        ("mean", {"value": 1.0}, "at least 1"),
        ("mean", {"value": [[1.0], [2.0]]}, r"equal shape \(item,\)"),
        ("mean", {"value": ["good", "bad"]}, "needs numbers"),
        ("mean", {"value": [1.0, np.nan, np.inf]}, "2 of 3 in column value are nan or infinite"),
        ("spearman", {"predicted": [1, 2], "gold": [3, 3]}, "gold is the same"),
        ("average-precision", {"predicted": [1, 2], "label": [0, 0]}, "no item has label 1"),
        ("average-precision", {"predicted": [1, 2], "label": [1, 2]}, "labels 0 and 1"),
        ("v-measure", {"assigned": [1, 2], "label": [1, 2]}, r"\(item, replicate\)"),
        ("v-measure", {"assigned": [[1, 1], [2, 2]], "label": [[1], [2]]}, "equal shape"),
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
    alone = [reference(items, np.arange(n), replicate) for replicate in range(3)]
    np.testing.assert_allclose(each_replicate(items), alone, atol=1e-12)
    changed = np.array(expected) - np.resize(alone, 50)
    of_replicates = bootstrap(items, 50) - changed  # what is left is a mean of three replicates, drawn with replacement
    sums = {sum(chosen) for chosen in product(alone, repeat=3)}
    assert all(min(abs(3 * mean - known) for known in sums) < 1e-9 for mean in of_replicates)
    assert len(set(of_replicates.round(9))) > 5


@pytest.mark.sample(1)
@pytest.mark.parametrize("noise", [0.0, 0.4])
def test_a_mean_of_experiments_varies_less_than_one_of_them(noise: float) -> None:
    """mteb's ten experiments draw texts and cluster them anew. A bootstrap that takes one of them for their mean varies far too much.

    noise: the largest share of texts that an experiment assigns at random, which differs between experiments.
    """
    random, n, differences, errors = np.random.default_rng(0), 200, [], []
    for _ in range(60):
        label = random.integers(5, size=n)
        draws = random.integers(n, size=(10, n))
        sides = []
        for _ in range(2):
            assigned = np.where(random.random(n) < 0.7, label, random.integers(5, size=n))
            shares = noise * random.random((10, 1))
            moved = np.where(random.random((10, n)) < shares, random.integers(5, size=(10, n)), assigned)
            columns = {"assigned": np.take_along_axis(moved, draws, axis=1).T, "label": label[draws].T}
            sides.append(Items("v-measure", columns))
        differences.append(score(sides[0]) - score(sides[1]))
        errors.append((bootstrap(sides[0], 60) - bootstrap(sides[1], 60)).std())
    assert 0.75 < np.mean(errors) / np.std(differences) < 1.35  # 1.1 and 2.1 with one experiment in place of their mean


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


def test_copies_of_few_texts_are_no_evidence() -> None:
    """mteb draws thousands of copies of a few texts. Counted as items of their own, their score would hardly vary."""
    random = np.random.default_rng(0)
    label = random.integers(0, 4, 40)
    assigned = np.where(random.random(40) < 0.7, label, random.integers(0, 4, 40))
    draws = random.integers(0, 40, (4000, 2))
    weight = np.stack([np.bincount(column, minlength=40) for column in draws.T], axis=1)
    once, twice = np.stack([label, label], axis=1), np.stack([assigned, assigned], axis=1)
    of_texts = Items("v-measure", {"label": once, "assigned": twice, "weight": weight})
    of_draws = Items("v-measure", {"label": label[draws], "assigned": assigned[draws]})
    of_one_each = Items("v-measure", {"label": once, "assigned": twice})
    spread = [bootstrap(items, 200).std() for items in (of_texts, of_draws, of_one_each)]
    assert score(of_texts) == pytest.approx(score(of_draws))
    assert spread[0] == pytest.approx(spread[2], rel=0.2) and spread[0] > 5 * spread[1]


def test_interval_of_a_mean_covers_it_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    samples = (Items("mean", {"value": random.normal(0.5, 0.2, 60)}) for _ in range(200))
    intervals = [interval(bootstrap(items, 400, seed)) for seed, items in enumerate(samples)]
    assert 0.90 <= np.mean([low <= 0.5 <= high for low, high in intervals]) <= 0.99
