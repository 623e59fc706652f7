"""Building: an updated index is the one that is built anew, only new texts are embedded, and no kill harms it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.search.made import ROWS, contents, indexed, job, opened
from tests.tiny import write_rows
from unmask.embedder import Embedder
from unmask.encoding.heads import build_head
from unmask.encoding.vector_store import StoredRows
from unmask.errors import UnmaskError
from unmask.io.files import only_run_in, remove
from unmask.io.seals import Damaged
from unmask.search import build as building
from unmask.search import job as jobs
from unmask.search import keywords
from unmask.search.build import build
from unmask.search.documents import Corpus, joined
from unmask.search.embedding import difference, document_vectors, note
from unmask.search.index import Index
from unmask.search.job import Job
from unmask.search.keywords import Keywords
from unmask.search.record import IndexRecord
from unmask.search.stores import STORES

CHANGED = [
    {**ROWS[3], "year": 1999},
    {**ROWS[0], "text": "A man plays the drums."},
    {"_id": "d5", "title": "", "text": ROWS[1]["text"], "year": 2023, "tag": "c"},
    ROWS[2],
    {"_id": "d6", "title": "New", "text": "Rain.", "year": 2024, "tag": "c"},
]


@pytest.fixture(scope="module")
def embedder(pico: Callable[..., Embedder]) -> Embedder:
    return pico()


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The documents that are embedded, as they come."""
    texts: list[str] = []

    def counting(embedder: Embedder, given: Sequence[str], *options: Any) -> Any:
        texts.extend(given)
        return document_vectors(embedder, given, *options)

    monkeypatch.setattr("unmask.search.build.document_vectors", counting)
    return texts


def told(done: building.Done) -> tuple[int, ...]:
    return done.documents, done.added, done.changed, done.removed, done.embedded


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name not in (".lock", ".unmask-made"))


@pytest.mark.parametrize("store", STORES)
def test_an_index_holds_the_documents_and_their_vectors(store: str, embedder: Embedder, tmp_path: Path) -> None:
    assert told(indexed(embedder, tmp_path, store=store)) == (4, 4, 0, 0, 4)
    index = opened(embedder, tmp_path)
    expected = embedder.encode([joined(row["title"], row["text"]) for row in ROWS], normalize=True)
    for row, kept, vector in zip(ROWS, contents(index), expected, strict=True):
        assert (kept["id"], kept["title"], kept["text"]) == (row["_id"], row["title"], row["text"])
        assert (kept["c0"], kept["c1"]) == (row["year"], row["tag"])
        assert kept["vector"] == vector.tobytes()
    assert left_in(tmp_path / "index") == ["data-1", "index.json"]


@pytest.mark.parametrize("store", STORES)
def test_an_updated_index_is_the_one_that_is_built_anew(
    store: str, embedder: Embedder, computed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "_ROWS", 1)  # every text is computed alone, so that vectors are equal to the last bit
    indexed(embedder, tmp_path, store=store)
    computed.clear()
    assert told(indexed(embedder, tmp_path, CHANGED, store=store)) == (5, 2, 2, 1, 2)
    assert computed == ["Guitars A man plays the drums.", "New Rain."]  # d5 has the text that d2 had
    (tmp_path / "anew").mkdir()
    indexed(embedder, tmp_path / "anew", CHANGED, store=store)
    assert contents(opened(embedder, tmp_path)) == contents(opened(embedder, tmp_path / "anew"))
    assert left_in(tmp_path / "index") == ["data-2", "index.json"]
    found = [opened(embedder, place).search("market", mode="bm25") for place in (tmp_path, tmp_path / "anew")]
    assert found[0] == found[1] and len(found[0]) == 2


def test_nothing_is_written_when_nothing_changed(embedder: Embedder, tmp_path: Path) -> None:
    indexed(embedder, tmp_path)
    record = (tmp_path / "index" / "index.json").read_bytes()
    assert told(indexed(embedder, tmp_path)) == (4, 0, 0, 0, 0)
    assert (tmp_path / "index" / "index.json").read_bytes() == record
    assert left_in(tmp_path / "index") == ["data-1", "index.json"]


def test_an_update_gives_an_index_of_an_earlier_version_the_words_of_this_one(
    embedder: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"_id": "d1", "text": "我住在北京市"}]
    with monkeypatch.context() as patch:
        patch.setattr(keywords, "_words", lambda text: iter(text.split()))
        patch.setattr(building, "WORDS", 1)
        indexed(embedder, tmp_path, rows)
    assert opened(embedder, tmp_path).search("北京", mode="bm25") == []
    assert told(indexed(embedder, tmp_path, rows)) == (1, 0, 0, 0, 0)
    assert [hit.id for hit in opened(embedder, tmp_path).search("北京", mode="bm25")] == ["d1"]
    assert left_in(tmp_path / "index") == ["data-2", "index.json"]
    indexed(embedder, tmp_path, rows)
    assert left_in(tmp_path / "index") == ["data-2", "index.json"], "once is enough"


def test_another_order_is_a_change_without_embedding(embedder: Embedder, tmp_path: Path) -> None:
    indexed(embedder, tmp_path)
    assert told(indexed(embedder, tmp_path, ROWS[::-1])) == (4, 0, 0, 0, 0)
    assert [row["id"] for row in contents(opened(embedder, tmp_path))] == ["d4", "d3", "d2", "d1"]


def test_a_column_without_a_value_in_the_new_files_stays_what_it_was(embedder: Embedder, tmp_path: Path) -> None:
    indexed(embedder, tmp_path)
    before = opened(embedder, tmp_path).record.types
    new = [{"_id": "d9", "title": "", "text": "New.", "year": None, "tag": None, "other": None}]
    indexed(embedder, tmp_path, new, keep_missing=True)
    index = opened(embedder, tmp_path)
    assert index.record.types == before | {"other": "text"} and before["year"] == "integer"
    assert {hit.id for hit in index.search("x", 10, where="year >= 2020")} == {
        row["_id"] for row in ROWS if (row["year"] or 0) >= 2020
    }


def test_no_number_is_rounded_beside_documents_that_are_kept(embedder: Embedder, tmp_path: Path) -> None:
    large, decimal = ([{"_id": name, "text": name, "n": value}] for name, value in (("a", 2**53 + 1), ("b", 1.5)))
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
    indexed(embedder, tmp_path / "one", decimal)
    indexed(embedder, tmp_path / "one", large, keep_missing=True)
    assert {row["id"]: row["c0"] for row in contents(opened(embedder, tmp_path / "one"))} == {"a": str(2**53 + 1), "b": "1.5"}
    indexed(embedder, tmp_path / "other", large)
    with pytest.raises(UnmaskError, match=f"a document that is kept has {2**53 + 1} there, which decimals would round"):
        indexed(embedder, tmp_path / "other", decimal, keep_missing=True)
    assert [row["c0"] for row in contents(opened(embedder, tmp_path / "other"))] == [2**53 + 1]


def test_documents_of_other_files_are_kept_if_asked(embedder: Embedder, tmp_path: Path) -> None:
    indexed(embedder, tmp_path)
    new = [{"_id": "d2", "title": "", "text": "Changed.", "year": "n/a", "new": 1.5}]
    assert told(indexed(embedder, tmp_path, new, keep_missing=True)) == (4, 0, 1, 0, 1)
    index = opened(embedder, tmp_path)
    assert index.record.types == {"year": "text", "new": "number", "tag": "text"}
    found = {hit.id: hit.columns for hit in index.search("x", 10)}
    assert found["d2"] == {"year": "n/a", "new": 1.5, "tag": None}
    assert found["d1"] == {"year": "2019", "new": None, "tag": "a"}
    assert told(indexed(embedder, tmp_path, new, keep_missing=True)) == (4, 0, 0, 0, 0)
    assert told(indexed(embedder, tmp_path, new)) == (1, 0, 0, 3, 0)


def test_equal_texts_are_embedded_once(embedder: Embedder, computed: list[str], tmp_path: Path) -> None:
    assert told(indexed(embedder, tmp_path, [{"_id": str(n), "text": "same"} for n in range(5)])) == (5, 5, 0, 0, 1)
    assert computed == ["same"]
    assert len({row["vector"] for row in contents(opened(embedder, tmp_path))}) == 1


def test_blocks_do_not_change_the_index(embedder: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "small").mkdir()
    indexed(embedder, tmp_path, store="usearch")
    monkeypatch.setattr(building, "_ROWS", 2)
    indexed(embedder, tmp_path / "small", store="usearch")
    whole, parts = contents(opened(embedder, tmp_path)), contents(opened(embedder, tmp_path / "small"))
    for one, other in zip(whole, parts, strict=True):
        near = np.frombuffer(one.pop("vector"), np.float32), np.frombuffer(other.pop("vector"), np.float32)
        assert one == other and np.allclose(*near, atol=1e-6)


class Killed(BaseException):
    """Stands for a signal."""


@pytest.mark.sample(3)
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("at", ["embedding", "writing", "words", "record", "old data"])
def test_a_kill_leaves_the_old_index_or_the_new_one(
    at: str, store: str, embedder: Embedder, computed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "_ROWS", 1)  # every text is computed alone, so that vectors are equal to the last bit
    indexed(embedder, tmp_path, store=store)
    before = contents(opened(embedder, tmp_path))
    with monkeypatch.context() as patch:
        kill(patch, at)
        with pytest.raises(Killed):
            indexed(embedder, tmp_path, CHANGED, store=store)
    if at != "old data":
        assert contents(opened(embedder, tmp_path)) == before
    computed_before = len(computed)
    done = indexed(embedder, tmp_path, CHANGED, store=store)
    assert len(computed) - computed_before == (1 if at == "embedding" else 0), "vectors of the killed run are used"
    assert told(done)[:4] == ((5, 2, 2, 1) if at != "old data" else (5, 0, 0, 0))
    (tmp_path / "anew").mkdir()
    indexed(embedder, tmp_path / "anew", CHANGED, store=store)
    assert contents(opened(embedder, tmp_path)) == contents(opened(embedder, tmp_path / "anew"))
    assert left_in(tmp_path / "index") == ["data-2", "index.json"]


def kill(patch: pytest.MonkeyPatch, at: str) -> None:
    """Let the next run be killed at a moment."""

    def die(*_: Any, **__: Any) -> None:
        raise Killed

    if at == "embedding":
        add = StoredRows.add

        def once(self: Any, *given: Any) -> None:
            add(self, *given)
            raise Killed

        patch.setattr(StoredRows, "add", once)
    elif at == "writing":
        patch.setattr(building, "_rows_of", die)
    elif at == "words":
        patch.setattr(Keywords, "save", die)
    elif at == "record":
        patch.setattr(IndexRecord, "write", die)
    else:
        patch.setattr(building, "remove", lambda path: die() if path.name == "data-1" else remove(path))


def test_a_second_run_is_refused(embedder: Embedder, tmp_path: Path) -> None:
    planned = job(tmp_path).check()
    with only_run_in(tmp_path / "index"), pytest.raises(UnmaskError, match="Another run is writing"):
        build(embedder, planned)


def test_another_embedder_is_refused_by_name(embedder: Embedder, pico: Callable[..., Embedder], tmp_path: Path) -> None:
    indexed(embedder, tmp_path)
    for other, words in (
        (pico("causal/plain/last"), "the design: 'causal/plain/mean' then, 'causal/plain/last' now"),
        (pico(max_length=16), "the most tokens of a text: 512 then, 16 now"),
        (pico(family="olmoe"), "the weights of the model"),
    ):
        with pytest.raises(UnmaskError, match=words):
            indexed(other, tmp_path, CHANGED)
    assert len(opened(embedder, tmp_path)) == 4


def test_other_tokens_over_the_same_weights_are_refused(embedder: Embedder, tmp_path: Path) -> None:
    from tokenizers import normalizers

    indexed(embedder, tmp_path)
    tokenizer = deepcopy(embedder.tokenizer)
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    other = Embedder(replace(embedder.encoder, tokenizer=tokenizer, _tokenizers={}), embedder.design)
    with pytest.raises(UnmaskError, match="what differs is the tokens of a text"):
        opened(other, tmp_path).search("x")


def test_another_head_on_the_same_weights_is_refused(pico: Callable[..., Embedder], tmp_path: Path) -> None:
    first = pico("bidirectional/plain/cross-attention", head=build_head("cross-attention", 64, 2))
    indexed(first, tmp_path)
    torch.manual_seed(1)
    other = build_head("cross-attention", 64, 2)
    changed = Embedder.from_model(first.backbone.model, first.tokenizer, first.design, head=other, source=first.source)
    with pytest.raises(UnmaskError, match="what differs is the trained head"):
        opened(changed, tmp_path).search("x")


def test_what_an_older_index_does_not_say_of_its_embedder_is_not_asked(embedder: Embedder) -> None:
    now = note(embedder, "pico")
    assert now.tokens is not None
    older = now.model_copy(update={"tokens": None})
    assert difference(older, now) is None and difference(now, now.model_copy(update={"tokens": "other"})) is not None


def test_instructions_travel_along(pico: Callable[..., Embedder], tmp_path: Path) -> None:
    design = "causal/instruction/last"
    asked = {"query": "Find an answer", "document": "A document"}
    told_what = pico(design, instructions=asked)
    indexed(told_what, tmp_path)
    index = opened(told_what, tmp_path)
    assert index.record.embedder.instructions == asked
    (kept, *_) = contents(index)
    text = joined(ROWS[0]["title"], ROWS[0]["text"])
    assert kept["vector"] == told_what.encode([text], instruction="A document", normalize=True)[0].tobytes()
    expected = told_what.encode(["x"], instruction="Find an answer", normalize=True)[0] @ np.frombuffer(
        kept["vector"], np.float32
    )
    assert {hit.id: hit.score for hit in index.search("x")}["d1"] == pytest.approx(float(expected), abs=1e-6)
    with pytest.raises(UnmaskError, match="the instructions"):
        indexed(pico(design), tmp_path, CHANGED)


def test_a_file_that_changes_while_it_is_read_is_named(embedder: Embedder, tmp_path: Path) -> None:
    planned = job(tmp_path).check()
    write_rows(tmp_path / "corpus.jsonl", CHANGED)
    with pytest.raises(UnmaskError, match="was changed while it was read"):
        build(embedder, planned)
    assert left_in(tmp_path / "index") == [".unmask-vectors"]


def test_damage_to_unfinished_vectors_is_computed_again(
    embedder: Embedder, computed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        kill(patch, "words")
        with pytest.raises(Killed):
            indexed(embedder, tmp_path)
    (block,) = (tmp_path / "index").rglob("*.npz")
    block.write_bytes(block.read_bytes()[:-10])
    computed.clear()
    indexed(embedder, tmp_path)
    assert len(computed) == 4


@pytest.mark.sample(2)
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("precision", ["float32", "float16", "binary"])
def test_an_approximate_index_tells_its_recall(store: str, precision: Any, embedder: Embedder, tmp_path: Path) -> None:
    rows = [{"_id": str(n), "text": f"text {n} of {n % 7}"} for n in range(300)]
    done = indexed(embedder, tmp_path, rows, store=store, precision=precision, approximate=True)
    assert done.recall is not None and 0.6 < done.recall <= 1
    index = opened(embedder, tmp_path)
    assert index.record.recall == done.recall
    assert {hit.id for hit in index.search("text 5", 5)} & {hit.id for hit in index.search("text 5", 5, exact=True)}
    assert told(indexed(embedder, tmp_path, rows)) == (300, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("documents", "said"),
    [
        (1, None),
        (2, "finds 100.0% of the 1 nearest document (2 documents as queries)."),
        (4, "finds 100.0% of the 3 nearest documents (4 documents as queries)."),
        (120, " of the 10 nearest documents (100 documents as queries)."),
    ],
)
def test_a_recall_is_told_with_its_numbers(documents: int, said: str | None, embedder: Embedder, tmp_path: Path) -> None:
    rows = [{"_id": str(n), "text": f"text {n} of {n % 7}"} for n in range(documents)]
    done = indexed(embedder, tmp_path, rows, store="usearch", approximate=True)
    assert (done.recall is None) == (said is None)
    assert done.recall_told is None if said is None else said in (done.recall_told or "")


def test_an_index_may_become_approximate(embedder: Embedder, tmp_path: Path) -> None:
    indexed(embedder, tmp_path)
    assert told(indexed(embedder, tmp_path, approximate=True)) == (4, 0, 0, 0, 0)
    assert opened(embedder, tmp_path).record.approximate


def test_a_fit_travels_along(tmp_path: Path, pico_folder: Callable[[str], Path]) -> None:
    model = str(pico_folder("llama"))
    embedder = Embedder.from_pretrained(model, "causal/plain/mean/zscore", dtype="float32", device="cpu")
    embedder.fit([f"sentence {n}" for n in range(40)])
    indexed(embedder, tmp_path, model=model)
    expected = opened(embedder, tmp_path).search("guitar")
    alone = Index.open(tmp_path / "index", device="cpu").search("guitar")
    assert [(hit.id, hit.score) for hit in alone] == [(hit.id, hit.score) for hit in expected]
    again = Embedder.from_pretrained(model, "causal/plain/mean/zscore", dtype="float32", device="cpu")
    assert told(indexed(again, tmp_path, CHANGED, model=model))[0] == 5, "an update takes the fit of the index"


def test_hostile_documents_are_kept_as_they_are(embedder: Embedder, tmp_path: Path) -> None:
    texts = [
        "[bold]x[/bold]",
        "<script>alert(1)</script>",
        "'; DROP TABLE x; --",
        "nul\0 \x1b[31m",
        "‮abc",
        "",
        "   ",
        "word " * 200_000,
    ]
    rows = [{"_id": f"{text[:40]}\n{n}", "title": text[:40], "text": text, "c'\0\"": text[:40]} for n, text in enumerate(texts)]
    for store in STORES:
        (tmp_path / store).mkdir()
        indexed(embedder, tmp_path / store, rows, store=store)
        index = opened(embedder, tmp_path / store)
        assert [row["text"] for row in contents(index)] == texts
        hits = index.search("DROP TABLE", 10, where="\"c'\0\"\"\" = '''; DROP TABLE x; --'")
        assert [(hit.id, hit.text) for hit in hits] == [("'; DROP TABLE x; --\n2", texts[2])]
        assert all(len(hit.snippet) <= 160 for hit in index.search("x", 10))


def test_the_record_says_how_the_index_was_made(embedder: Embedder, tmp_path: Path) -> None:
    indexed(embedder, tmp_path, precision="int8", store="usearch")
    record = json.loads((tmp_path / "index" / "index.json").read_text())
    assert (record["precision"], record["store"], record["documents"], record["dim"]) == ("int8", "usearch", 4, 64)
    assert record["embedder"]["design"] == "causal/plain/mean" and record["versions"]["usearch"]


def test_a_corpus_may_be_many_files(embedder: Embedder, tmp_path: Path) -> None:
    for place, row in enumerate(ROWS):
        write_rows(tmp_path / f"{place}.jsonl", [row])
    done = build(embedder, Job(Corpus.found([tmp_path], tmp_path / "index"), tmp_path / "index", "in memory").check())
    assert done.documents == 4
    assert (
        build(embedder, Job(Corpus.found([tmp_path], tmp_path / "index"), tmp_path / "index", "in memory").check()).added == 0
    )


def test_an_update_that_was_planned_before_another_one_is_refused(embedder: Embedder, tmp_path: Path) -> None:
    indexed(embedder, tmp_path)
    late = job(tmp_path, CHANGED).check()
    build(embedder, job(tmp_path, CHANGED[:4]).check())
    newest = contents(opened(embedder, tmp_path))
    job(tmp_path, CHANGED)
    with pytest.raises(UnmaskError, match="has changed since this run began"):
        build(embedder, late)
    assert contents(opened(embedder, tmp_path)) == newest
    assert told(indexed(embedder, tmp_path, CHANGED))[0] == 5


def test_a_first_build_that_was_planned_before_another_one_is_refused(embedder: Embedder, tmp_path: Path) -> None:
    late = job(tmp_path, CHANGED).check()
    indexed(embedder, tmp_path)
    newest = contents(opened(embedder, tmp_path))
    with pytest.raises(UnmaskError, match="has changed since this run began"):
        build(embedder, late)
    assert contents(opened(embedder, tmp_path)) == newest


def test_an_index_that_was_removed_after_planning_is_made_by_the_next_run(embedder: Embedder, tmp_path: Path) -> None:
    indexed(embedder, tmp_path)
    late = job(tmp_path, CHANGED).check()
    remove(tmp_path / "index")
    with pytest.raises(UnmaskError, match="has changed since this run began"):
        build(embedder, late)
    assert told(indexed(embedder, tmp_path, CHANGED))[0] == 5


@pytest.mark.parametrize("when", ["before planning", "after planning"])
def test_a_damaged_record_removes_nothing(when: str, embedder: Embedder, tmp_path: Path) -> None:
    indexed(embedder, tmp_path)
    record = tmp_path / "index" / "index.json"
    whole = record.read_bytes()
    planned = job(tmp_path, CHANGED).check()
    record.write_bytes(whole.replace(b'"documents": 4', b'"documents": 5'))
    with pytest.raises(Damaged, match="Make the index again in another folder"):
        build(embedder, planned if when == "after planning" else job(tmp_path, CHANGED).check())
    record.write_bytes(whole)
    assert len(opened(embedder, tmp_path)) == 4


def test_a_store_of_a_later_version_is_told(embedder: Embedder, tmp_path: Path) -> None:
    indexed(embedder, tmp_path)
    record = opened(embedder, tmp_path).record
    record.model_copy(update={"store": "tape"}).write(tmp_path / "index" / "index.json")
    with pytest.raises(UnmaskError, match=r"'.*index\.json' is not what this version of unmask wrote: .*Unknown store 'tape'"):
        opened(embedder, tmp_path)


@pytest.mark.parametrize("moment", ["_embed", "_write"])
@pytest.mark.parametrize("change", ["vanished", "doubled", "one for another"])
def test_documents_that_vanish_or_double_while_they_are_read_are_noticed(
    change: str, moment: str, embedder: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    indexed(embedder, tmp_path)
    before = contents(opened(embedder, tmp_path))
    changed = {"vanished": CHANGED[:4], "doubled": [*CHANGED, CHANGED[0]], "one for another": [*CHANGED[:4], CHANGED[0]]}
    work = getattr(building, moment)

    def after_a_change(*given: Any) -> Any:
        write_rows(tmp_path / "corpus.jsonl", changed[change])
        return work(*given)

    monkeypatch.setattr(building, moment, after_a_change)
    with pytest.raises(UnmaskError, match=r"changed while .* read"):
        indexed(embedder, tmp_path, CHANGED)
    assert contents(opened(embedder, tmp_path)) == before
    assert left_in(tmp_path / "index") == [".unmask-vectors", "data-1", "index.json"]


@pytest.mark.sample(2)
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize(
    ("given", "rows"), [(ROWS, ROWS), (CHANGED, CHANGED), (ROWS[:1], ROWS)], ids=["same rows", "other rows", "kept rows"]
)
def test_an_index_with_doubled_rows_is_put_right(
    given: list[dict[str, Any]],
    rows: list[dict[str, Any]],
    store: str,
    embedder: Embedder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(building, "_ROWS", 1)
    documents = building._documents
    with monkeypatch.context() as patch:
        patch.setattr(building, "_documents", lambda planned: (one for one in documents(planned) for _ in range(2)))
        indexed(embedder, tmp_path, store=store)
    assert len(opened(embedder, tmp_path)) == 2 * len(ROWS)
    indexed(embedder, tmp_path, given, keep_missing=rows is ROWS)
    (tmp_path / "anew").mkdir()
    indexed(embedder, tmp_path / "anew", rows, store=store)
    assert contents(opened(embedder, tmp_path)) == contents(opened(embedder, tmp_path / "anew"))


def test_another_fit_is_refused(tmp_path: Path, pico_folder: Callable[[str], Path]) -> None:
    model, texts = str(pico_folder("llama")), [f"sentence {n}" for n in range(40)]

    def fitted(texts: list[str]) -> Embedder:
        return Embedder.from_pretrained(model, "causal/plain/mean/zscore", dtype="float32", device="cpu").fit(texts)

    indexed(fitted(texts), tmp_path, model=model)
    before = contents(opened(fitted(texts), tmp_path))
    with pytest.raises(UnmaskError, match="Leave --fit-on out to update the index"):
        indexed(fitted(texts[:20]), tmp_path, CHANGED, model=model, fitted=True)
    assert contents(opened(fitted(texts), tmp_path)) == before
    assert told(indexed(fitted(texts), tmp_path, CHANGED, model=model, fitted=True))[0] == 5, "the same fit is no other fit"


def test_documents_that_are_kept_count_for_an_approximate_index(
    embedder: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "EXACT_UP_TO", len(ROWS))
    new = [{"_id": "d5", "text": "Rain."}]
    indexed(embedder, tmp_path, precision="int8", store="lance")
    with pytest.raises(UnmaskError, match="has no approximate index of int8 vectors"):
        indexed(embedder, tmp_path, new, keep_missing=True)
    (tmp_path / "float32").mkdir()
    indexed(embedder, tmp_path / "float32", store="lance")
    assert indexed(embedder, tmp_path / "float32", ROWS[:1], keep_missing=True).documents == 4
    assert not opened(embedder, tmp_path / "float32").record.approximate
    assert indexed(embedder, tmp_path / "float32", new, keep_missing=True).recall is not None
    assert opened(embedder, tmp_path / "float32").record.approximate
