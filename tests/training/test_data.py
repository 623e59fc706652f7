"""Training data: what is read, what is left out and counted, and what stops a run before it starts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from unmask.errors import UnmaskError
from unmask.training.data import PARTNERS, DataSet, DataSource, read_all_rows, read_pairs, read_sentences

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write rows as a jsonl file of tmp_path, and name it."""

    def make(*rows: dict[str, Any], name: str = "rows.jsonl") -> str:
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return name

    return make


@pytest.fixture
def pairs(tmp_path: Path) -> Callable[..., DataSet]:
    return lambda path, seed=0, **options: read_pairs("set", DataSource(path=path, **options), tmp_path, seed)


@pytest.fixture
def sentences(tmp_path: Path) -> Callable[..., DataSet]:
    return lambda path, seed=0, **options: read_sentences("set", DataSource(path=path, **options), tmp_path, seed)


def texts(found: DataSet) -> list[tuple[str, ...]]:
    return [example.texts for example in found.examples]


def test_pairs_are_known_by_their_columns(write: Write, pairs: Callable[..., DataSet]) -> None:
    for anchor, positive in [(anchor, one) for anchor, partners in PARTNERS.items() for one in partners]:
        found = pairs(write({"id": 7, positive: "that", anchor: "this"}, {positive: "d", anchor: "c"}))
        assert (found.columns, texts(found)) == (("anchor", "positive"), [("this", "that"), ("c", "d")])
        assert [example.row for example in found.examples] == [1, 2]


def test_negatives_are_one_column_or_numbered_ones_in_their_order(write: Write, pairs: Callable[..., DataSet]) -> None:
    triples = pairs(write({"negative": "n", "anchor": "a", "positive": "p"}))
    assert (triples.columns, texts(triples)) == (("anchor", "positive", "negative"), [("a", "p", "n")])
    numbered = {f"negative_{number}": f"n{number}" for number in (10, 2, 1)}
    many = write({"anchor": "a", "positive": "p", **numbered})
    assert texts(pairs(many)) == [("a", "p", "n1", "n2", "n10")]
    assert pairs(many).columns == ("anchor", "positive", "negative_1", "negative_2", "negative_3")
    assert texts(pairs(many, negatives=2)) == [("a", "p", "n1", "n2")]
    assert pairs(many, negatives=0).columns == ("anchor", "positive")


def test_a_list_of_positives_gives_an_example_each_with_negatives_drawn_by_the_seed(
    write: Write, pairs: Callable[..., DataSet]
) -> None:
    pool = [f"n{number}" for number in range(20)]
    rows = [
        {"query": "q", "positive": ["p1", "p2"], "negative": pool},
        {"query": "r", "positive": [], "negative": pool},
        {"query": "s", "positive": ["p3"], "negative": pool[:2]},
    ]
    path = write(*rows)
    found = pairs(path, negatives=3)
    assert [(example.row, *example.texts[:2]) for example in found.examples] == [(1, "q", "p1"), (1, "q", "p2")]
    assert all(len(set(example.texts[2:])) == 3 and set(example.texts[2:]) <= set(pool) for example in found.examples)
    assert found.skipped == {"no positive": 1, "too few negatives": 1}
    assert found == pairs(path, negatives=3) and found.examples != pairs(path, negatives=3, seed=1).examples
    assert len(pairs(path).columns) == 3, "one of a list, unless more are asked for"


def test_columns_are_renamed_and_the_new_names_win(write: Write, pairs: Callable[..., DataSet]) -> None:
    path = write({"question": "q", "context": "c", "answer": "a", "wrong": "w"})
    assert texts(pairs(path)) == [("q", "c")]
    assert texts(pairs(path, columns={"positive": "answer"})) == [("q", "a")]
    assert texts(pairs(path, columns={"anchor": "answer", "positive": "question", "negative": "wrong"})) == [("a", "q", "w")]
    with pytest.raises(
        UnmaskError, match=r"rows.jsonl, line 1: column 'no' is missing; there is question, context, answer, wrong"
    ):
        pairs(path, columns={"positive": "no"})
    with pytest.raises(ValidationError, match="'labels' is none of text, label, answer, anchor"):
        DataSource(path=path, columns={"labels": "wrong"})


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"anchor": "a", "positive": "p"}, r"rows.jsonl, line 2: column 'negative' \(str or list\) is missing"),
        ({"anchor": "a", "positive": [4], "negative": "n"}, "line 2, column 'positive': expected texts, found int"),
        ({"anchor": " ", "positive": "p", "negative": "n"}, "line 2, column 'anchor' is empty"),
    ],
)
def test_a_wrong_row_is_refused_by_its_line(
    write: Write, pairs: Callable[..., DataSet], row: dict[str, Any], reason: str
) -> None:
    path = write({"anchor": "x", "positive": "y", "negative": "z"}, row)
    with pytest.raises(UnmaskError, match=reason):
        pairs(path)


def test_pairs_that_teach_nothing_are_left_out_and_counted(write: Write, pairs: Callable[..., DataSet]) -> None:
    rows = [{"anchor": "a", "positive": "b"}, {"anchor": "a", "positive": " a"}, {"anchor": "a", "positive": "b"}]
    found = pairs(write(*rows))
    assert (texts(found), found.skipped) == ([("a", "b")], {"anchor equal to its positive": 1, "repeated": 1})
    with pytest.raises(UnmaskError, match=r"data set 'set': all rows of .* were left out: 1 anchor equal to its positive"):
        pairs(write(rows[1]))
    with pytest.raises(UnmaskError, match="holds no row"):
        pairs(write())


def test_positives_in_rows_that_a_limit_leaves_out_are_known(write: Write, pairs: Callable[..., DataSet]) -> None:
    rows = [{"anchor": "q", "positive": ["a", "b"]}, {"anchor": "Q!", "positive": "C"}, {"anchor": "r", "positive": "a"}]
    for limit in (None, 1):
        assert pairs(write(*rows), limit=limit).positives == {"q": {"a", "b", "c"}}
    assert pairs(write(rows[2])).positives == {}


def test_where_keeps_the_rows_with_a_value(write: Write, pairs: Callable[..., DataSet], tmp_path: Path) -> None:
    labels = [0, 1, True, "1"]
    path = write(*({"anchor": f"a{place}", "positive": "p", "label": label} for place, label in enumerate(labels)))
    assert [one[0] for one in texts(pairs(path, where={"label": 1}))] == ["a1", "a3"], "1 is not true; files of text say '1'"
    assert [one[0] for one in texts(pairs(path, where={"label": True}))] == ["a2"]
    with pytest.raises(UnmaskError, match="no row is left with label = 2; that column holds '1', 0, 1, True"):
        pairs(path, where={"label": 2})
    with pytest.raises(UnmaskError, match="line 1: column 'kind' is missing"):
        pairs(path, where={"kind": 2})
    (tmp_path / "rows.csv").write_text("sentence1,sentence2,label\na,b,0\nc,d,1\n")
    assert texts(pairs("rows.csv", where={"label": 1})) == [("c", "d")]


def test_sentences_are_the_text_column_or_every_text_of_the_pairs_once(
    write: Write, sentences: Callable[..., DataSet], tmp_path: Path
) -> None:
    found = sentences(write({"text": " a "}, {"text": ""}, {"text": "a"}, {"text": "b"}))
    assert (found.columns, texts(found), found.skipped) == (("text",), [("a",), ("b",)], {"empty": 1, "repeated": 1})
    assert [example.row for example in found.examples] == [1, 4]
    lists = {"query": "q", "positive": ["p"], "negative": ["n", "q"]}
    assert texts(sentences(write(lists))) == [("q",), ("p",), ("n",)]
    (tmp_path / "lines.txt").write_text(" one\n\ntwo\n")
    assert texts(sentences("lines.txt")) == [("one",), ("two",)]
    named = write({"text": "t", "body": "b", "head": "h"})
    assert texts(sentences(named, columns={"text": "body"})) == [("b",)]
    assert texts(sentences(named, columns={"anchor": "head", "positive": "body"})) == [("h",), ("b",)]
    with pytest.raises(UnmaskError, match=r"line 2: column 'text' \(str or list\) is missing"):
        sentences(write({"text": "a"}, {"body": "b"}))


def test_a_limit_is_a_sample_by_the_seed_in_the_order_of_the_file(write: Write, sentences: Callable[..., DataSet]) -> None:
    path = write(*({"text": f"t{number}"} for number in range(50)))
    found = sentences(path, limit=10)
    rows = [example.row for example in found.examples]
    assert len(rows) == 10 and rows == sorted(rows) and rows != list(range(1, 11))
    assert found == sentences(path, limit=10) and rows != [one.row for one in sentences(path, limit=10, seed=1).examples]
    assert len(sentences(path, limit=99).examples) == 50


def test_the_revision_is_that_of_the_texts_that_are_used(write: Write, pairs: Callable[..., DataSet]) -> None:
    one = pairs(write({"anchor": "a", "positive": "b", "id": 1}, {"anchor": "c", "positive": "d"})).revision
    assert len(one) == 16
    assert one == pairs(write({"query": "a", "document": "b"}, {"query": "c", "document": "d"}, name="other.jsonl")).revision
    assert one != pairs(write({"anchor": "a", "positive": "b"}, {"anchor": "c", "positive": "e"})).revision
    assert one != pairs(write({"anchor": "a", "positive": "b"})).revision


def test_folders_join_queries_with_their_documents(
    write: Write, pairs: Callable[..., DataSet], sentences: Callable[..., DataSet], tmp_path: Path
) -> None:
    write({"_id": "d1", "title": "T", "text": "one"}, {"_id": 2, "text": "two"}, name="beir/corpus.jsonl")
    write({"_id": "q", "text": "ask", "split": "train"}, {"_id": "r", "text": "beg", "split": "x"}, name="beir/queries.jsonl")
    qrels = tmp_path / "beir/qrels_train.tsv"
    qrels.write_text("query-id\tcorpus-id\tscore\nq\td1\t1\nr\td1\t0\nr\t2\t2\n")
    found = pairs("beir")
    assert [(one.row, one.texts) for one in found.examples] == [(2, ("ask", "T one")), (4, ("beg", "two"))]
    assert texts(pairs("beir", where={"split": "train"})) == [("ask", "T one")]
    assert texts(sentences("beir")) == [("ask",), ("T one",), ("beg",), ("two",)]
    with pytest.raises(UnmaskError, match=r"no file '.*qrels_dev.tsv'"):
        pairs("beir", split="dev")
    qrels.write_text("query-id\tcorpus-id\tscore\nq\td9\t1\n")
    with pytest.raises(UnmaskError, match=r"qrels_train.tsv, line 2, column 'corpus-id': nothing has the id 'd9'"):
        pairs("beir")
    write({"_id": "0", "text": "passage"}, name="squad/passages.jsonl")
    write({"query": "ask", "passage_id": "0"}, name="squad/queries.jsonl")
    assert texts(pairs("squad")) == [("ask", "passage")]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnmaskError, match=r"is a folder without corpus.jsonl and queries.jsonl or passages.jsonl"):
        pairs("empty")


def test_the_hub_is_asked_for_repo_config_and_split(pairs: Callable[..., DataSet], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def load_dataset(repo: str, config: str | None, split: str) -> list[dict[str, str]]:
        asked.append((repo, config, split))
        if repo == "me/none":
            raise ConnectionError("no network\ndetails")
        return [{"anchor": "a", "positive": "b"}]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    assert texts(pairs("hub:me/set:conf", split="dev")) == [("a", "b")] and texts(pairs("hub:me/set")) == [("a", "b")]
    assert asked == [("me/set", "conf", "dev"), ("me/set", None, "train")]
    with pytest.raises(UnmaskError, match=r"'hub:me/none', split 'train' cannot be loaded: no network details$"):
        pairs("hub:me/none")


def test_a_negative_that_is_the_positive_but_for_its_spelling_is_none(write: Write, pairs: Callable[..., DataSet]) -> None:
    found = pairs(
        write(
            {"anchor": "What is it?", "positive": "The cat sat.", "negative": "the cat sat"},
            {"anchor": "Who?", "positive": "p", "negative": "who"},
            {"anchor": "a", "positive": "p", "negative": "n"},
        )
    )
    assert texts(found) == [("a", "p", "n")]
    assert found.skipped == {"positive equal to a negative": 1, "anchor equal to a negative": 1}
    rows = [
        {"anchor": "q", "positive": "a", "negative": "B!"},
        {"anchor": "Q", "positive": "b", "negative": "n"},
        {"anchor": "r", "positive": "c", "negative": "a"},
    ]
    assert texts(pairs(write(*rows))) == [("Q", "b", "n"), ("r", "c", "a")], "nor a positive that another row names"
    assert len(pairs(write(*rows), negatives=0).examples) == 3
    listed = write({"anchor": "a", "positive": "p", "negatives": ["x", "x", "X!", "y"]}, name="listed.jsonl")
    assert {text.casefold().strip("!") for text in texts(pairs(listed, negatives=2))[0][2:]} == {"x", "y"}


def test_a_column_that_is_named_and_not_read_is_refused(write: Write, pairs: Callable[..., DataSet]) -> None:
    path = write({"q": "a", "p": "b", "hard": "c"})
    with pytest.raises(UnmaskError, match=r"columns.negatives would change nothing"):
        pairs(path, columns={"anchor": "q", "positive": "p", "negatives": "hard"})


A, NEGATIVE = {"anchor": "a", "positive": "p"}, {"anchor": "b", "positive": "q", "negative": "n"}


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([A, NEGATIVE], "line 1: column 'negative' .* is missing"),
        ([A | {"negative_1": "n"}, A | {"negative_1": "m", "negative_2": "o"}], "line 1: column 'negative_2' .* is missing"),
        ([A | {"negative_1": ["n", "m"]}], "line 1, column 'negative_1': expected one text, found a list of 2"),
    ],
)
def test_negatives_that_the_first_row_lacks_are_not_dropped(
    write: Write, pairs: Callable[..., DataSet], tmp_path: Path, rows: list[dict[str, Any]], reason: str
) -> None:
    path = write(*rows)
    with pytest.raises(UnmaskError, match=reason):
        pairs(path)
    assert texts(pairs(path, negatives=0)) == list(dict.fromkeys((row["anchor"], row["positive"]) for row in rows))
    searched = {text for row in texts(read_all_rows("set", DataSource(path=path), tmp_path)) for text in row}
    assert {"n", *rows[-1].get("negative_2", "")} <= searched


def test_a_split_of_a_source_without_splits_is_refused(write: Write, pairs: Callable[..., DataSet]) -> None:
    write({"_id": "0", "text": "passage"}, name="squad/passages.jsonl")
    write({"query": "ask", "passage_id": "0", "split": "dev"}, name="squad/queries.jsonl")
    for path in ("squad", write(A), "starter:pairs"):
        with pytest.raises(UnmaskError, match=rf"'{path}' has no splits, so split = \"train\" would change nothing"):
            pairs(path, split="train")
        assert pairs(path).examples
