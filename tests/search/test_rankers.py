"""Rankers: exact search is a sort of all cosines, on every store and in every precision; filters and approximation keep to it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.search.test_stores import COUNT, DIM, SCHEMA, blocks, made
from unmask.encoding.quantization import PRECISIONS, Precision, as_floats, normalized
from unmask.search import rankers
from unmask.search.keywords import Keywords
from unmask.search.queries import Queries
from unmask.search.rankers import DenseRanker, KeywordRanker
from unmask.search.stores import STORES
from unmask.search.stores.store import Layout
from unmask.search.vectors import Vectors, stored

QUERIES = normalized(np.random.default_rng(1).normal(size=(3, DIM)).astype(np.float32))


def asked(*texts: str) -> Queries:
    """Queries, which are numbers of vectors."""
    return Queries(texts, lambda given: (QUERIES[[int(query) for query in given]], None))


def dense(folder: Path, store: str, precision: Precision = "float32", approximate: bool = False) -> DenseRanker:
    kind: Any = STORES[store]
    layout = Layout(SCHEMA, DIM, precision)
    kind.write(folder, layout, blocks(made(precision)), approximate=approximate)
    return DenseRanker(kind.open(folder, layout), layout, approximate=approximate)


def sorted_rows(vector: Vectors, precision: Precision, allowed: Sequence[int] = range(COUNT)) -> list[int]:
    cosines = normalized(as_floats(made(precision))).astype(np.float64) @ vector
    return sorted(allowed, key=lambda row: -cosines[row])


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("store", STORES)
def test_exact_search_sorts_all(
    store: str, precision: Precision, in_memory: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rankers, "BLOCK", 100)
    monkeypatch.setattr(rankers, "_KEPT", 2**30 if in_memory else 0)
    ranker = dense(tmp_path, store, precision)
    for vector, ranking in zip(QUERIES, ranker.rank(asked("0", "1", "2"), 25, None), strict=True):
        assert ranking.rows.tolist() == sorted_rows(vector, precision)[:25]
        expected = normalized(as_floats(made(precision)))[ranking.rows] @ vector
        assert ranking.scores == pytest.approx(expected, abs=1e-3 if precision == "float16" else 1e-6)
    allowed = np.arange(3, COUNT, 7)
    (ranking,) = ranker.rank(asked("1"), 9, allowed)
    assert ranking.rows.tolist() == sorted_rows(QUERIES[1], precision, allowed.tolist())[:9]
    assert ranker.rank(asked("1"), 9, allowed[:0])[0].rows.tolist() == []


def test_a_query_alone_is_as_among_others(tmp_path: Path) -> None:
    ranker = dense(tmp_path, "usearch")
    together = ranker.rank(asked("0", "1", "2"), 50, None)
    for place, ranking in enumerate(together):
        (alone,) = ranker.rank(asked(str(place)), 50, None)
        assert alone.rows.tolist() == ranking.rows.tolist() and alone.scores.tolist() == ranking.scores.tolist()


@pytest.mark.parametrize("approximate", [False, True])
@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("store", STORES)
def test_equal_documents_are_ranked_by_row(
    store: str, precision: Precision, approximate: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if they lie in blocks of other sizes, of which the last has one row."""
    monkeypatch.setattr(rankers, "BLOCK", 11)
    equal = np.repeat(made("float32")[:1], COUNT, axis=0)
    kind: Any = STORES[store]
    layout = Layout(SCHEMA, DIM, precision)
    kind.write(tmp_path, layout, blocks(stored(equal, precision)), approximate=False)
    ranker = DenseRanker(kind.open(tmp_path, layout), layout, approximate=approximate)
    monkeypatch.setattr(ranker, "proposed", lambda vector, number: np.arange(11))
    for ranking in ranker.rank(asked("0", "1", "2"), 11, None):
        assert ranking.rows.tolist() == list(range(11)) and len(set(ranking.scores.tolist())) == 1


@pytest.mark.parametrize("store", STORES)
def test_approximate_search_has_the_scores_of_exact_search(store: str, tmp_path: Path) -> None:
    ranker = dense(tmp_path, store, approximate=True)
    exact = DenseRanker(ranker.store, ranker.layout)
    (found,), (all_rows,) = ranker.rank(asked("0"), 10, None), exact.rank(asked("0"), COUNT, None)
    scores = dict(zip(all_rows.rows.tolist(), all_rows.scores.tolist(), strict=True))
    assert len(found.rows) == 10
    assert found.scores == pytest.approx([scores[row] for row in found.rows.tolist()], abs=1e-6)
    assert np.isin(found.rows, all_rows.rows[:20]).mean() > 0.8


def test_with_a_filter_all_allowed_documents_are_compared(tmp_path: Path) -> None:
    ranker = dense(tmp_path, "usearch", approximate=True)
    allowed = np.array(sorted(sorted_rows(QUERIES[0], "float32")[-5:]), np.int64)
    assert sorted(ranker.rank(asked("0"), 10, allowed)[0].rows.tolist()) == allowed.tolist()


def test_documents_without_a_word_of_the_query_are_not_found() -> None:
    ranker = KeywordRanker(Keywords.build(["a cat", "a dog", "cat cat"], "english"), 3)
    cats, nothing = ranker.rank(asked("cats", "zebra"), 10, None)
    assert cats.rows.tolist() == [2, 0] and nothing.rows.tolist() == []
    assert ranker.rank(asked("cats"), 10, np.array([0, 1], np.int64))[0].rows.tolist() == [0]
