"""Lexical search: scores are dot products with the IDF of the index, updates keep the vectors, and hybrid search fuses their ranking."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.search.made import ROWS, contents, indexed, opened
from unmask.embedder import Embedder
from unmask.encoding.lexical import KEPT
from unmask.errors import UnmaskError
from unmask.models.output_layer import OutputLayer, find_output_layer
from unmask.search import lexical as module
from unmask.search.documents import joined
from unmask.search.lexical import LexicalRanker, lexical_design, read_packed, write_packed
from unmask.search.queries import Queries
from unmask.search.record import LEXICAL
from unmask.search.stores import STORES

DOCUMENTS, TOKENS = 300, 50
MATRIX = np.random.default_rng(0).random((DOCUMENTS + 3, TOKENS)) * (
    np.random.default_rng(1).random((DOCUMENTS + 3, TOKENS)) < 0.1
)
QUERIES = MATRIX[DOCUMENTS:]
CHANGED = [ROWS[2], {**ROWS[0], "text": "A man plays the drums."}, {"_id": "d5", "title": "", "text": "Rain and guitars."}]


def packed(matrix: NDArray[np.float64]) -> NDArray[np.float32]:
    rows = np.zeros((len(matrix), 2 * KEPT), np.float32)
    for row, values in zip(rows, matrix, strict=True):
        ids = np.flatnonzero(values)
        row[: len(ids)], row[KEPT : KEPT + len(ids)] = ids, values[ids]
    return rows


def by_hand(queries: NDArray[np.float64], documents: NDArray[np.float64]) -> NDArray[np.float64]:
    frequencies = (documents > 0).sum(axis=0)
    idf = np.log(1 + (len(documents) - frequencies + 0.5) / (frequencies + 0.5))
    return np.asarray((queries * idf) @ documents.T)


@pytest.fixture(scope="module")
def embedder(pico: Callable[..., Embedder]) -> Embedder:
    return pico("causal/eol/last", family="gemma2")


def words(embedder: Embedder, texts: list[str]) -> NDArray[Any]:
    return np.asarray(embedder.with_design("causal/eol/last/lexical").encode_sparse(texts).toarray())


def texts_of(rows: list[dict[str, Any]]) -> list[str]:
    return [joined(row["title"], row["text"]) for row in rows]


def asked(vectors: NDArray[np.float64]) -> Queries:
    """Queries with these lexical vectors."""
    return Queries([str(number) for number in range(len(vectors))], lambda _: (np.empty((0, 0), np.float32), packed(vectors)))


@pytest.mark.parametrize("allowed", [None, np.arange(0, DOCUMENTS, 3), np.empty(0, np.int64)])
@pytest.mark.parametrize("block", [7, 4096])
def test_a_ranking_sorts_all_scores(block: int, allowed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", block)
    write_packed(
        tmp_path / "words.npy", (packed(MATRIX[:DOCUMENTS])[start : start + 9] for start in range(0, DOCUMENTS, 9)), DOCUMENTS
    )
    ranker = LexicalRanker(read_packed(tmp_path / "words.npy"))
    expected = by_hand(QUERIES, MATRIX[:DOCUMENTS])
    rows = np.arange(DOCUMENTS) if allowed is None else allowed
    for scores, ranking in zip(expected, ranker.rank(asked(QUERIES), 20, allowed), strict=True):
        order = [row for row in sorted(rows, key=lambda row: -scores[row]) if scores[row] > 0][:20]
        assert ranking.rows.tolist() == order and np.allclose(ranking.scores, scores[order], rtol=1e-5)


def test_a_query_with_other_words_finds_nothing() -> None:
    query = np.zeros((1, TOKENS + 40))
    query[0, TOKENS + 30] = 1.0
    ranker = LexicalRanker(packed(MATRIX[:DOCUMENTS]))
    assert not len(ranker.rank(asked(query), 5, None)[0].rows)


@pytest.mark.parametrize("store", STORES)
def test_an_index_scores_by_its_own_idf(store: str, embedder: Embedder, tmp_path: Path) -> None:
    indexed(embedder, tmp_path, lexical=True, store=store)
    index = opened(embedder, tmp_path)
    expected = by_hand(words(embedder, ["the market today"]), words(embedder, texts_of(ROWS)))[0]
    hits = index.search("the market today", 10, mode="lexical")
    assert hits and {hit.id: hit.score for hit in hits} == pytest.approx(
        {row["_id"]: score for row, score in zip(ROWS, expected, strict=True) if score > 0}, rel=1e-4
    )
    assert [hit.id for hit in index.search("the market today", 10, mode="lexical", where="year = 2020")] in (["d2"], [])


def test_hybrid_fuses_three_rankings(embedder: Embedder, tmp_path: Path) -> None:
    indexed(embedder, tmp_path, lexical=True)
    index = opened(embedder, tmp_path)
    expected: dict[str, float] = {}
    for mode in ("dense", "bm25", "lexical"):
        for hit in index.search("the market today", 10, mode=mode):  # type: ignore[arg-type]
            expected[hit.id] = expected.get(hit.id, 0) + 1 / (60 + hit.rank)
    passes: list[int] = []
    hook = embedder.backbone.model.register_forward_hook(lambda *_: passes.append(1))
    assert {hit.id: hit.score for hit in index.search("the market today", 10, mode="hybrid")} == pytest.approx(expected)
    hook.remove()
    assert len(passes) == 1, "the query is read once"


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
def test_a_query_that_is_cut_is_told(mode: Any, pico: Callable[..., Embedder], tmp_path: Path) -> None:
    embedder = pico("causal/eol/last", family="gemma2", max_length=24)
    indexed(embedder, tmp_path, lexical=True)
    with pytest.warns(UserWarning, match="1 of 1 texts was cut to 24 tokens"):
        opened(embedder, tmp_path).search("the market " * 40, mode=mode)


def test_an_updated_index_is_the_one_that_is_built_anew(embedder: Embedder, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    indexed(embedder, tmp_path, lexical=True)
    done = indexed(embedder, tmp_path, CHANGED)  # it keeps its lexical vectors
    assert (done.documents, done.embedded) == (3, 2)
    indexed(embedder, tmp_path / "new", CHANGED, lexical=True)
    updated, new = opened(embedder, tmp_path), opened(embedder, tmp_path / "new")
    assert updated.record.lexical and contents(updated) == contents(new)
    both = [np.load(index.folder / index.record.data / LEXICAL) for index in (updated, new)]
    assert np.allclose(both[0], both[1], atol=1e-5) and both[0].any()
    assert np.array_equal(both[0][:, :KEPT], both[1][:, :KEPT])


def test_dense_vectors_are_those_of_an_index_without_words(embedder: Embedder, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    indexed(embedder, tmp_path, lexical=True)
    indexed(embedder, tmp_path / "plain")
    plain = opened(embedder, tmp_path / "plain")
    assert contents(opened(embedder, tmp_path)) == contents(plain)
    assert not (plain.folder / plain.record.data / LEXICAL).exists()
    with pytest.raises(UnmaskError, match="has no lexical vectors"):
        plain.search("x", mode="lexical")
    with pytest.raises(UnmaskError, match="was made without lexical vectors"):
        indexed(embedder, tmp_path / "plain", lexical=True)


def test_the_output_layer_is_found_once_for_all_cores(
    pico: Callable[..., Embedder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = pico("causal/eol/last", family="gemma2", batch_tokens=30)
    indexed(embedder, tmp_path, lexical=True)
    embedder.backbone._output = None
    found: list[Any] = []

    def find(model: Any) -> OutputLayer:
        found.append(model)
        layer: OutputLayer = find_output_layer(model)
        return layer

    monkeypatch.setattr("unmask.encoding.backbone.find_output_layer", find)
    monkeypatch.setattr("unmask.encoding.encoder.threads_for", lambda *_: 2)
    opened(embedder, tmp_path).search_all(["the market today", "dogs and cats"], mode="lexical")
    assert len(found) == 1


def test_an_update_by_another_process_is_told(embedder: Embedder, tmp_path: Path) -> None:
    indexed(embedder, tmp_path, lexical=True)
    open_one = opened(embedder, tmp_path)
    indexed(embedder, tmp_path, CHANGED)
    with pytest.raises(UnmaskError, match="has been updated since it was opened"):
        open_one.search("the market", mode="lexical")


@pytest.mark.parametrize("design", ["mean", "echo", "causal/eol+tone/last"])
def test_a_design_that_does_not_end_in_a_prediction_is_refused(
    design: str, pico: Callable[..., Embedder], tmp_path: Path
) -> None:
    with pytest.raises(UnmaskError, match=r"pooling 'last', not|works with one prompt"):
        indexed(pico(family="gemma2").with_design(design), tmp_path, lexical=True)


def test_a_lexical_design_alone_is_no_design_of_an_index(embedder: Embedder, tmp_path: Path) -> None:
    with pytest.raises(UnmaskError, match="An index needs dense vectors"):
        indexed(embedder.with_design("causal/eol/last/lexical"), tmp_path)
    assert lexical_design(embedder.design).name == "causal/eol/last/lexical"
