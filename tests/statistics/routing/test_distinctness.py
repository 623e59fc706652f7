"""Copies are alike; unrelated experts are not."""

from __future__ import annotations

import numpy as np
import pytest

from unmask.statistics.routing.distinctness import output_cka, output_cosine, subspace_overlap

RANDOM = np.random.default_rng(0)
OUTPUT = RANDOM.normal(size=(300, 8))


def test_copies() -> None:
    copies = np.stack([OUTPUT] * 3)
    assert output_cosine(copies) == pytest.approx(np.ones(300)) and output_cka(copies) == pytest.approx(1)
    assert subspace_overlap([OUTPUT[:8, :2], OUTPUT[:8, :2] @ np.array([[1.0, 2], [0, 3]])]) == pytest.approx(1), "one space"


def test_unrelated_experts() -> None:
    apart = RANDOM.normal(size=(4, 3000, 8))
    assert output_cka(apart + 100) < 0.02, "what all tokens share is no likeness"
    assert output_cosine(apart).mean() == pytest.approx(0, abs=0.02) and output_cka(apart) < 0.02
    spaces = [RANDOM.normal(size=(50, 5)) for _ in range(20)]
    assert subspace_overlap(spaces) == pytest.approx(5 / 50, abs=0.01), "chance"


def test_what_each_measure_does_not_see() -> None:
    turned = np.linalg.qr(RANDOM.normal(size=(8, 8)))[0]
    assert output_cka(np.stack([OUTPUT, 3 * OUTPUT @ turned])) == pytest.approx(1)
    assert output_cosine(np.stack([OUTPUT, 5 * OUTPUT])) == pytest.approx(np.ones(300))
    assert output_cosine(np.stack([OUTPUT, -OUTPUT])) == pytest.approx(-np.ones(300))


def test_by_hand() -> None:
    three = np.array([[[1.0, 0]], [[0, 1.0]], [[1.0, 1.0]]])
    assert output_cosine(three) == pytest.approx([(0 + 2 / np.sqrt(2)) / 3])
    assert subspace_overlap([np.eye(4)[:, :2], np.eye(4)[:, 1:3]]) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="at least 2"):
        output_cosine(three[:1])
