"""Measures of a routing point on routing with a known answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import mutual_info_score

from tests.moe.routing.statistics.made_routing import DOMAINS, EXPERTS, Routed, collapsed, routed
from unmask.moe.routing.measures import (
    GENERAL,
    OF_LABELS,
    PointChoices,
    Series,
    coactivation_series,
    general_series,
    layer_agreement_series,
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


def test_uniform_routing_shows_nothing() -> None:
    found = point(routed(0.0, 200), sure=0.0)
    values = {name: series[0] for name, series in general_series(found, FEW).items()}
    assert set(values) == set(GENERAL)
    assert values["confidence"] == pytest.approx(1 / EXPERTS) and values["uncertainty"] == pytest.approx(1)
    assert values["balance"] == pytest.approx(1) and values["distinctness"] == pytest.approx(0, abs=1e-6)
    assert values["max violation"] < 0.1 and values["repetition"] == pytest.approx(0, abs=0.03)
    assert abs(corrected(vocabulary_series(found, FEW)).corrected) < 0.02


def test_one_expert_for_each_domain() -> None:
    made = routed(1.0)
    found = text_label_series(point(made), made.labels, FEW)
    assert list(found) == list(OF_LABELS)
    assert corrected(found["information"]).corrected == pytest.approx(1)
    assert corrected(found["soft information"]).corrected == pytest.approx(1)
    assert corrected(found["specialisation"], 1 - 1 / DOMAINS).corrected == pytest.approx(1 - 1 / DOMAINS)
    assert general_series(point(made), FEW)["repetition"][0] == pytest.approx(1)
    assert general_series(point(made), FEW)["distinctness"][0] == pytest.approx(1)


def test_routing_that_collapsed_to_one_expert() -> None:
    made = collapsed()
    values = {name: series[0] for name, series in general_series(point(made), FEW).items()}
    assert values["max violation"] == EXPERTS - 1 and values["balance"] == pytest.approx(0, abs=1e-6)
    assert values["repetition"] == 0
    assert corrected(text_label_series(point(made), made.labels, FEW)["information"]).corrected == pytest.approx(0)
    assert vocabulary_series(point(made), FEW)[0] == 1 and corrected(vocabulary_series(point(made), FEW)).corrected == 0


def test_a_mixture_of_knowing_and_guessing_has_its_truth_in_the_interval() -> None:
    made = routed(0.4, 200)
    own, other = 0.4 + 0.6 / EXPERTS, 0.6 / EXPERTS
    truth = 1 + (own * np.log(own) + 3 * other * np.log(other)) / np.log(DOMAINS)
    found = corrected(text_label_series(point(made), made.labels, FEW)["information"])
    assert found.interval is not None and found.interval[0] <= truth <= found.interval[1]
    assert found.chance < 0.01


def test_soft_information_sees_what_first_choices_hide() -> None:
    """Expert 0 always wins, by a margin that depends on the domain."""
    made = routed(1.0)
    shares = np.full((len(made.first), EXPERTS), 0.05)
    shares[:, 0], shares[np.arange(len(shares)), 1 + made.labels[made.texts] % 2] = 0.5, 0.4
    base = point(made.with_first(np.zeros_like(made.first)))
    base = PointChoices(base.texts, base.positions, base.ids, {}, shares.astype(np.float16), base.chosen)
    found = text_label_series(base, made.labels, FEW)
    assert found["information"][0] == pytest.approx(0, abs=1e-9)
    assert corrected(found["soft information"]).corrected > 0.1


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


def test_agreement_of_two_points() -> None:
    made, other = routed(seed=1), routed(seed=2)
    assert corrected(layer_agreement_series(point(made), (made.first + 1) % EXPERTS, EXPERTS, FEW)).corrected == pytest.approx(
        1
    )
    assert abs(corrected(layer_agreement_series(point(made), other.first, EXPERTS, FEW)).corrected) < 0.01


def test_partners() -> None:
    made = routed(texts=100)
    couples = point(made, second=made.first ^ 1)
    assert corrected(coactivation_series(couples, FEW)).corrected == pytest.approx(1)
    anyone = (made.first + np.random.default_rng(0).integers(1, EXPERTS, len(made.first))) % EXPERTS
    found = coactivation_series(point(made, second=anyone), FEW)
    assert found[0] == pytest.approx(1 / 3, abs=0.05), "there is always a strongest one"
    assert abs(corrected(found).corrected) < 0.05


def test_the_interval_is_that_of_texts_and_not_of_tokens() -> None:
    """Ten times the tokens of as many texts, all alike within a text, say nothing new."""
    labels = np.arange(40) % 2
    expert = np.random.default_rng(0).integers(2, size=40)
    widths = []
    for length in (3, 30):
        made = Routed(np.repeat(expert, length), np.repeat(np.arange(40), length), labels)
        interval = corrected(text_label_series(point(made), labels, FEW)["information"]).interval
        assert interval is not None
        widths.append(interval[1] - interval[0])
    assert widths[0] == pytest.approx(widths[1]) and widths[0] > 0.05
