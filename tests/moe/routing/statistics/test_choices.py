"""What choices go with, on choices with a known answer."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import normalized_mutual_info_score

from tests.moe.routing.statistics.made_routing import EXPERTS, routed
from unmask.moe.routing.formulas import (
    coactivation,
    layer_agreement,
    pair_codes,
    strongest_partner,
    vocabulary_specialisation,
)


def table(one: np.ndarray, other: np.ndarray, rows: int = EXPERTS, columns: int = EXPERTS) -> np.ndarray:
    counts = np.zeros((rows, columns))
    np.add.at(counts, (one, other), 1)
    return counts


def test_vocabulary() -> None:
    ids = np.arange(1000) % 10
    assert vocabulary_specialisation(table(ids, ids % EXPERTS, 10)) == 1.0, "each id has its expert"
    assert vocabulary_specialisation(np.full((10, EXPERTS), 25.0)) == 0.25
    half = np.array([[10.0, 0, 0, 0], [5, 5, 0, 0]])
    assert vocabulary_specialisation(half) == 0.75
    assert np.isnan(vocabulary_specialisation(np.zeros((0, EXPERTS))))


def test_agreement_of_layers() -> None:
    one, other = routed(texts=200).first, routed(texts=200, seed=1).first
    assert layer_agreement(table(one, (one + 1) % EXPERTS)) == pytest.approx(1), "names do not matter"
    assert layer_agreement(table(one, other)) == pytest.approx(0, abs=0.01)
    mixed = np.where(np.arange(len(one)) % 2, one, other)
    expected = normalized_mutual_info_score(one, mixed, average_method="geometric")
    assert layer_agreement(table(one, mixed)) == pytest.approx(expected)
    assert layer_agreement(table(one, np.zeros_like(one))) == 0


def pairs_of(chosen: np.ndarray) -> np.ndarray:
    codes, _ = pair_codes(chosen, EXPERTS)
    return np.bincount(codes, minlength=EXPERTS**2).astype(float).reshape(EXPERTS, EXPERTS)


def test_coactivation() -> None:
    chosen = np.array([[0, 1], [1, 0], [0, 2], [3, -1]])
    pairs = pairs_of(chosen)
    assert pairs.tolist() == [[3, 2, 1, 0], [2, 2, 0, 0], [1, 0, 1, 0], [0, 0, 0, 1]]
    assert coactivation(pairs)[0].tolist() == pytest.approx([1, 2 / 3, 1 / 3, 0])
    assert strongest_partner(pairs) == pytest.approx((2 / 3 + 1 + 1 + 0) / 4)
    assert np.isnan(strongest_partner(np.zeros((4, 4))))
    codes, tokens = pair_codes(chosen, EXPERTS)
    assert sorted(zip(tokens[tokens > 1].tolist(), codes[tokens > 1].tolist(), strict=True)) == [
        (2, 0),
        (2, 2),
        (2, 8),
        (2, 10),
        (3, 15),
    ]
    assert strongest_partner(pairs_of(np.array([[0, 1], [2, 3]] * 50))) == 1
