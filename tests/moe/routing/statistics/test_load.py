"""Certainty and load by hand."""

from __future__ import annotations

import numpy as np
import pytest

from unmask.moe.routing.formulas import balance, max_violation, squared_variation, token_certainty


def test_distinctness_is_information_of_token_and_expert() -> None:
    same, apart = np.full((8, 2), 0.5), np.eye(2)[np.arange(8) % 2]
    for rows, expected in ((same, 0.0), (apart, 1.0)):
        found = balance(rows.sum(axis=0)) - token_certainty(rows)[:, 1].mean()
        assert found == pytest.approx(expected)


def test_even_and_collapsed_loads() -> None:
    even, one, half = np.full(4, 30.0), np.array([120.0, 0, 0, 0]), np.array([60.0, 60, 0, 0])
    loads = np.stack([even, one, half])
    assert balance(loads) == pytest.approx([1.0, 0.0, 0.5])
    assert max_violation(loads) == pytest.approx([0.0, 3.0, 1.0])
    assert squared_variation(loads) == pytest.approx([0.0, 3.0, 1.0])
