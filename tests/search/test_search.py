"""Searching: the ranking of all cosines, the nDCG of a comparison, BM25 in any script, and mistakes before a model is loaded."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.search.cases import ROWS, indexed, opened
from tests.tiny import give_code, write_task
from unmask import starter
from unmask.embedder import Embedder
from unmask.errors import UnmaskError
from unmask.models.source import TRUSTED
from unmask.search.build import IndexJob, build
from unmask.search.documents import DocumentSource, join_title
from unmask.search.index import Hit, Index
from unmask.search.record import IndexRecord
from unmask.search.table import add_rows, create_table, index_words, keywords, search_vectors, search_words
from unmask.tasks.find import find_task
from unmask.tasks.mteb.evaluator import evaluate
from unmask.tasks.mteb.ranking import ndcg
from unmask.tasks.task import LocalTask


def table_of(folder: Path, texts: list[str], vectors: NDArray[Any] | None = None, language: Any = "none") -> Any:
    """A table with these texts, whose ids are their indices."""
    vectors = np.eye(len(texts), 8) if vectors is None else vectors
    record = IndexRecord.model_construct(dim=vectors.shape[1], columns={"row": "integer"})
    table = create_table(folder, record)
    rows = [{"_id": str(n), "_words": keywords(text), "row": n} for n, text in enumerate(texts)]
    add_rows(table, rows, np.asarray(vectors, np.float32))
    index_words(table, language)
    return table


def ids(rows: list[dict[str, Any]]) -> list[int]:
    return [int(row["_id"]) for row in rows]


def test_vectors_are_ranked_by_their_exact_cosines(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    vectors, queries = draw.normal(size=(700, 32)), draw.normal(size=(5, 32)).astype(np.float32)
    vectors[100:120] = vectors[100]
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    table = table_of(tmp_path, [""] * 700, vectors)
    for query in queries:
        cosines = vectors.astype(np.float64) @ query / np.linalg.norm(query)
        rows = search_vectors(table, query, 700)
        assert ids(rows)[:50] == np.argsort(-cosines, kind="stable")[:50].tolist()
        assert [row for row in ids(rows) if 100 <= row < 120] == list(range(100, 120)), "equal documents stay in order"
        assert [1 - row["_distance"] for row in rows] == pytest.approx(sorted(cosines, reverse=True), abs=1e-6)
        allowed = ids(search_vectors(table, query, 10, where="row % 7 = 3"))
        assert allowed == [row for row in ids(rows) if row % 7 == 3][:10]


@pytest.mark.parametrize("bundled", [False, True])
def test_search_has_the_score_of_a_comparison(bundled: bool, embedder: Embedder, tmp_path: Path) -> None:
    folder = Path(starter.__file__).parent / "retrieval" if bundled else write_task(tmp_path / "task", "retrieval")
    task = find_task(str(folder))
    assert isinstance(task, LocalTask)
    outcome = evaluate(task, "x", lambda texts, _: np.asarray(embedder.encode(texts), np.float32))
    assert outcome.items is not None
    expected = outcome.items.columns["value"]
    build(IndexJob(DocumentSource((folder / "corpus.jsonl",)), tmp_path / "index", "in memory"), lambda: embedder)
    relevant: dict[str, dict[str, int]] = {}
    for row in task.data["qrels"]:
        relevant.setdefault(row["query-id"], {})[row["corpus-id"]] = int(row["score"])
    queries = sorted((row["_id"], row["text"]) for row in task.data["queries"])
    results = opened(embedder, tmp_path).search_all([text for _, text in queries], 100)
    scores = [
        ndcg({hit.id: hit.score for hit in hits}, relevant[name], 10) for (name, _), hits in zip(queries, results, strict=True)
    ]
    assert scores == pytest.approx(expected, abs=1e-12) and 0 < expected.mean() < 1


def test_hits_hold_the_document(index: Index) -> None:
    first, *others = index.search("Dogs Two dogs run across the wet grass.", 3)
    assert (first.rank, first.id, first.title, first.text) == (1, "d3", "Dogs", ROWS[2]["text"])
    assert first.score == pytest.approx(1, abs=1e-6) and first.columns == {"year": 2021, "tag": None}
    assert [hit.rank for hit in others] == [2, 3] and "text" not in first.as_json()


def test_hybrid_fuses_both_rankings(index: Index) -> None:
    expected: dict[str, float] = {}
    for mode in ("dense", "bm25"):
        for hit in index.search("the market", mode=mode):
            expected[hit.id] = expected.get(hit.id, 0) + 1 / (60 + hit.rank)
    hits = index.search("the market", mode="hybrid")
    assert {hit.id: hit.score for hit in hits} == pytest.approx(expected)
    assert [hit.score for hit in hits] == sorted(expected.values(), reverse=True)


def test_a_filter_is_of_the_columns_of_the_documents(index: Index) -> None:
    for mode in ("dense", "hybrid"):
        assert {hit.id for hit in index.search("market", where="year >= 2020 and tag = 'a'", mode=mode)} == {"d4"}
    assert [hit.id for hit in index.search("market", where="_id in ('d1', 'd2')", mode="bm25")] == ["d2"]
    assert {hit.id for hit in index.search("x", where="tag is null or not (tag = 'a')")} == {"d2", "d3"}
    assert index.search("market", where="year > 3000") == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k must be at least 1"),
        ({"mode": "sparse"}, "Unknown mode 'sparse'"),
        ({"where": "yaer > 1"}, "No field named yaer. Did you mean 'year'"),
        ({"where": "year = 'x'"}, r"could not convert to literal of type 'Int64'\. For example"),
        ({"where": "year >"}, "sql parser error"),
    ],
)
def test_a_mistake_is_reported_before_a_model_is_loaded(options: dict[str, Any], message: str, index: Index) -> None:
    index._embedder = None
    with pytest.raises(UnmaskError, match=message):
        index.search("x", **options)
    with pytest.raises(UnmaskError, match="takes a list of queries"):
        index.search_all("x")


def test_an_update_by_another_process_is_reported(embedder: Embedder, tmp_path: Path) -> None:
    with pytest.raises(UnmaskError, match="is not an index"):
        Index.open(tmp_path)
    indexed(embedder, tmp_path)
    index = opened(embedder, tmp_path)
    indexed(embedder, tmp_path, ROWS[:2])
    for mode in ("dense", "bm25"):
        with pytest.raises(UnmaskError, match="has been updated since it was opened"):
            index.search("x", mode=mode)
    assert len(opened(embedder, tmp_path).search("x")) == 2


def test_weights_that_changed_are_refused(base: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    embedder = Embedder.from_pretrained(base, "causal/plain/mean", dtype="float32", device="cpu")
    indexed(embedder, tmp_path, model=str(base))
    assert Index.open(tmp_path / "index", device="cpu").search("dogs")
    (file,) = base.glob("*.safetensors")
    tensors = load_file(file)
    name = sorted(tensors)[0]
    save_file({**tensors, name: tensors[name] + torch.ones(1)}, file, {"format": "pt"})
    changed = Index.open(tmp_path / "index", device="cpu")
    with pytest.raises(UnmaskError, match="what differs is the weights of the model"):
        changed.search("dogs")
    assert changed.search("dogs", mode="bm25")  # needs no model


def test_code_of_a_model_that_only_the_index_names_is_not_run(
    pico_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proof = tmp_path / "it-ran"
    model = give_code(Path(shutil.copytree(pico_folder("llama"), tmp_path / "coded")), proof)
    embedder = Embedder.from_pretrained(model, "causal/plain/mean", dtype="float32", device="cpu", trust_remote_code=True)
    indexed(embedder, tmp_path, model=str(model))
    proof.unlink()
    for name in [name for name in sys.modules if name.startswith("transformers_modules")]:
        monkeypatch.delitem(sys.modules, name)

    def search(trust: bool) -> list[Hit]:
        return Index.open(tmp_path / "index", device="cpu", trust_remote_code=trust).search("dogs", 1)

    with pytest.raises(UnmaskError, match=rf"'{tmp_path}/index' names the model '{model}', .* set {TRUSTED}={model}\.$"):
        search(True)
    monkeypatch.setenv(TRUSTED, str(model))
    with pytest.raises(UnmaskError, match="contains custom code"):
        search(False)
    assert not proof.exists()
    assert search(True) and proof.exists()


# --- words -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("我住在北京市", "北京"),
        ("カフェテラス", "カフェ"),
        ("ฉันรักแมวมาก", "แมว"),
        ("ខ្ញុំស្រឡាញ់ឆ្មាណាស់", "ឆ្មា"),
        ("新しいiPhoneケース", "IPHONE"),
        ("ठंडा पानी", "पानी"),
        ("प्रधानमन्त्रीकार्यालय में", "प्रधानमन्त्रीकार्यालय"),
        ("the cafe\u0301 there", "caf\u00e9"),
        ("Eine STRASSE", "straße"),
        ("a to_do list", "to_do"),
        ("x" * 1000, "X" * 1000),
    ],
)
def test_a_word_is_found_in_any_script(text: str, query: str, tmp_path: Path) -> None:
    table = table_of(tmp_path, ["Nothing", text, "한국어", ""])
    assert ids(search_words(table, query, 10)) == [1]
    for unknown in ("zebra", "", "!?", "प", "cafe", "do"):
        assert search_words(table, unknown, 10) == []


def test_stems_are_of_the_language(tmp_path: Path) -> None:
    texts = ["the cats sat", "die Katzen saßen", "nothing"]
    for language, query, expected in (("none", "cat", []), ("english", "cat", [0]), ("german", "Katze", [1])):
        (tmp_path / language).mkdir()
        table = table_of(tmp_path / language, texts, language=language)
        assert ids(search_words(table, query, 10)) == expected
        assert ids(search_words(table, "the", 10)) == [0], "no stop word is dropped"


@pytest.mark.sample(0)
def test_scifact_reaches_the_published_score(data: Path, tmp_path: Path) -> None:
    def read(name: str) -> list[dict[str, str]]:
        return [json.loads(line) for line in (data / "scifact" / name).read_text(encoding="utf-8").splitlines()]

    corpus, queries = read("corpus.jsonl"), {row["_id"]: row["text"] for row in read("queries.jsonl")}
    texts = [join_title(row["title"], row["text"]) for row in corpus]
    table = table_of(tmp_path, texts, np.ones((len(texts), 1)), "english")
    relevant: dict[str, dict[str, int]] = {}
    for line in (data / "scifact" / "qrels_test.tsv").read_text().splitlines()[1:]:
        query, document, gain = line.split("\t")
        relevant.setdefault(query, {})[document] = int(gain)
    values = []
    for query, gains in relevant.items():
        rows = search_words(table, queries[query], 10)
        values.append(ndcg({corpus[int(row["_id"])]["_id"]: row["_score"] for row in rows}, gains, 10))
    assert len(values) == 300
    assert np.mean(values) == pytest.approx(0.679, abs=0.01)  # Anserini's in BEIR
