"""Copies are alike; unrelated experts are not; and CKA is not raised by few tokens, nor by tokens of one text."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.proofs import ALL
from unmask.moe.routing.statistics.distinctness import output_cka, output_cosine, subspace_overlap
from unmask.statistics.intervals import jackknife_interval

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


def test_unrelated_experts() -> None:
    apart = RANDOM.normal(size=(4, 3000, 8))
    assert abs(output_cka(apart + 100, np.full(300, 10))[0]) < 0.01, "what all tokens share is no likeness"
    assert output_cosine(apart).mean() == pytest.approx(0, abs=0.02)
    spaces = [RANDOM.normal(size=(50, 5)) for _ in range(20)]
    assert subspace_overlap(spaces) == pytest.approx(5 / 50, abs=0.01), "chance"


def test_few_tokens_of_many_dimensions_are_not_alike_by_that() -> None:
    found = [output_cka(np.random.default_rng(seed).normal(size=(2, 40, 200)), np.ones(40, np.int64))[0] for seed in range(30)]
    assert np.mean(found) == pytest.approx(0, abs=0.02), "plain CKA gives 0.84"


def test_what_each_measure_does_not_see() -> None:
    turned = np.linalg.qr(RANDOM.normal(size=(8, 8)))[0]
    assert output_cka(np.stack([OUTPUT, 3 * OUTPUT @ turned]), TEXTS)[0] == pytest.approx(1)
    assert output_cosine(np.stack([OUTPUT, 5 * OUTPUT])) == pytest.approx(np.ones(300))
    assert output_cosine(np.stack([OUTPUT, -OUTPUT])) == pytest.approx(-np.ones(300))


def test_by_hand() -> None:
    three = np.array([[[1.0, 0]], [[0, 1.0]], [[1.0, 1.0]]])
    assert output_cosine(three) == pytest.approx([(0 + 2 / np.sqrt(2)) / 3])
    assert subspace_overlap([np.eye(4)[:, :2], np.eye(4)[:, 1:3]]) == pytest.approx(0.5)
    for measure in (output_cosine, lambda some: output_cka(some, np.array([1]))):
        with pytest.raises(ValueError, match="at least 2"):
            measure(three[:1])
    assert np.isnan(output_cka(three, np.array([1]))[0]), "one text"


def test_cka_pair_by_pair() -> None:
    """The formula, token by token, with all texts and without each."""
    lengths = np.array([3, 1, 4, 2])
    outputs = RANDOM.normal(size=(3, 10, 5))
    owner = np.repeat(np.arange(4), lengths)
    centred = outputs - outputs.mean(axis=1, keepdims=True)

    def hsic(one: int, other: int, texts: set[int]) -> float:
        pairs = [(i, j) for i in range(10) for j in range(10) if owner[i] != owner[j] and {owner[i], owner[j]} <= texts]
        kernels = [[centred[expert, i] @ centred[expert, j] for i, j in pairs] for expert in (one, other)]
        return float(np.cov(np.array(kernels))[0, 1])

    def cka(texts: set[int]) -> float:
        return float(
            np.mean([hsic(a, b, texts) / np.sqrt(hsic(a, a, texts) * hsic(b, b, texts)) for a, b in combinations(range(3), 2)])
        )

    value, left_out = output_cka(outputs, lengths)
    assert value == pytest.approx(cka(set(range(4))))
    assert left_out == pytest.approx([cka(set(range(4)) - {text}) for text in range(4)])


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
