"""Certainty and load by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import entropy as scipy_entropy

from unmask.moe.routing.formulas import balance, max_violation, squared_variation, token_certainty


def test_certainty_of_tokens() -> None:
    rows = np.array([[0.25] * 4, [1, 0, 0, 0], [0.5, 0.5, 0, 0]], np.float16)
    assert token_certainty(rows) == pytest.approx(np.array([[0.25, 1.0], [1.0, 0.0], [0.5, 0.5]]))
    random = np.random.default_rng(0).dirichlet(np.ones(6), size=20)
    assert token_certainty(random)[:, 1] == pytest.approx(scipy_entropy(random, axis=1) / np.log(6))
    assert token_certainty(random * 0.99) == pytest.approx(token_certainty(random)), "16 bits do not sum to 1"
    assert token_certainty(np.ones((2, 1))).tolist() == [[1, 0], [1, 0]], "one expert"


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


def test_order_and_scale_do_not_matter() -> None:
    loads = np.random.default_rng(0).random((5, 6))
    for measure in (balance, max_violation, squared_variation):
        assert measure(loads) == pytest.approx(measure(loads[:, ::-1] * 7))
