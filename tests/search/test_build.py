"""Building: an updated index equals a new one, only new texts are embedded, no kill harms it, and damage is noticed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.messages import heard
from tests.search.cases import ROWS, counts, indexed, opened, require_same_documents
from tests.tiny import write_rows
from unmask.embedder import Embedder
from unmask.encoding.heads import build_head
from unmask.encoding.vector_cache import CacheTable
from unmask.errors import UnmaskError
from unmask.io.files import only_run_in
from unmask.io.seals import Damaged
from unmask.search import build as building
from unmask.search.build import IndexJob, build
from unmask.search.documents import DocumentSource, join_title
from unmask.search.embedding import document_vectors
from unmask.search.index import Index
from unmask.search.record import IndexRecord, read_index

CHANGED = [
    {**ROWS[3], "year": 1999},
    {**ROWS[0], "text": "A man plays the drums."},
    {"_id": "d5", "title": "", "text": ROWS[1]["text"], "year": 2023, "tag": "c"},
    ROWS[2],
    {"_id": "d6", "title": "New", "text": "Rain.", "year": 2024, "tag": "c"},
]


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The documents that are embedded, one at a time."""
    texts: list[str] = []

    def counting(embedder: Embedder, batch: Sequence[str], *options: Any) -> Any:
        texts.extend(batch)
        return document_vectors(embedder, batch, *options)

    monkeypatch.setattr("unmask.search.build._SAVED", 1)
    monkeypatch.setattr("unmask.search.build.document_vectors", counting)
    return texts


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name not in (".lock", ".unmask-made"))


def test_an_index_holds_the_documents_and_their_vectors(embedder: Embedder, tmp_path: Path) -> None:
    assert counts(indexed(embedder, tmp_path)) == (4, 4, 0, 0, 4)
    expected = embedder.encode([join_title(row["title"], row["text"]) for row in ROWS], normalize=True)
    for row, stored, vector in zip(ROWS, opened(embedder, tmp_path)._table.to_arrow().to_pylist(), expected, strict=True):
        assert (stored["_id"], stored["_title"], stored["_text"]) == (row["_id"], row["title"], row["text"])
        assert (stored["year"], stored["tag"]) == (row["year"], row["tag"])
        assert stored["_vector"] == pytest.approx(vector.tolist(), abs=1e-6)
    assert files_in(tmp_path / "index") == ["data-1", "index.json"]


def test_an_updated_index_equals_a_new_one(embedder: Embedder, computed: list[str], tmp_path: Path) -> None:
    indexed(embedder, tmp_path)
    computed.clear()
    assert counts(indexed(embedder, tmp_path, CHANGED)) == (5, 2, 2, 1, 2)
    assert computed == ["Guitars A man plays the drums.", "New Rain."]  # d5 has the text that d2 had
    (tmp_path / "new").mkdir()
    indexed(embedder, tmp_path / "new", CHANGED)
    updated, new = (opened(embedder, folder) for folder in (tmp_path, tmp_path / "new"))
    require_same_documents(updated, new)
    assert updated.search("market", mode="bm25") == new.search("market", mode="bm25")
    assert files_in(tmp_path / "index") == ["data-2", "index.json"]


def test_an_open_index_takes_changes(embedder: Embedder, tmp_path: Path) -> None:
    indexed(embedder, tmp_path)
    index = opened(embedder, tmp_path)
    new = {"_id": "d5", "title": "Rain", "text": "It rains in the mountains.", "year": 2023, "tag": "c"}
    assert counts(index.add([new, CHANGED[1]])) == (5, 1, 1, 0, 2)
    assert index.search("mountains", mode="bm25")[0].id == "d5" and len(index) == 5
    assert counts(index.delete(["d2", "d3"])) == (3, 0, 0, 2, 0)
    (tmp_path / "new").mkdir()
    indexed(embedder, tmp_path / "new", [CHANGED[1], ROWS[3], new])
    require_same_documents(index, opened(embedder, tmp_path / "new"))
    changes: list[tuple[Callable[..., Any], Any, str]] = [
        (index.add, [{"text": "no id"}], "line 1: column 'id'"),
        (index.add, [new, new], "comes twice"),
        (index.delete, ["d1", "d9"], "no document 'd9'"),
        (index.delete, "d1", r"delete\(\[id\]\)"),
        (index.delete, ["d1", "d4", "d5"], "remove the folder"),
    ]
    for change, argument, cause in changes:
        with pytest.raises(UnmaskError, match=cause):
            change(argument)
    require_same_documents(index, opened(embedder, tmp_path))


def test_nothing_is_written_when_nothing_changed(embedder: Embedder, computed: list[str], tmp_path: Path) -> None:
    rows = [*ROWS, *({"_id": str(n), "text": ROWS[1]["text"]} for n in range(5))]
    assert counts(indexed(embedder, tmp_path, rows)) == (9, 9, 0, 0, 4)
    assert len(computed) == 4, "equal texts are embedded once"
    record = (tmp_path / "index" / "index.json").read_bytes()
    for again in (rows, rows[::-1]):
        assert counts(indexed(embedder, tmp_path, again)) == (9, 0, 0, 0, 0)
    assert counts(opened(embedder, tmp_path).add([])) == (9, 0, 0, 0, 0)
    assert (tmp_path / "index" / "index.json").read_bytes() == record


def test_documents_of_other_files_are_kept_if_requested(embedder: Embedder, tmp_path: Path) -> None:
    indexed(embedder, tmp_path)
    new = [{"_id": "d2", "title": "", "text": "Changed.", "year": "n/a", "new": 1.5}]
    assert counts(indexed(embedder, tmp_path, new, keep_missing=True)) == (4, 0, 1, 0, 1)
    index = opened(embedder, tmp_path)
    assert index.record.columns == {"year": "text", "new": "number", "tag": "text"}
    columns = {hit.id: hit.columns for hit in index.search("x", 10)}
    assert columns["d2"] == {"year": "n/a", "new": 1.5, "tag": None}
    assert columns["d1"] == {"year": "2019", "new": None, "tag": "a"}
    assert counts(indexed(embedder, tmp_path, new, keep_missing=True)) == (4, 0, 0, 0, 0)
    with heard() as messages:
        indexed(embedder, tmp_path, [{"text": "no id"}], keep_missing=True)
    assert any("--keep-missing" in message for message in messages)
    assert counts(indexed(embedder, tmp_path, new)) == (1, 0, 0, 4, 0)


class Killed(BaseException):
    """Stands for a signal."""


def die(*_: Any, **__: Any) -> None:
    raise Killed


def kill_after_one_text(self: Any, *block: Any) -> None:
    add(self, *block)
    raise Killed


add = CacheTable.add
MOMENTS: dict[str, tuple[Any, str, Any]] = {
    "embedding": (CacheTable, "add", kill_after_one_text),
    "writing": (building, "add_rows", die),
    "words": (building, "index_words", die),
    "record": (IndexRecord, "write", die),
    "old data": (building, "remove_own", lambda path: die() if path.name == "data-1" else None),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_kill_leaves_the_old_index_or_the_new_one(
    moment: str, embedder: Embedder, computed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "new").mkdir()
    indexed(embedder, tmp_path / "new", CHANGED)
    indexed(embedder, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(*MOMENTS[moment])
        with pytest.raises(Killed):
            indexed(embedder, tmp_path, CHANGED)
    assert len(opened(embedder, tmp_path)) == (5 if moment == "old data" else 4)
    computed.clear()
    indexed(embedder, tmp_path, CHANGED)
    assert len(computed) == (1 if moment == "embedding" else 0), "vectors of the killed run are used"
    require_same_documents(opened(embedder, tmp_path), opened(embedder, tmp_path / "new"))
    assert files_in(tmp_path / "index") == ["data-2", "index.json"]


def test_a_second_run_is_refused(embedder: Embedder, tmp_path: Path) -> None:
    indexed(embedder, tmp_path)
    with only_run_in(tmp_path / "index"), pytest.raises(UnmaskError, match="Another run is writing"):
        indexed(embedder, tmp_path, CHANGED)


@pytest.mark.parametrize("change", ["vanished", "doubled", "changed"])
def test_a_corpus_that_changes_while_it_is_read_is_refused(change: str, embedder: Embedder, tmp_path: Path) -> None:
    indexed(embedder, tmp_path)
    later = {"vanished": CHANGED[:4], "doubled": [*CHANGED, CHANGED[0]], "changed": [*CHANGED[:4], ROWS[0]]}[change]
    file = write_rows(tmp_path / "corpus.jsonl", CHANGED)

    def load() -> Embedder:
        write_rows(file, later)
        return embedder

    with pytest.raises(UnmaskError, match=r"was (changed|removed) while .* read"):
        build(IndexJob(DocumentSource((file,)), tmp_path / "index", "in memory"), load)
    assert len(opened(embedder, tmp_path)) == 4


# --- the embedder ----------------------------------------------------------------------------------------------------


def test_another_embedder_is_refused_by_name(embedder: Embedder, pico: Callable[..., Embedder], tmp_path: Path) -> None:
    from tokenizers import normalizers

    indexed(embedder, tmp_path)
    tokenizer = deepcopy(embedder.tokenizer)
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    for other, difference in (
        (pico("causal/plain/last"), "the design: 'causal/plain/mean' then, 'causal/plain/last' now"),
        (pico(max_length=16), "the maximum length: 512 then, 16 now"),
        (pico(family="olmoe"), "the weights of the model"),
        (Embedder(replace(embedder.encoder, tokenizer=tokenizer, _tokenizers={}), embedder.design), "the tokenization"),
    ):
        for use in (lambda: indexed(other, tmp_path, CHANGED), lambda: opened(other, tmp_path).search("x")):  # noqa: B023
            with pytest.raises(UnmaskError, match=difference):
                use()
    assert len(opened(embedder, tmp_path).search("x")) == 4


def test_another_head_on_the_same_weights_is_refused(pico: Callable[..., Embedder], tmp_path: Path) -> None:
    first = pico("bidirectional/plain/cross-attention", head=build_head("cross-attention", 64, 2))
    indexed(first, tmp_path)
    torch.manual_seed(1)
    other = build_head("cross-attention", 64, 2)
    changed = Embedder.from_model(first.backbone.model, first.tokenizer, first.design, head=other, source=first.source)
    with pytest.raises(UnmaskError, match="the trained head"):
        opened(changed, tmp_path).search("x")


def test_instructions_are_part_of_the_index(pico: Callable[..., Embedder], tmp_path: Path) -> None:
    design = "causal/instruction/last"
    embedder = pico(design, instructions={"query": "Find an answer", "document": "A document"})
    indexed(embedder, tmp_path)
    (document,) = embedder.encode([join_title(ROWS[0]["title"], ROWS[0]["text"])], instruction="A document", normalize=True)
    (query,) = embedder.encode(["x"], instruction="Find an answer", normalize=True)
    scores = {hit.id: hit.score for hit in opened(embedder, tmp_path).search("x")}
    assert scores["d1"] == pytest.approx(float(document @ query), abs=1e-6)
    with pytest.raises(UnmaskError, match="the instructions"):
        indexed(pico(design), tmp_path, CHANGED)


def test_a_fit_is_part_of_the_index(tmp_path: Path, pico_folder: Callable[[str], Path]) -> None:
    model, texts = str(pico_folder("llama")), [f"sentence {n}" for n in range(40)]

    def loaded() -> Embedder:
        return Embedder.from_pretrained(model, "causal/plain/mean/zscore", dtype="float32", device="cpu")

    indexed(loaded().fit(texts), tmp_path, model=model, fitted=True)
    expected = opened(loaded().fit(texts), tmp_path).search("guitar")
    assert Index.open(tmp_path / "index", device="cpu").search("guitar") == expected
    with pytest.raises(UnmaskError, match="what differs is the fit"):
        indexed(loaded().fit(texts[:20]), tmp_path, CHANGED, model=model, fitted=True)
    assert indexed(loaded(), tmp_path, CHANGED, model=model).documents == 5, "an update takes the fit of the index"


# --- files -----------------------------------------------------------------------------------------------------------


def test_damage_is_noticed(embedder: Embedder, tmp_path: Path) -> None:
    indexed(embedder, tmp_path)
    data = tmp_path / "index" / "data-1"
    for file in sorted(path for path in (tmp_path / "index").rglob("*") if path.is_file() and path.stat().st_size):
        before = file.read_bytes()
        file.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
        for use in (lambda: opened(embedder, tmp_path), lambda: indexed(embedder, tmp_path, CHANGED)):
            with pytest.raises(Damaged, match=rf"{file.name}'.* damaged.*Make the index again in another folder"):
                use()
        file.write_bytes(before)
    assert len(opened(embedder, tmp_path).search("x")) == 4
    shutil.rmtree(data)
    with pytest.raises(Damaged, match="'data-1' is missing"):
        opened(embedder, tmp_path)


def test_damaged_vectors_of_a_killed_run_are_computed_again(
    embedder: Embedder, computed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(*MOMENTS["words"])
        with pytest.raises(Killed):
            indexed(embedder, tmp_path)
    block = next((tmp_path / "index").rglob("*.npz"))
    block.write_bytes(block.read_bytes()[:-10])
    computed.clear()
    indexed(embedder, tmp_path)
    assert len(computed) == 1


def test_only_files_of_an_index_are_removed(embedder: Embedder, tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "note.txt").write_text("mine")
    with pytest.raises(UnmaskError, match="files that do not belong to an index"):
        indexed(embedder, tmp_path)
    (tmp_path / "index" / "note.txt").unlink()
    indexed(embedder, tmp_path)
    notes = [tmp_path / "index" / name for name in ("data-2024/note.txt", "data-notes/note.txt", "data-1.txt")]
    for note in notes:
        note.parent.mkdir(exist_ok=True)
        note.write_text("mine")
    indexed(embedder, tmp_path, CHANGED)
    assert all(note.read_text() == "mine" for note in notes)
    record = read_index(tmp_path / "index").model_copy(update={"data": "data-1/../../elsewhere"})
    record.write(tmp_path / "index" / "index.json")
    for use in (lambda: opened(embedder, tmp_path), lambda: indexed(embedder, tmp_path, ROWS)):
        with pytest.raises(UnmaskError, match=r"index\.json' is not what this version of unmask wrote: data"):
            use()


def test_an_approximate_index_reports_its_recall(embedder: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"_id": str(n), "text": f"text {n} of {n % 7}"} for n in range(300)]
    indexed(embedder, tmp_path, rows[:-1])
    assert opened(embedder, tmp_path).record.recall is None
    monkeypatch.setattr(building, "EXACT_UP_TO", 299)
    done = indexed(embedder, tmp_path, rows)
    assert done.recall is not None and 0.6 < done.recall <= 1
    monkeypatch.undo()
    assert indexed(embedder, tmp_path, rows[:10]).recall, "an approximate index stays one"
    index = opened(embedder, tmp_path)
    assert {hit.id for hit in index.search("text 5", 5)} & {hit.id for hit in index.search("text 5", 5, exact=True)}


def test_hostile_documents_are_stored_as_they_are(embedder: Embedder, tmp_path: Path) -> None:
    texts = ["[bold]x[/bold]", "'; DROP TABLE x; --", "nul\0 \x1b[31m", "‮abc", "", "   ", "word " * 200_000]
    rows = [{"_id": f"{text[:40]}\n{n}", "title": text[:40], "text": text, "c'\"": text[:40]} for n, text in enumerate(texts)]
    indexed(embedder, tmp_path, rows)
    index = opened(embedder, tmp_path)
    assert index._table.to_arrow()["_text"].to_pylist() == texts
    hits = index.search("DROP TABLE", 10, where="`c'\"` = '''; DROP TABLE x; --'")
    assert [(hit.id, hit.text) for hit in hits] == [("'; DROP TABLE x; --\n1", texts[1])]
    assert all(len(hit.snippet) <= 160 for hit in index.search("x", 10))
