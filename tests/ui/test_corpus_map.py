"""The map: principal components as an SVD gives them, neighbours in all dimensions, one design at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.server.running import until
from tests.tiny import write_rows
from unmask.designs.design import parse_designs
from unmask.embedder import Embedder
from unmask.errors import UnmaskError
from unmask.ui.corpus_map import Corpus, CorpusMap, project, read_corpus, t_sne
from unmask.ui.embedders import Embedders
from unmask.ui.worker import Stop


def units(texts: int, dim: int, seed: int = 0) -> Any:
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(texts, dim)) * np.linspace(3, 0.1, dim)
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize(("texts", "dim"), [(50, 8), (8, 50), (3, 2), (2, 5)])
def test_a_projection_is_that_of_the_singular_values(texts: int, dim: int) -> None:
    vectors = units(texts, dim)
    centred = vectors - vectors.mean(axis=0)
    left, values, _ = np.linalg.svd(centred.astype(np.float64), full_matrices=False)
    points, share = project(vectors)
    expected = (left * values)[:, :2]
    assert np.allclose(np.abs(points), np.abs(expected), atol=1e-5)
    assert share == pytest.approx((values[:2] ** 2).sum() / (values**2).sum(), abs=1e-6)


def test_t_sne_keeps_groups_together_and_is_the_same_each_time() -> None:
    vectors, group = units(40, 8), np.arange(40) % 4
    vectors[np.arange(40), group] += 5
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    points = t_sne(vectors, project(vectors)[0])
    apart = np.linalg.norm(points[:, None] - points[None], axis=-1) + np.diag(np.full(40, np.inf))
    assert (group[apart.argmin(axis=1)] == group).all()
    assert np.array_equal(points, t_sne(vectors, project(vectors)[0]))


def test_t_sne_of_few_or_equal_texts_is_their_principal_components() -> None:
    for vectors in (units(4, 8), np.full((9, 8), 8**-0.5, np.float32), np.ones((1, 4), np.float32)):
        points, _ = project(vectors)
        assert points.shape == (len(vectors), 2) and np.array_equal(t_sne(vectors, points), points)
    assert np.isfinite(t_sne(units(5, 8), project(units(5, 8))[0])).all()


TEXTS = tuple(f"{word} number {number}" for number in range(12) for word in ("song", "GOAL"))
LABELS = ("music", "sport") * 12


@pytest.fixture
def corpus_map(pico: Callable[..., Embedder]) -> Iterator[CorpusMap]:
    embedders = Embedders(pico("causal/plain/mean"), parse_designs("mean,last"))
    made = CorpusMap(embedders, Corpus("texts", TEXTS, LABELS, 24))
    yield made
    made.close()
    made._pool.shutdown(wait=True)  # else its thread goes on in the next test


def ready(corpus_map: CorpusMap, design: str) -> dict[str, Any]:
    until(lambda: bool(corpus_map.get(design)["ready"]))
    return corpus_map.get(design)


def test_neighbours_are_those_of_top_k(corpus_map: CorpusMap) -> None:
    ready(corpus_map, "mean")
    vectors = corpus_map._embedders.base.encode(TEXTS)
    nearest = Embedder.top_k(vectors[5:6], vectors, 11)
    with pytest.raises(UnmaskError, match="0 to 23"):
        corpus_map.neighbours("mean", 24)
    found = corpus_map.neighbours("mean", 5)
    assert [one["place"] for one in found["neighbours"]] == [place for place in nearest.indices[0].tolist() if place != 5][:10]
    assert [one["cosine"] for one in found["neighbours"]] == pytest.approx(nearest.cosines[0, 1:], abs=1e-4)


@pytest.mark.parametrize("design", ["mean", "causal/plain/mean/zscore"])
def test_a_search_by_meaning_ranks_as_top_k_does(design: str, corpus_map: CorpusMap) -> None:
    with pytest.raises(UnmaskError, match="not ready"):
        corpus_map.nearest(design, TEXTS[5], Stop())
    ready(corpus_map, design)
    embedder = corpus_map._embedders.embedder(design)
    nearest = Embedder.top_k(embedder.encode([TEXTS[5]]), embedder.encode(TEXTS), 20)
    found = corpus_map.nearest(design, TEXTS[5], Stop())
    assert found["places"][0] == 5 and found["cosines"] == pytest.approx(nearest.cosines[0].tolist(), abs=1e-4)


def test_texts_are_embedded_once_for_each_design(corpus_map: CorpusMap, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    embed = corpus_map._embed

    def counted(name: str, *rest: Any) -> Any:
        calls.append(name)
        return embed(name, *rest)

    monkeypatch.setattr(corpus_map, "_embed", counted)
    for design in ("mean", "last", "mean", "causal/plain/mean"):
        ready(corpus_map, design)
    assert calls == ["mean", "last"]  # "causal/plain/mean" is the same design
    ready(corpus_map, "echo")
    ready(corpus_map, "mean")
    assert calls == ["mean", "last", "echo"]  # the two that were used last stay
    ready(corpus_map, "last")
    assert calls == ["mean", "last", "echo", "last"]


class Slow:
    """Embedding of a map that goes on until it is told to stop, or to go on. begun: the names of the designs."""

    def __init__(self, corpus_map: CorpusMap, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.release = threading.Event()
        self._embed = corpus_map._embed
        monkeypatch.setattr(corpus_map, "_embed", self)

    def __call__(self, name: str, texts: Any, projection: Any) -> Any:
        self.begun.append(name)
        try:
            while not self.release.wait(0.01):
                projection.advance(0)
        finally:
            self.ended.append(name)
        return self._embed(name, texts, projection)


def test_a_design_that_no_page_asks_for_makes_way(corpus_map: CorpusMap, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, now = Slow(corpus_map, monkeypatch), [100.0]
    monkeypatch.setattr("unmask.ui.corpus_map.time", SimpleNamespace(monotonic=lambda: now[0]))
    assert corpus_map.get("mean") == {
        "ready": False,
        "design": "causal/plain/mean",
        "done": 0,
        "total": 24,
        "stage": "embedding",
    }
    corpus_map.get("last")
    corpus_map.get("echo")
    now[0] += 4
    corpus_map.get("echo")
    assert slow.ended == []
    now[0] += 4
    corpus_map.get("echo")
    until(lambda: slow.begun == ["mean", "echo"])  # "last" waited in vain, and never began
    assert slow.ended == ["mean"]
    slow.release.set()


def test_a_failure_is_told_and_the_next_try_may_go_better(corpus_map: CorpusMap, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("a text")

    with monkeypatch.context() as patch:
        patch.setattr(corpus_map, "_embed", fail)
        with pytest.raises(UnmaskError, match="could not be embedded"):
            ready(corpus_map, "mean")
    assert ready(corpus_map, "mean")["ready"]


def test_a_large_file_is_sampled_fairly_and_in_order(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "texts.jsonl", [{"text": str(number), "kind": number % 3} for number in range(2000)])
    corpus = read_corpus(file, "text", "kind", max_texts=500)
    numbers = [int(text) for text in corpus.texts]
    assert corpus.rows == 2000 and len(numbers) == 500 and numbers == sorted(set(numbers))
    assert corpus.labels == tuple(str(number % 3) for number in numbers) and set(corpus.label_names) == {"0", "1", "2"}
    assert abs(np.mean(numbers) - 1000) < 4 * 577 / 500**0.5  # four standard errors
    assert read_corpus(file, max_texts=500) == replace(corpus, labels=None)
    file.write_text('{"text": "a", "kind": "b"}\n{"text": "x"}\n')
    with pytest.raises(UnmaskError, match="line 2: column 'kind'"):
        read_corpus(file, "text", "kind", max_texts=1)  # also a row outside the sample
