"""Searching: the nDCG of a comparison to the last bit, the same answer from every store, and mistakes before a model is loaded."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.search.made import ROWS, indexed, opened
from tests.tiny import give_code, write_task
from unmask.embedder import Embedder
from unmask.errors import UnmaskError
from unmask.io.seals import Damaged
from unmask.models.source import TRUSTED
from unmask.search import record
from unmask.search.build import build
from unmask.search.documents import Corpus, read_documents
from unmask.search.hits import Hit
from unmask.search.index import Index
from unmask.search.job import Job
from unmask.search.stores import STORES
from unmask.tasks.find import find_task
from unmask.tasks.mteb.evaluator import evaluate
from unmask.tasks.mteb.ranking import ndcg
from unmask.tasks.task import LocalTask


def task_of(folder: Path) -> LocalTask:
    found = find_task(str(folder))
    assert isinstance(found, LocalTask)
    return found


def scored_by_compare(embedder: Embedder, task: LocalTask) -> NDArray[np.float64]:
    """nDCG@10 of each query, in the order of ids, as `unmask compare` measures it."""
    outcome = evaluate(task, "x", lambda texts, _: np.asarray(embedder.encode(texts), np.float32))
    assert outcome.items is not None
    return outcome.items.columns["value"]


def scored_by_search(embedder: Embedder, task: LocalTask, folder: Path, store: str, **options: Any) -> NDArray[np.float64]:
    """The same, by an index of the task's corpus."""
    output = folder / f"index-{store}"
    build(embedder, Job(Corpus((folder / "task" / "corpus.jsonl",)), output, "in memory", store=store, **options).check())
    index = Index.open(output, embedder=embedder)
    relevant: dict[str, dict[str, int]] = {}
    for row in task.data["qrels"]:
        relevant.setdefault(row["query-id"], {})[row["corpus-id"]] = int(row["score"])
    queries = sorted((row["_id"], row["text"]) for row in task.data["queries"])
    found = index.search_all([text for _, text in queries], 100)
    return np.array(
        [
            ndcg({hit.id: hit.score for hit in hits}, relevant[query], 10)
            for (query, _), hits in zip(queries, found, strict=True)
        ]
    )


@pytest.mark.parametrize("store", STORES)
def test_search_has_the_score_of_a_comparison(store: str, embedder: Embedder, tmp_path: Path) -> None:
    task = task_of(write_task(tmp_path / "task", "retrieval"))
    expected = scored_by_compare(embedder, task)
    found = scored_by_search(embedder, task, tmp_path, store)
    assert len(found) == 6 and 0 < expected.mean() < 1
    assert found == pytest.approx(expected, abs=1e-12)


def test_the_starter_task_has_the_score_of_a_comparison(embedder: Embedder, tmp_path: Path) -> None:
    from unmask import starter

    shutil.copytree(Path(starter.__file__).parent / "retrieval", tmp_path / "task")
    task = task_of(tmp_path / "task")
    expected = scored_by_compare(embedder, task)
    for store in STORES:
        found = scored_by_search(embedder, task, tmp_path, store)
        assert len(found) > 10
        assert found == pytest.approx(expected, abs=1e-12)


def test_every_store_gives_the_same_answer(embedder: Embedder, tmp_path: Path) -> None:
    answers = []
    for store in STORES:
        (tmp_path / store).mkdir()
        indexed(embedder, tmp_path / store, store=store)
        index = opened(embedder, tmp_path / store)
        answers.append([index.search("the market", 3, mode=mode, where="year > 2019") for mode in ("dense", "bm25", "hybrid")])
    assert answers[0] == answers[1]


def test_hits_say_what_was_found(index: Index) -> None:
    first, *others = index.search("Dogs Two dogs run across the wet grass.", 3)
    assert (first.rank, first.id, first.title, first.text) == (1, "d3", "Dogs", ROWS[2]["text"])
    assert first.score == pytest.approx(1, abs=1e-6) and first.columns == {"year": 2021, "tag": None}
    assert [hit.rank for hit in others] == [2, 3] and "text" not in first.as_json()


def test_hybrid_fuses_both_rankings(index: Index) -> None:
    dense, words = (index.search("guitar", 10, mode=mode) for mode in ("dense", "bm25"))
    expected: dict[str, float] = {}
    for hits in (dense, words):
        for hit in hits:
            expected[hit.id] = expected.get(hit.id, 0) + 1 / (60 + hit.rank)
    assert {hit.id: hit.score for hit in index.search("guitar", 10, mode="hybrid")} == pytest.approx(expected)


def test_a_filter_is_of_the_documents_columns(index: Index) -> None:
    for mode in ("dense", "hybrid"):
        assert {hit.id for hit in index.search("market", where="year >= 2020 and tag = 'a'", mode=mode)} == {"d4"}
    assert [hit.id for hit in index.search("market", where="id in ('d1', 'd2')", mode="bm25")] == ["d2"]
    assert index.search("market", where="year > 3000") == []


def test_a_column_of_the_documents_comes_before_ours(embedder: Embedder, tmp_path: Path) -> None:
    indexed(embedder, tmp_path, [{"_id": "d1", "id": 7, "text": "x"}, {"_id": "d2", "id": 8, "text": "y"}])
    assert [hit.id for hit in opened(embedder, tmp_path).search("x", where="id = 8")] == ["d2"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"k": 0}, "k must be at least 1"),
        ({"mode": "sparse"}, "Unknown mode 'sparse'"),
        ({"where": "yaer > 1"}, "Did you mean 'year'"),
    ],
)
def test_a_mistake_is_told(options: dict[str, Any], told: str, index: Index) -> None:
    with pytest.raises(UnmaskError, match=told):
        index.search("x", **options)
    with pytest.raises(UnmaskError, match="takes a list of queries"):
        index.search_all("x")


def test_what_is_no_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnmaskError, match="is no index"):
        Index.open(tmp_path)


def test_damage_is_noticed(embedder: Embedder, tmp_path: Path) -> None:
    for store in STORES:
        (tmp_path / store).mkdir()
        indexed(embedder, tmp_path / store, store=store)
        for file in sorted(path for path in (tmp_path / store / "index").rglob("*") if path.is_file() and path.stat().st_size):
            if file.name in (".lock", ".unmask-made"):
                continue
            before = file.read_bytes()
            file.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
            with pytest.raises(Damaged, match=rf"{file.name}'.* damaged.*Make the index again in another folder"):
                opened(embedder, tmp_path / store)
            file.write_bytes(before)
        shutil.rmtree(tmp_path / store / "index" / "data-1")
        with pytest.raises(UnmaskError, match="is missing"):
            opened(embedder, tmp_path / store)


def test_an_update_is_not_seen_by_an_open_index(embedder: Embedder, tmp_path: Path) -> None:
    indexed(embedder, tmp_path, store="lance")
    open_one = opened(embedder, tmp_path)
    indexed(embedder, tmp_path, ROWS[:2])
    with pytest.raises(UnmaskError, match="has been updated since it was opened"):
        open_one.search("x")
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
    shutil.rmtree(base)
    with pytest.raises(UnmaskError, match=str(base)):
        Index.open(tmp_path / "index", device="cpu").search("dogs")


def test_documents_are_read_as_the_task_reads_them(tmp_path: Path) -> None:
    task = task_of(write_task(tmp_path / "task", "retrieval"))
    texts = [forms if isinstance(forms, str) else forms[0] for forms in task.texts_and_pairs[0]]
    documents = [one.joined for one in read_documents(Corpus((tmp_path / "task" / "corpus.jsonl",)))]
    assert texts[len(task.data["queries"]) :] == documents


@pytest.mark.parametrize("store", STORES)
def test_an_update_while_an_index_is_opened_is_followed(
    store: str, embedder: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    indexed(embedder, tmp_path, store=store)
    read = record.read_index

    def slow(folder: Path) -> record.IndexRecord:
        """Read the record; the index is updated before anything else is read."""
        monkeypatch.setattr("unmask.search.index.read_index", read)
        old = read(folder)
        indexed(embedder, tmp_path, ROWS[:2])
        return old

    monkeypatch.setattr("unmask.search.index.read_index", slow)
    assert len(opened(embedder, tmp_path).search("x")) == 2


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

    def found(trust: bool) -> list[Hit]:
        return Index.open(tmp_path / "index", device="cpu", trust_remote_code=trust).search("dogs", 1)

    with pytest.raises(UnmaskError, match=rf"'{tmp_path}/index' names the model '{model}', .* set {TRUSTED}={model}\.$"):
        found(True)
    monkeypatch.setenv(TRUSTED, str(model))
    with pytest.raises(UnmaskError, match="contains custom code"):
        found(False)
    assert not proof.exists()
    assert found(True) and proof.exists()


def test_code_may_be_allowed_where_there_is_none(pico_folder: Callable[[str], Path], tmp_path: Path) -> None:
    model = str(pico_folder("llama"))
    indexed(Embedder.from_pretrained(model, "causal/plain/mean", dtype="float32", device="cpu"), tmp_path, model=model)
    assert Index.open(tmp_path / "index", device="cpu", trust_remote_code=True).search("dogs", 1)
