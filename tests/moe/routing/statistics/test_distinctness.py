"""Copies are alike; unrelated experts are not; and CKA is not raised by few tokens, nor by tokens of one text."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.proofs import ALL
from unmask.moe.routing.formulas import output_cka, output_cosine, subspace_overlap
from unmask.statistics.jackknife import jackknife_interval

RANDOM = np.random.default_rng(0)
OUTPUT = RANDOM.normal(size=(300, 8))
EACH_ALONE = np.ones(300, np.int64)
TEXTS = np.full(30, 10)


def test_copies() -> None:
    copies = np.stack([OUTPUT] * 3)
    assert output_cosine(copies) == pytest.approx(np.ones(300))
    value, left_out = output_cka(copies, TEXTS)
    assert value == pytest.approx(1) and left_out == pytest.approx(np.ones(30))
    assert subspace_overlap([OUTPUT[:8, :2], OUTPUT[:8, :2] @ np.array([[1.0, 2], [0, 3]])]) == pytest.approx(1), "one space"


def test_with_texts_of_one_token_it_is_the_debiased_cka() -> None:
    """Song et al. (2012), equation 5: without the means of rows, in place of the mean of the outputs."""
    one = OUTPUT
    other = one @ RANDOM.normal(size=(8, 6)) + RANDOM.normal(size=(300, 6))

    def hsic(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
        n = len(first)
        a, b = first @ first.T, second @ second.T
        np.fill_diagonal(a, 0)
        np.fill_diagonal(b, 0)
        whole = (a * b).sum() + a.sum() * b.sum() / (n - 1) / (n - 2) - 2 / (n - 2) * (a.sum(axis=0) @ b.sum(axis=0))
        return float(whole / n / (n - 3))

    expected = hsic(one, other) / np.sqrt(hsic(one, one) * hsic(other, other))
    padded = np.stack([one, np.pad(other, ((0, 0), (0, 2)))])
    assert output_cka(padded, EACH_ALONE)[0] == pytest.approx(expected, abs=1e-3) and 0.2 < expected < 0.9


@pytest.mark.parametrize(("texts", "alike"), [(12, 0.3), (30, 0.5)])
def test_intervals_cover_the_truth(texts: int, alike: float) -> None:
    """Tokens of one text are alike, and the CKA of all texts is known: that of linear maps of one normal variable."""
    scales = np.linspace(1, 0.3, 16)
    maps = np.random.default_rng(99).normal(size=(2, 16, 8))
    own = [[np.square(one.T @ (scales[:, None] ** 2 * other)).sum() for other in maps] for one in maps]
    truth = own[0][1] / np.sqrt(own[0][0] * own[1][1])

    def interval(seed: int) -> tuple[float, float, float]:
        random = np.random.default_rng(seed)
        lengths = random.integers(3, 15, texts)
        common = np.repeat(random.normal(size=(texts, 16)), lengths, axis=0)
        tokens = (np.sqrt(alike) * common + np.sqrt(1 - alike) * random.normal(size=common.shape)) * scales
        value, left_out = output_cka(tokens @ maps, lengths)
        return value, *(jackknife_interval(value, left_out, most=1.0) or (np.nan, np.nan))

    found = np.array([interval(seed) for seed in range(1000 if ALL else 100)])
    assert found[:, 0].mean() == pytest.approx(truth, abs=0.015)
    assert 0.88 <= ((found[:, 1] <= truth) & (truth <= found[:, 2])).mean() <= 0.99
