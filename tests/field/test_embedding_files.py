"""`unmask embed` and `unmask index` on what people pipe and collect in folders."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.bulk.corpora import PICO, rows_of
from tests.in_process import run_program
from tests.tiny import write_rows
from unmask.bulk.folder import embed_folder
from unmask.bulk.job import EmbedJob
from unmask.bulk.team import ThisProcess
from unmask.embedder import Embedder
from unmask.errors import UnmaskError
from unmask.io.sources import find_files
from unmask.search.documents import DocumentSource, read_documents

TEXTS = ["A man plays a guitar.", "Grüße aus Köln", '"quoted", and more']
OPTIONS = ("-m", "pico", "-d", "mean", "--device", "cpu", "--dtype", "float32")


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return Embedder.from_pretrained("pico", "mean", device="cpu", dtype="float32")


@pytest.fixture
def pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run `unmask embed` with these bytes on standard input."""
    monkeypatch.chdir(tmp_path)

    def run(content: bytes, *words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))
        return run_program(["embed", *words, *OPTIONS], monkeypatch, capfd)

    return run


def test_texts_and_json_lines_are_read_from_standard_input(
    pipe: Callable[..., tuple[int, str, str]], embedder: Embedder
) -> None:
    code, _, err = pipe("\n".join(TEXTS).encode(), "-", "-o", "plain.npy")
    assert code == 0 and "3 vectors of 32 dimensions in plain.npy" in err
    lines = "".join(json.dumps({"name": f"n{number}", "body": text}) + "\n" for number, text in enumerate(TEXTS))
    code, _, err = pipe(lines.encode(), "-", "-o", "named.jsonl", "--column", "body", "--id-column", "name")
    assert code == 0, err
    rows = [json.loads(line) for line in Path("named.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == ["n0", "n1", "n2"]
    for vectors in (np.load("plain.npy"), np.array([row["vector"] for row in rows], np.float32)):
        np.testing.assert_array_equal(vectors, embedder.encode(TEXTS))
    assert json.loads(Path("plain.npy.manifest.json").read_text())["input"]["file"] == "-"


@pytest.mark.parametrize(
    ("content", "words", "told"),
    [
        (b'{"text": "a"}\n{"text": }\n', ("-", "-o", "a.npy"), "standard input, line 2, column 10: no JSON"),
        (b"", ("-", "-o", "a.npy"), "standard input holds no row"),
        (b"a\n", ("-", "-o", "folder"), "'-' (standard input) goes into one file of vectors"),
    ],
)
def test_a_mistake_on_standard_input_is_named(
    pipe: Callable[..., tuple[int, str, str]], content: bytes, words: tuple[str, ...], told: str
) -> None:
    code, _, err = pipe(content, *words)
    assert code == 2 and told in err
    assert not Path("a.npy").exists()


def test_columns_of_other_files_do_not_refuse_a_txt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("corpus").mkdir()
    Path("corpus/notes.txt").write_text("a note\nanother\n")
    write_rows(Path("corpus/table.jsonl"), [{"key": "k1", "body": "a row", "year": 1999}])
    job = EmbedJob((Path("corpus"),), Path("out"), column="body", id_column="key", keep=("year",))
    manifest = embed_folder(job, lambda: ThisProcess(job, PICO))
    assert manifest.flawless and manifest.texts == 3
    assert [(row["id"], row["year"]) for row in rows_of(Path("out"))] == [
        ("corpus/notes.txt:0", None),
        ("corpus/notes.txt:1", None),
        ("k1", "1999"),
    ]
    corpus = DocumentSource(tuple(find_files([Path("corpus")])), "body", None, "key")
    assert [(document.id, document.text) for document in read_documents(corpus)] == [
        ("corpus/notes.txt:1", "a note"),
        ("corpus/notes.txt:2", "another"),
        ("k1", "a row"),
    ]
    Path("corpus/table.jsonl").unlink()
    with pytest.raises(UnmaskError, match=r"notes.txt: none of its first rows has a column 'body'"):
        embed_folder(job, lambda: ThisProcess(job, PICO))
    with pytest.raises(UnmaskError, match="column 'key'"):
        list(read_documents(DocumentSource(tuple(find_files([Path("corpus")])), "text", None, "key")))
