"""`unmask index` and `unmask search`: what they print, and mistakes that they tell before a model is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.search.made import ROWS
from tests.tiny import write_rows
from unmask.cli import app
from unmask.embedder import Embedder
from unmask.errors import UnmaskError

CPU = ("--device", "cpu", "--dtype", "float32")
HOSTILE: list[dict[str, Any]] = [
    {"_id": "[bold]x[/bold]\n\x1b[31m" + "y" * 60, "text": "[link=file:///]songs[/link] \x1b[31m red\u202e " + "word " * 400},
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    write_rows(tmp_path / "corpus.jsonl", ROWS + HOSTILE)
    return tmp_path


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def made(*options: str) -> Result:
    return run("index", "corpus.jsonl", "-m", "pico", "-d", "mean", "-o", "index", *CPU, *options)


def found(*words: str) -> Any:
    done = run("search", "index", *words, "--device", "cpu")
    assert done.exit_code == 0, done.exception
    return done.stdout


def refused(*words: str) -> str:
    done = run(*words)
    assert isinstance(done.exception, UnmaskError), done.output
    return str(done.exception)


def test_a_model_whose_design_must_be_named_is_refused_before_the_corpus_is_read(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "tuned").mkdir()
    (here / "tuned" / "modules.json").write_text("[]")
    monkeypatch.setattr("unmask.search.job.survey", lambda _: pytest.fail("the corpus was read"))
    said = "'tuned' is a sentence-transformers model"
    assert said in refused("index", "corpus.jsonl", "-m", "tuned", "-o", "tuned-index", *CPU)
    monkeypatch.setattr("unmask.bulk.single_file.check_file", lambda _: pytest.fail("the corpus was read"))
    for output in ("vectors.parquet", "vectors"):
        assert said in refused("embed", "corpus.jsonl", "-m", "tuned", "-o", output, *CPU)


def test_an_index_is_made_updated_and_searched(here: Path) -> None:
    assert made().stdout == "index: 5 documents; 5 added, 0 changed, 0 removed, 5 texts embedded.\n"
    write_rows(here / "corpus.jsonl", ROWS[1:])
    done = json.loads(made("--json").stdout)
    assert done == {"documents": 4 - 1, "added": 0, "changed": 0, "removed": 2, "embedded": 0, "truncated": 0, "recall": None}
    hits = json.loads(found("the market", "--json", "-k", "2", "--filter", "year >= 2020"))
    assert [hit["rank"] for hit in hits] == [1, 2] and {hit["id"] for hit in hits} < {"d2", "d3", "d4"}
    assert set(hits[0]) == {"rank", "score", "id", "title", "snippet", "columns"}


def test_a_table_fits_80_columns_and_shows_text_as_text(here: Path) -> None:
    made()
    for options in ((), ("--mode", "hybrid"), ("--mode", "bm25")):
        shown = found("songs market", *options)
        assert all(len(line) <= 80 for line in shown.splitlines())
        assert "\x1b" not in shown and "\u202e" not in shown
        assert "[link" in shown and "[bold]x[/bold]" in shown


def test_json_holds_no_character_that_a_terminal_obeys(here: Path) -> None:
    text = "songs \x9b31m red \u202e \x1b[0m"
    write_rows(here / "corpus.jsonl", [{"_id": "d\x85", "title": "", "text": text, "tag": "\x9b"}])
    made()
    shown = found("songs", "--json")
    assert all(line.isprintable() for line in shown.splitlines())
    [hit] = json.loads(shown)
    assert (hit["id"], hit["snippet"], hit["columns"]) == ("d\x85", text, {"tag": "\x9b"})


def test_no_document_is_said(here: Path) -> None:
    made()
    assert found("zebra", "--mode", "bm25") == "No document was found.\n"


def test_queries_come_from_a_file(here: Path) -> None:
    made()
    (here / "queries.jsonl").write_text('{"_id": "q1", "text": "market"}\n{"_id": "q2", "text": "dogs"}\n')
    lines = [json.loads(line) for line in found("--queries", "queries.jsonl", "-k", "1", "--mode", "bm25").splitlines()]
    assert [(line["id"], line["query"], line["hits"][0]["id"]) for line in lines] == [
        ("q1", "market", "d2"),
        ("q2", "dogs", "d3"),
    ]
    (here / "queries.jsonl").write_text('{"text": "market"}\nno json\n')
    assert "line 2" in refused("search", "index", "--queries", "queries.jsonl")
    (here / "queries.jsonl").write_text("\n")
    assert refused("search", "index", "--queries", "queries.jsonl") == "'queries.jsonl' holds no query."


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("search", "nowhere", "x"), "'nowhere' is no index"),
        (("search", "docs.jsonl", "x"), "'docs.jsonl' is no index"),
        (("search", "index"), "Give one query, or a file of queries"),
        (("search", "index", "x", "--queries", "corpus.jsonl"), "Give one query, or a file of queries"),
        (("search", "index", "x", "--mode", "lexical"), "has no lexical vectors"),
        (("search", "index", "x", "--mode", "bm25", "--exact"), "--exact would change nothing"),
        (("search", "index", "x", "--filter", "yaer = 1"), "Did you mean 'year'"),
        (("index", "broken.jsonl", "-m", "pico", "-o", "new", "--lexical", "-d", "mean"), "pooling 'last', not"),
        (
            ("index", "broken.jsonl", "-m", "pico", "-o", "new", "--lexical", "-d", "causal/eol+tone/last"),
            "works with one prompt",
        ),
        (("index", "broken.jsonl", "-m", "pico", "-o", "new", "-d", "causal/eol/last/lexical"), "An index needs dense vectors"),
        (("index", "nowhere.jsonl", "-m", "pico", "-o", "new"), "nowhere.jsonl"),
        (("index", "corpus.jsonl", "-m", "pico", "-o", "new", "--store", "faiss"), "Unknown store 'faiss'"),
        (("index", "corpus.jsonl", "-m", "pico", "-o", "new", "--column", "body"), "column 'body' (str) is missing"),
        (("index", "corpus.jsonl", "-m", "pico", "-o", "new", "--title-column", "titel"), "no row has the column 'titel'"),
        (("index", "corpus.jsonl", "-m", "pico", "-o", "new", "--title-column", "text"), "both name 'text'"),
    ],
)
def test_a_mistake_is_told_before_a_model_is_loaded(
    words: tuple[str, ...], told: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made()
    (here / "broken.jsonl").write_text("no json")
    monkeypatch.setattr("unmask.embedder.Embedder.from_pretrained", None)
    assert told in refused(*words)
    assert not (here / "new").exists()


def test_words_are_searched_without_a_model(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made()
    monkeypatch.setattr("unmask.embedder.Embedder.from_pretrained", None)
    assert "d3" in found("dogs", "--mode", "bm25")


def test_instructions_and_a_fit_are_options(here: Path) -> None:
    done = run(
        "index", "corpus.jsonl", "-m", "pico", "-d", "causal/instruction/last/zscore", "-o", "index", *CPU,
        "--instruction", "A text", "--query-instruction", "A question", "--fit-on", "corpus.jsonl",
    )  # fmt: skip
    assert done.exit_code == 0, done.exception
    record = json.loads((here / "index" / "index.json").read_text())
    assert record["embedder"]["instructions"] == {"query": "A question", "document": "A text"}
    assert record["embedder"]["fit"] and json.loads(found("a song", "--json"))
    assert "nothing to fit" in refused(
        "index", "corpus.jsonl", "-m", "pico", "-d", "mean", "-o", "new", "--fit-on", "corpus.jsonl"
    )


def test_an_instruction_that_is_given_leaves_the_other_saved_one(here: Path) -> None:
    saved = Embedder.from_pretrained(
        "pico", "causal/instruction/last", instructions={"query": "q: ", "document": "d: "}, device="cpu"
    )
    saved.save_pretrained(here / "saved")
    done = run("index", "corpus.jsonl", "-m", "saved", "-o", "index", *CPU, "--query-instruction", "question: ")
    assert done.exit_code == 0, done.exception
    record = json.loads((here / "index" / "index.json").read_text())
    assert record["embedder"]["instructions"] == {"query": "question: ", "document": "d: "}


def test_another_fit_is_refused_by_the_name_of_its_option(here: Path) -> None:
    command = ("index", "corpus.jsonl", "-m", "pico", "-d", "causal/plain/last/zscore", "-o", "index", *CPU, "--fit-on")
    write_rows(here / "others.jsonl", ROWS[:2])
    assert run(*command, "corpus.jsonl").exit_code == 0
    assert "Leave --fit-on out to update the index" in refused(*command, "others.jsonl")
    assert run(*command, "corpus.jsonl").exit_code == 0, "the same command may be given again"


def test_an_index_inside_its_corpus_is_not_indexed(here: Path) -> None:
    for _ in range(2):
        done = run("index", ".", "-m", "pico", "-d", "mean", "-o", "index", "--store", "usearch", *CPU)
        assert done.exit_code == 0 and "5 documents" in done.stdout, done.exception
