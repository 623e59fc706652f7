"""Clusters: measures by hand, what chance gives, and two designs of one tiny mixture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.probing.models import pico_model
from tests.tiny import TOPICS, labelled, write_rows
from unmask.designs.design import Design
from unmask.errors import UnmaskError
from unmask.probing.clusters import (
    MEASURES,
    class_tf_idf,
    contingency,
    exact_matching,
    match_clusters,
    mean_agreement,
    measure_agreement,
    pair_jaccard,
    probe_clusters,
    read_labelled_texts,
    top_words,
)
from unmask.statistics.intervals import jackknife_interval

RANDOM = np.random.default_rng(0)
HIDDEN, ROUTING = Design("causal", "plain", "mean"), Design("causal", "plain", "mean", features="routing")
TEXTS = [row["text"] for row in labelled(0, 24)]


def of(*labels: int) -> Any:
    return np.array(labels, np.int64)


def test_measures_by_hand() -> None:
    """Pairs together: {01, 23} and {01, 02, 12}: one in both, four in either; three of four texts lie in matched clusters."""
    one, other = of(0, 0, 1, 1), of(1, 1, 1, 0)
    assert contingency(one, other).tolist() == [[0, 2], [1, 1]]
    assert pair_jaccard(contingency(one, other)) == 1 / 4
    assert exact_matching(contingency(one, other)) == 3 / 4
    assert match_clusters(one, other) == [1, 0]
    assert pair_jaccard(contingency(of(0, 1), of(1, 0))) == 1  # nothing is together in either


def test_information_is_that_of_scikit_learn() -> None:
    from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score

    one, other = RANDOM.integers(4, size=60), RANDOM.integers(3, size=60)
    for name, expected in (("AMI", adjusted_mutual_info_score), ("NMI", normalized_mutual_info_score)):
        for pair in ((one, other), (one, one), (one, 0 * one), (0 * one, 0 * one)):
            assert MEASURES[name](contingency(*pair)) == pytest.approx(expected(*pair), abs=1e-9)


@pytest.mark.parametrize("measure", MEASURES)
def test_each_text_is_left_out_once(measure: str) -> None:
    one, other, third = (RANDOM.integers(3, size=30) for _ in range(3))
    value, bounds = mean_agreement(MEASURES[measure], [(one, other), (one, third)])
    rest = [np.delete(np.arange(30), text) for text in range(30)]
    left_out = [[MEASURES[measure](contingency(one[own], some[own])) for some in (other, third)] for own in rest]
    assert bounds == pytest.approx(jackknife_interval(value, np.mean(left_out, axis=1), most=1.0))
    assert mean_agreement(MEASURES[measure], [(one[:4], other[:4])])[1] is None, "too few texts"


@pytest.mark.parametrize("measure", MEASURES)
def test_unrelated_groupings_agree_as_chance_does_and_equal_ones_do_not(measure: str) -> None:
    one, other = ([RANDOM.integers(5, size=200) for _ in range(2)] for _ in range(2))
    unrelated, equal = measure_agreement(measure, one, other), measure_agreement(measure, one, one)
    low, high = unrelated.chance_interval
    assert low <= unrelated.chance <= high
    assert unrelated.p > 0.01 and abs(unrelated.value - unrelated.chance) < 0.05
    assert equal.value == pytest.approx(1) and equal.p == pytest.approx(1 / 201)
    assert unrelated.interval is not None and unrelated.interval[0] < unrelated.value < unrelated.interval[1]
    assert equal.interval == pytest.approx((1, 1))
    assert equal.themselves[0] < 0.5  # two draws that know nothing of one another
    if measure != "AMI":  # which is why the others are never shown alone
        assert unrelated.chance > 0.01
    else:
        assert unrelated.chance == pytest.approx(0, abs=0.01)


def test_texts_count_once_and_keep_their_labels(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"text": "a", "topic": 1},
        {"text": "b", "topic": "x"},
        {"text": "a", "topic": 1},
        {"text": "c", "topic": 2},
    ]
    file = write_rows(tmp_path / "texts.jsonl", rows)
    assert read_labelled_texts(file, label="topic") == (["a", "b", "c"], ["1", "x", "2"])
    assert read_labelled_texts(file) == (["a", "b", "c"], None)
    drawn = {tuple(read_labelled_texts(file, label="topic", limit=2, seed=seed)[0]) for seed in range(20)}
    assert drawn == {("a", "b"), ("a", "c"), ("b", "c")}
    texts, labels = read_labelled_texts(file, label="topic", limit=2, seed=1)
    assert labels == [{"a": "1", "b": "x", "c": "2"}[text] for text in texts]
    with pytest.raises(UnmaskError, match="line 1: column 'label'"):
        read_labelled_texts(file, label="label")


def test_a_mixture_read_in_two_ways(tokenizer: Any) -> None:
    model = pico_model(tokenizer, "causal", "olmoe")
    gold = [row["label"] for row in labelled(0, 24)]
    found = probe_clusters(model, (HIDDEN, ROUTING), TEXTS, gold, clusters=3, seeds=2)
    table = np.array(found.table)
    assert table.shape == (3, 3) and table.sum() == 24
    assert table.trace() == max(
        table[:, order].trace() for order in ([0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0])
    )
    assert found.gold is not None and [len(some) for some in found.gold] == [2, 2]
    for own, bounds in zip(found.gold, found.gold_intervals or (), strict=True):
        assert bounds is not None and bounds[0] < np.mean(own) < bounds[1]
    assert set(sum(found.words[0], ())) & set(" ".join(TOPICS.values()).split())
    content = json.loads(json.dumps(found.as_json()))
    assert content["provenance"]["designs"] == [HIDDEN.name, ROUTING.name] and content["provenance"]["max_length"] == 512


def test_what_cannot_be_grouped_is_refused(tokenizer: Any) -> None:
    model = pico_model(tokenizer, "causal")
    with pytest.raises(UnmaskError, match="13 clusters do not fit 24 texts: choose 2 to 12"):
        probe_clusters(model, (HIDDEN, HIDDEN), TEXTS, clusters=13)
    with pytest.raises(UnmaskError, match=r"Two clusters need at least 4 distinct texts, and there are only 3\. Add texts\."):
        probe_clusters(model, (HIDDEN, HIDDEN), TEXTS[:3], clusters=2)


def test_weights_of_words_by_hand() -> None:
    """Two clusters of 4 and 2 words: A is 3; the terms stand 3, 2 and 1 times in all."""
    found = class_tf_idf(np.array([[3, 1, 0], [0, 1, 1]]))
    expected = [
        [3 / 4 * np.log(1 + 3 / 3), 1 / 4 * np.log(1 + 3 / 2), 0],
        [0, 1 / 2 * np.log(1 + 3 / 2), 1 / 2 * np.log(1 + 3 / 1)],
    ]
    np.testing.assert_allclose(found, expected)


def test_what_tells_a_cluster_comes_first_and_what_all_say_comes_last() -> None:
    texts = ["guitar song today", "guitar drum today", "goal team today", "goal ball today", "the and of"]
    words = top_words(texts, [0, 0, 1, 1, 2])
    assert (words[0][0], words[1][0], words[2]) == ("guitar", "goal", ())
    assert words[0] == ("guitar", "drum", "song", "today")  # equal weights by the alphabet
    assert top_words(texts, [0, 0, 1, 1, 2], number=1) == [("guitar",), ("goal",), ()]
    assert top_words(["?", "the"], [0, 1]) == [(), ()]
