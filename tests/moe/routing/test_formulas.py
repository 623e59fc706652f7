"""Formulas of routing on routing with a known answer, by hand, and against scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import mutual_info_score, normalized_mutual_info_score

from unmask.moe.routing.formulas import (
    balance,
    joint_of_texts,
    layer_agreement,
    max_violation,
    normalised_information,
    specialisation,
    token_certainty,
    vocabulary_specialisation,
)
from unmask.statistics.information import mutual_information

EXPERTS = DOMAINS = 4


@dataclass(frozen=True)
class Routed:
    """Tokens of texts of four domains. first: the expert of each token; texts: its text; labels: the domain of each text."""

    first: NDArray[np.int64]
    texts: NDArray[np.int64]
    labels: NDArray[np.int64]

    @property
    def shares(self) -> NDArray[np.float64]:
        """(text, 1, expert)."""
        counts = np.zeros((len(self.labels), EXPERTS))
        np.add.at(counts, (self.texts, self.first), 1)
        return np.asarray((counts / counts.sum(axis=1, keepdims=True))[:, None, :])


def routed(known: float = 0.0, texts: int = 40, length: int = 25, seed: int = 0) -> Routed:
    """A share `known` of the tokens goes to the expert of their domain, all others anywhere."""
    random = np.random.default_rng(seed)
    labels = np.arange(texts) % DOMAINS
    of_token = np.repeat(np.arange(texts), length)
    knows = random.random(len(of_token)) < known
    return Routed(np.where(knows, labels[of_token], random.integers(EXPERTS, size=len(of_token))), of_token, labels)


def table(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    counts = np.zeros((one.max() + 1, EXPERTS))
    np.add.at(counts, (one, other), 1)
    return counts


@pytest.mark.parametrize("known", [0.2, 0.8])
def test_information_and_specialisation_of_knowing_and_guessing(known: float) -> None:
    own, other = known + (1 - known) / EXPERTS, (1 - known) / EXPERTS
    lost = -(own * np.log(own) + (EXPERTS - 1) * other * np.log(other))
    made = routed(known, 400)
    joint = joint_of_texts(made.shares, made.labels, np.ones((1, 400)))[0, 0]
    assert normalised_information(joint) == pytest.approx((np.log(EXPERTS) - lost) / np.log(DOMAINS), abs=0.02)
    assert specialisation(joint) == pytest.approx(known * (1 - 1 / DOMAINS), abs=0.02)
    # texts of one length and domains of one size: every token weighs the same
    assert mutual_information(joint) == pytest.approx(mutual_info_score(made.labels[made.texts], made.first))


@pytest.mark.parametrize("measure", [normalised_information, specialisation])
def test_measures_of_labels_stay_in_their_range(measure: Any) -> None:
    joints = np.random.default_rng(0).dirichlet(np.full(12, 0.1), size=50).reshape(50, 3, 4)
    values = measure(joints)
    assert values.shape == (50,) and values.min() >= -1e-12 and values.max() <= 1
    independent = np.einsum("bl,be->ble", joints.sum(axis=2), joints.sum(axis=1))
    assert measure(independent) == pytest.approx(np.zeros(50), abs=1e-9)


def test_certainty_and_load() -> None:
    for rows, expected in ((np.full((8, 2), 0.5), 0.0), (np.eye(2)[np.arange(8) % 2], 1.0)):
        assert balance(rows.sum(axis=0)) - token_certainty(rows)[:, 1].mean() == pytest.approx(expected)
    loads = np.array([[30.0, 30, 30, 30], [120, 0, 0, 0], [60, 60, 0, 0]])
    assert balance(loads) == pytest.approx([1.0, 0.0, 0.5]) and max_violation(loads) == pytest.approx([0.0, 3.0, 1.0])


def test_vocabulary() -> None:
    ids = np.arange(1000) % 10
    assert vocabulary_specialisation(table(ids, ids % EXPERTS)) == 1.0, "each id has its expert"
    assert vocabulary_specialisation(np.full((10, EXPERTS), 25.0)) == 0.25
    assert vocabulary_specialisation(np.array([[10.0, 0, 0, 0], [5, 5, 0, 0]])) == 0.75
    assert np.isnan(vocabulary_specialisation(np.zeros((0, EXPERTS))))


def test_agreement_of_layers() -> None:
    one, other = routed(texts=200).first, routed(texts=200, seed=1).first
    assert layer_agreement(table(one, (one + 1) % EXPERTS)) == pytest.approx(1), "names do not matter"
    assert layer_agreement(table(one, other)) == pytest.approx(0, abs=0.01)
    mixed = np.where(np.arange(len(one)) % 2, one, other)
    expected = normalized_mutual_info_score(one, mixed, average_method="geometric")
    assert layer_agreement(table(one, mixed)) == pytest.approx(expected)
    assert layer_agreement(table(one, np.zeros_like(one))) == 0
