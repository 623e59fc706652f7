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
from unmask.statistics.bootstrap import METRICS, Items, bootstrap, each_replicate, interval, score


def library_score(items: Items, rows: np.ndarray, replicate: int) -> float:
    """scipy's or scikit-learn's score of one resample. Undefined scores are 0 if the prediction is constant, and nan if the gold is."""
    columns = {name: column[rows] for name, column in items.columns.items()}
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
        case "ratio":
            return columns["above"].sum() / columns["below"].sum() if columns["below"].any() else np.nan
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
    expected = [library_score(items, rows, replicate) for replicate, rows in enumerate(indices)]
    np.testing.assert_allclose(METRICS[metric].scores(items.columns, indices), expected, atol=1e-12)
    by_replicate = [library_score(items, np.arange(n), replicate) for replicate in range(items.replicates)]
    assert score(items) == pytest.approx(np.mean(by_replicate), abs=1e-12)


@pytest.mark.parametrize(
    ("metric", "columns", "message"),
    [
        ("accuracy", {"value": [1.0]}, "Unknown metric 'accuracy'"),
        ("spearman", {"predicted": [1, 2]}, "missing: gold"),
        ("spearman", {"predicted": [1, 2], "gold": [1, 2, 3]}, "equal length"),
        ("mean", {"value": []}, "equal length"),
        ("mean", {"value": ["good", "bad"]}, "finite numbers"),
        ("mean", {"value": [1.0, np.nan]}, "finite numbers"),
        ("v-measure", {"assigned": [1, 2], "label": [1, 2]}, "2 dimensions"),
        ("spearman", {"predicted": [1, 2], "gold": [3, 3]}, "undefined"),
        ("average-precision", {"predicted": [1, 2], "label": [0, 0]}, "undefined"),
        ("ratio", {"above": [0, 0], "below": [0, 0], "gold": [0, 0]}, "undefined"),
    ],
)
def test_items_without_a_score_are_refused(metric: str, columns: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Items(metric, columns)  # type: ignore[arg-type]


@pytest.mark.parametrize("metric", METRICS)
def test_bootstrap_is_seeded_and_does_not_depend_on_the_block_size(metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    items = random_items(metric)
    samples = bootstrap(items, 100, seed=1)
    assert samples.shape == (100,)
    np.testing.assert_array_equal(bootstrap(items, 30, seed=1), samples[:30])
    assert not np.array_equal(bootstrap(items, 100, seed=2), samples)
    monkeypatch.setattr(resampling, "DRAWS_AT_ONCE", 11 * items.n)
    np.testing.assert_array_equal(bootstrap(items, 100, seed=1), samples)


def test_a_resample_adds_the_change_of_its_replicate_to_a_mean_of_replicates() -> None:
    n, items = 9, random_items("v-measure", 9)
    digits = bootstrap(Items("mean", {"value": 10.0 ** np.arange(n)}), 50) * n  # the digits count the items
    counts = np.array([[int(digit) for digit in f"{round(total):0{n}d}"[::-1]] for total in digits])
    assert (counts.sum(axis=1) == n).all() and counts.any(axis=0).all()
    resampled = [library_score(items, np.repeat(np.arange(n), count), row % 3) for row, count in enumerate(counts)]
    by_replicate = each_replicate(items)
    means = bootstrap(items, 50) - (np.array(resampled) - np.resize(by_replicate, 50))
    possible = [sum(drawn) / 3 for drawn in product(by_replicate, repeat=3)]
    assert np.abs(means[:, None] - possible).min(axis=1).max() < 1e-9
    assert len(set(means.round(9))) > 5


def test_interval_is_the_middle_of_the_samples_and_can_be_centred_on_a_score() -> None:
    samples = np.append(np.arange(101.0), np.nan)  # 0..100: the 5th percentile is 5
    assert interval(samples, 0.9) == pytest.approx((5, 95))
    assert interval(samples, 0.9, around=0.0) == pytest.approx((-45, 45))  # mean 50, shifted to 0
    items = random_items("v-measure", 200)
    samples = bootstrap(items, 300)
    low, high = interval(samples, around=score(items))
    assert low < score(items) < high and np.mean(samples) > score(items), "repeated items raise a V-measure"


def test_interval_of_a_mean_covers_it_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    samples = (Items("mean", {"value": random.normal(0.5, 0.2, 60)}) for _ in range(200))
    intervals = [interval(bootstrap(items, 400, seed)) for seed, items in enumerate(samples)]
    assert 0.90 <= np.mean([low <= 0.5 <= high for low, high in intervals]) <= 0.99


def test_a_text_that_was_drawn_several_times_is_one_item_with_a_weight() -> None:
    """mteb draws thousands of copies of a few texts. Counted as items of their own, their score would hardly vary."""
    random = np.random.default_rng(0)
    label, assigned = random.integers(0, 4, (2, 40))
    assigned = np.where(random.random(40) < 0.7, label, assigned)
    draws = random.integers(0, 40, (4000, 1))
    columns = {"label": label[:, None], "assigned": assigned[:, None]}
    texts = Items("v-measure", columns | {"weight": np.bincount(draws[:, 0], minlength=40)[:, None]})
    copies = Items("v-measure", {name: column[draws[:, 0]] for name, column in columns.items()})
    assert score(texts) == pytest.approx(score(copies))
    assert bootstrap(texts, 200).std() == pytest.approx(bootstrap(Items("v-measure", columns), 200).std(), rel=0.2)
    assert bootstrap(texts, 200).std() > 5 * bootstrap(copies, 200).std()
