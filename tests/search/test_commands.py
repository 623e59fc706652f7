"""`unmask index` and `unmask search`: what they print, and mistakes that they report before a model is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.search.cases import ROWS
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


def index(*options: str, design: str = "mean", corpus: str = "corpus.jsonl") -> str:
    done = run("index", corpus, "-m", "pico", "-d", design, "-o", "index", *CPU, *options)
    assert done.exit_code == 0, done.exception
    return done.stdout


def search(*words: str) -> str:
    done = run("search", "index", *words, "--device", "cpu")
    assert done.exit_code == 0, done.exception
    return done.stdout


def refused(*words: str) -> str:
    done = run(*words)
    assert isinstance(done.exception, UnmaskError), done.output
    return str(done.exception)


def test_an_index_is_made_updated_and_searched(here: Path) -> None:
    for _ in range(2):
        index(corpus=".")  # an index is not a part of the corpus
    assert index("--approximate").splitlines() == [
        "index: 5 documents; 0 added, 0 changed, 0 removed, 0 texts embedded.",
        "The approximate index finds 100.0% of the ten nearest documents.",
    ]
    write_rows(here / "corpus.jsonl", ROWS[1:])
    done = json.loads(index("--json"))
    assert done == {"documents": 3, "added": 0, "changed": 0, "removed": 2, "embedded": 0, "truncated": 0, "recall": 1.0}
    hits = json.loads(search("the market", "--json", "-k", "2", "--filter", "year >= 2020"))
    assert [hit["rank"] for hit in hits] == [1, 2] and {hit["id"] for hit in hits} < {"d2", "d3", "d4"}
    assert set(hits[0]) == {"rank", "score", "id", "title", "snippet", "columns"}
    assert search("zebra", "--mode", "bm25") == "No document was found.\n"


def test_a_table_fits_80_columns_and_shows_text_as_text(here: Path) -> None:
    index()
    for options in ((), ("--mode", "hybrid"), ("--mode", "bm25")):
        shown = search("songs market", *options)
        assert all(len(line) <= 80 for line in shown.splitlines())
        assert "\x1b" not in shown and "\u202e" not in shown
        assert "[link" in shown and "[bold]x[/bold]" in shown
    shown = search("songs", "--json")
    assert all(line.isprintable() for line in shown.splitlines())
    assert HOSTILE[0]["_id"] in [hit["id"] for hit in json.loads(shown)]


def test_queries_come_from_a_file(here: Path) -> None:
    index()
    (here / "queries.jsonl").write_text('{"_id": "q1", "text": "market"}\n{"_id": "q2", "text": "dogs"}\n')
    lines = [json.loads(line) for line in search("--queries", "queries.jsonl", "-k", "1", "--mode", "bm25").splitlines()]
    assert [(line["id"], line["query"], line["hits"][0]["id"]) for line in lines] == [
        ("q1", "market", "d2"),
        ("q2", "dogs", "d3"),
    ]
    (here / "queries.jsonl").write_text('{"text": "market"}\nno json\n')
    assert "line 2" in refused("search", "index", "--queries", "queries.jsonl")
    (here / "queries.jsonl").write_text("\n")
    assert refused("search", "index", "--queries", "queries.jsonl") == "'queries.jsonl' holds no query."


def test_a_mistake_is_reported_before_a_model_is_loaded(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index()
    (here / "tuned").mkdir()
    (here / "tuned" / "modules.json").write_text("[]")
    monkeypatch.setattr("unmask.embedder.Embedder.from_pretrained", None)
    assert "d3" in search("dogs", "--mode", "bm25")
    new = ("index", "corpus.jsonl", "-m", "pico", "-o", "new")
    for words, message in (
        (("search", "nowhere", "x"), "'nowhere' is not an index"),
        (("search", "index"), "Give one query, or a file of queries"),
        (("search", "index", "x", "--queries", "corpus.jsonl"), "Give one query, or a file of queries"),
        (("search", "index", "x", "--mode", "bm25", "--exact"), "--exact would change nothing"),
        (("search", "index", "x", "--filter", "yaer = 1"), "Did you mean 'year'"),
        (("index", "nowhere.jsonl", "-m", "pico", "-o", "new"), "nowhere.jsonl"),
        (("index", "corpus.jsonl", "-m", "tuned", "-o", "new", *CPU), "'tuned' is a sentence-transformers model"),
        ((*new, "--column", "body"), "column 'body' (str) is missing"),
        ((*new, "--title-column", "titel"), "no document has a title in the column 'titel'"),
        ((*new, "--title-column", "text"), "both name 'text'"),
    ):
        assert message in refused(*words)
    assert not (here / "new").exists()
    monkeypatch.undo()
    monkeypatch.chdir(here)
    assert "An index needs dense vectors" in refused(*new, "-d", "causal/eol/last/lexical", *CPU)
    assert "nothing to fit" in refused(*new, "-d", "mean", "--fit-on", "corpus.jsonl", *CPU)


def test_instructions_and_a_fit_are_options(here: Path) -> None:
    saved = Embedder.from_pretrained(
        "pico", "causal/instruction/last/zscore", instructions={"query": "q: ", "document": "d: "}, device="cpu"
    )
    saved.fit(row["text"] for row in ROWS).save_pretrained(here / "saved")
    command = ("index", "corpus.jsonl", "-m", "saved", "-o", "index", *CPU, "--query-instruction", "question: ")
    for _ in range(2):  # the same command may be given again
        assert run(*command, "--fit-on", "corpus.jsonl").exit_code == 0
    record = json.loads((here / "index" / "index.json").read_text())["embedder"]
    assert record["instructions"] == {"query": "question: ", "document": "d: "}, "the other saved one stays"
    assert record["fit"] and json.loads(search("a song", "--json"))
    write_rows(here / "others.jsonl", ROWS[:2])
    assert "what differs is the fit" in refused(*command, "--fit-on", "others.jsonl")
