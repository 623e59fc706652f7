"""Similarities: neighbours, orders of pairs and disagreement, by arithmetic; and the same numbers as `encode`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import spearmanr

from tests.conftest import TEXTS
from unmask.designs.design import parse_designs
from unmask.embedder import Embedder
from unmask.ui.similarities import as_json, compare_orders, neighbours
from unmask.ui.workbench import Workbench


def table(*pairs: float) -> NDArray[np.float32]:
    """A symmetric table of cosines from its upper triangle."""
    size = round((1 + (1 + 8 * len(pairs)) ** 0.5) / 2)
    found = np.eye(size, dtype=np.float32)
    found[np.triu_indices(size, 1)] = pairs
    return np.maximum(found, found.T)


def test_neighbours_are_the_others_by_cosine() -> None:
    assert neighbours(table(0.1, 0.9, 0.5)) == [[2, 1], [2, 0], [0, 1]]
    assert neighbours(table(0.5, 0.5, 0.5)) == [[1, 2], [0, 2], [0, 1]]  # ties stay in the order of the texts
    assert neighbours(table(1.0, 1.0, 1.0)) == [[1, 2], [0, 2], [0, 1]]  # a text is never its own neighbour


def test_the_pair_with_the_most_different_places_comes_first() -> None:
    # pairs 01, 02, 12: places 1, 2, 3 and 3, 1, 2
    spearman, pairs = compare_orders(table(0.9, 0.8, 0.7), table(0.1, 0.3, 0.2))
    assert spearman == pytest.approx(-0.5)
    assert [(pair.texts, pair.places) for pair in pairs] == [((0, 1), (1, 3)), ((0, 2), (2, 1)), ((1, 2), (3, 2))]
    assert pairs[0].cosines == pytest.approx((0.9, 0.1))


def test_orders_do_not_depend_on_the_range_of_cosines() -> None:
    first = table(0.9, 0.8, 0.7, 0.2, 0.1, 0.0)
    spearman, pairs = compare_orders(first, (first / 10 + 0.85).astype(np.float32))
    assert spearman == pytest.approx(1.0) and pairs == []


def test_ties_share_their_mean_place() -> None:
    spearman, pairs = compare_orders(table(0.5, 0.5, 0.1), table(0.9, 0.2, 0.1))
    assert {pair.texts: pair.places for pair in pairs} == {(0, 1): (1.5, 1), (0, 2): (1.5, 2)}
    assert spearman == pytest.approx(spearmanr([2.5, 2.5, 1], [3, 2, 1]).statistic)


def test_rounding_makes_no_order() -> None:
    noise = 1e-7
    spearman, pairs = compare_orders(table(0.5, 0.5 + noise, 0.5 - noise), table(0.3, 0.2, 0.1))
    assert spearman is None and {pair.places[0] for pair in pairs} == {2}


def test_correlation_is_that_of_scipy() -> None:
    random = np.random.default_rng(0)
    first, second = (table(*random.normal(size=45).tolist()) for _ in range(2))
    upper = np.triu_indices(10, 1)
    spearman, pairs = compare_orders(first, second, most=4)
    assert spearman == pytest.approx(spearmanr(first[upper], second[upper]).statistic)
    assert len(pairs) == 4


def test_two_texts_are_one_pair_and_nothing_to_disagree_on() -> None:
    assert compare_orders(table(0.9), table(0.1)) == (None, [])


def test_the_numbers_are_those_of_encode(pico: Callable[..., Embedder]) -> None:
    embedder = pico("causal/plain/mean")
    workbench = Workbench(embedder, parse_designs("mean"))
    answer = as_json(workbench.embed(["mean", "causal/eol/last@1"], TEXTS, lambda _: None))
    for design in answer["designs"]:
        vectors = embedder.with_design(design["design"]).encode(TEXTS)
        assert np.allclose(design["cosines"], Embedder.similarity(vectors, vectors), atol=1e-4)
        assert design["neighbours"] == neighbours(Embedder.similarity(vectors, vectors))
    assert answer["designs"][0]["neighbours"][0][0] == 5  # the same text again
    alone = as_json(workbench.embed(["mean"], TEXTS, lambda _: None))
    assert (alone["spearman"], alone["disagreements"]) == (None, [])
