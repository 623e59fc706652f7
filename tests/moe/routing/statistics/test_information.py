"""Information and specialisation on routing with a known answer, and against scikit-learn."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from sklearn.metrics import mutual_info_score

from tests.moe.routing.statistics.made_routing import DOMAINS, EXPERTS, Routed, routed
from unmask.moe.routing.formulas import (
    joint_of_texts,
    joint_of_tokens,
    normalised_information,
    specialisation,
)
from unmask.statistics.information import entropy, mutual_information

MANY = 400


def both(made: Routed) -> tuple[float, float]:
    joint = joint_of_texts(made.shares, made.labels, np.ones((1, len(made.labels))))
    return float(normalised_information(joint)[0, 0]), float(specialisation(joint)[0, 0])


@pytest.mark.parametrize("known", [0.2, 0.5, 0.8])
def test_a_mixture_of_knowing_and_guessing(known: float) -> None:
    own, other = known + (1 - known) / EXPERTS, (1 - known) / EXPERTS
    lost = -(own * np.log(own) + (EXPERTS - 1) * other * np.log(other))
    expected = (np.log(EXPERTS) - lost) / np.log(DOMAINS), known * (1 - 1 / DOMAINS)
    assert both(routed(known, MANY)) == pytest.approx(expected, abs=0.02)


def test_information_is_that_of_scikit_learn() -> None:
    made = routed(0.4)  # texts of one length and domains of one size: every token weighs the same
    expected = mutual_info_score(made.labels[made.texts], made.first)
    joint = joint_of_texts(made.shares, made.labels, np.ones((1, 40)))
    assert mutual_information(joint)[0, 0] == pytest.approx(expected)


def test_labels_of_tokens() -> None:
    made = routed()
    tags = (made.first + (np.arange(len(made.first)) % 5 == 0)) % 3
    tables = np.zeros((40, 3, EXPERTS))
    np.add.at(tables, (made.texts, tags, made.first), 1)
    joint = joint_of_tokens(tables, np.ones((1, 40)))
    expected = mutual_info_score(tags, made.first) / entropy(np.bincount(tags) / len(tags))
    assert normalised_information(joint)[0] == pytest.approx(expected)
    weights = np.zeros((1, 40))
    weights[0, :7] = 2
    inside = made.texts < 7
    assert mutual_information(joint_of_tokens(tables, weights))[0] == pytest.approx(
        mutual_info_score(tags[inside], made.first[inside])
    )


@pytest.mark.parametrize("measure", [normalised_information, specialisation])
def test_measures_stay_in_their_range(measure: Callable[[np.ndarray], np.ndarray]) -> None:
    joints = np.random.default_rng(0).dirichlet(np.full(12, 0.1), size=50).reshape(50, 3, 4)
    found = measure(joints)
    assert found.shape == (50,) and found.min() >= -1e-12 and found.max() <= 1
    independent = np.einsum("bl,be->ble", joints.sum(axis=2), joints.sum(axis=1))
    assert measure(independent) == pytest.approx(np.zeros(50), abs=1e-9)
