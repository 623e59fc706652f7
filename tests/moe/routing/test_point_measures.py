"""Measures of a routing point on routing with a known answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import mutual_info_score

from tests.moe.routing.statistics.made_routing import DOMAINS, EXPERTS, Routed, routed
from unmask.moe.routing.measures import (
    OF_LABELS,
    PointChoices,
    Series,
    general_series,
    text_label_series,
    token_label_series,
    vocabulary_series,
)
from unmask.moe.routing.text_bootstrap import Draws, Measured, mean_of

FEW = Draws(resamples=100, token_resamples=30, shuffles=30)


def point(made: Routed, ids: Any = None, sure: float = 1.0, second: Any = None) -> PointChoices:
    """Choices whose router is so sure of the first of them, and gives the rest to all experts alike."""
    size = len(made.first)
    shares = np.full((size, EXPERTS), (1 - sure) / EXPERTS) + np.eye(EXPERTS)[made.first] * sure
    chosen = made.first[:, None] if second is None else np.stack([made.first, second], axis=1)
    positions = np.concatenate([np.arange(count) for count in np.bincount(made.texts)])
    tokens = np.arange(size) % 7 if ids is None else ids
    return PointChoices(made.texts, positions, tokens, {}, shares.astype(np.float16), chosen.astype(np.int16))


def corrected(series: Series, most: float = 1.0) -> Measured:
    return mean_of([series], most)


def test_one_expert_for_each_domain() -> None:
    made = routed(1.0)
    found = text_label_series(point(made), made.labels, FEW)
    assert list(found) == list(OF_LABELS)
    assert corrected(found["information"]).corrected == pytest.approx(1)
    assert corrected(found["soft information"]).corrected == pytest.approx(1)
    assert corrected(found["specialisation"], 1 - 1 / DOMAINS).corrected == pytest.approx(1 - 1 / DOMAINS)
    assert general_series(point(made), FEW)["repetition"][0] == pytest.approx(1)
    assert general_series(point(made), FEW)["distinctness"][0] == pytest.approx(1)


def test_a_mixture_of_knowing_and_guessing_has_its_truth_in_the_interval() -> None:
    made = routed(0.4, 200)
    own, other = 0.4 + 0.6 / EXPERTS, 0.6 / EXPERTS
    truth = 1 + (own * np.log(own) + 3 * other * np.log(other)) / np.log(DOMAINS)
    found = corrected(text_label_series(point(made), made.labels, FEW)["information"])
    assert found.interval is not None and found.interval[0] <= truth <= found.interval[1]
    assert found.chance < 0.01


def test_labels_of_tokens() -> None:
    made = routed(0.0, 60)
    tags = np.where(np.arange(len(made.first)) % 3 == 0, made.first % 2, 2).astype(np.int16)
    tags[::10] = -1
    found = token_label_series(point(made), tags, 3, FEW)
    known = tags >= 0
    share = np.bincount(tags[known]) / known.sum()
    expected = mutual_info_score(tags[known], made.first[known]) / -(share * np.log(share)).sum()
    assert found["information"][0] == pytest.approx(expected)
    assert found["information"][2] < 0.02 < 0.1 < corrected(found["information"]).corrected
    nothing = token_label_series(point(made), (np.arange(len(tags)) // 5 % 3).astype(np.int16), 3, FEW)
    interval = corrected(nothing["information"]).interval
    assert interval is not None and interval[0] < 0.005 and abs(corrected(nothing["information"]).corrected) < 0.005


def test_vocabulary_that_decides() -> None:
    made = routed()
    ids = np.random.default_rng(5).integers(12, size=len(made.first))
    told = point(made.with_first(ids % EXPERTS), ids)
    assert corrected(vocabulary_series(told, FEW)).corrected == pytest.approx(1)
    assert abs(corrected(vocabulary_series(point(made, ids), FEW)).corrected) < 0.02, "the largest share is above 1/n by chance"
    assert vocabulary_series(point(made, ids), FEW)[0] > 0.28
    assert np.isnan(vocabulary_series(point(made, np.arange(len(made.first))), FEW)[0])
