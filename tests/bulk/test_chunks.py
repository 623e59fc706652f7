"""Chunks in bulk: rows of chunks are those of `encode_chunks`, with their places; a bad chunk loses its document; losses are measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from tests.bulk.corpora import PICO, content, job_of, letters_of, rows_of, run, write_corpus
from tests.conftest import TEXTS
from tests.tiny import write_rows
from unmask.bulk.job import EmbedJob
from unmask.bulk.loading import EmbedderArguments
from unmask.bulk.single_file import embed_file
from unmask.embedder import Embedder
from unmask.encoding.quantization import measure_loss
from unmask.errors import UnmaskError

DOCUMENTS = [" ".join(TEXTS[:5]), "x", "", " ".join(TEXTS[2:]), " ".join(TEXTS[:5])]


@pytest.fixture(scope="module")
def embedder(pico: Callable[..., Embedder]) -> Embedder:
    return pico("causal/plain/mean")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    rows = [{"text": text, "name": f"n{number}", "year": str(number)} for number, text in enumerate(DOCUMENTS)]
    return write_rows(tmp_path / "texts.jsonl", rows)


@pytest.mark.parametrize(("ending", "late"), [(".parquet", False), (".jsonl", True)])
def test_rows_are_the_chunks_of_encode_chunks(ending: str, late: bool, embedder: Embedder, texts: Path, tmp_path: Path) -> None:
    file = tmp_path / f"vectors{ending}"
    job = EmbedJob((texts,), file, id_column="name", keep=("year",), chunk=16, overlap=4, late=late)
    expected = embedder.encode_chunks(DOCUMENTS, 16, 4, late=late)
    assert embed_file(embedder, job).texts == len(expected) > len(DOCUMENTS)
    rows = pq.read_table(file).to_pylist() if ending == ".parquet" else [json.loads(line) for line in file.open()]
    assert list(rows[0]) == ["id", "chunk", "start", "end", "vector", "year"]
    assert [row["id"] for row in rows] == [f"n{document}" for document in expected.documents]
    assert [row["year"] for row in rows] == [str(document) for document in expected.documents]
    for column, values in (("chunk", expected.numbers), ("start", expected.starts), ("end", expected.ends)):
        assert [row[column] for row in rows] == values.tolist()
    np.testing.assert_allclose([row["vector"] for row in rows], expected.vectors, rtol=1e-5, atol=1e-5)
    manifest = json.loads(job.manifest.read_text())
    assert (manifest["options"]["chunk"], manifest["options"]["overlap"], manifest["options"]["late"]) == (16, 4, late)


def test_a_folder_of_chunks_resumes_where_it_was_stopped(tmp_path: Path) -> None:
    write_corpus(tmp_path / "corpus")
    options: dict[str, Any] = {"chunk": 12, "overlap": 3, "late": True, "id_column": "name", "precision": "int8"}
    whole = run(job_of(tmp_path, **options))
    undisturbed = content(tmp_path / "out")
    assert whole.texts > 120 and whole.repeated_ids == 0
    for file in sorted((tmp_path / "out" / "records").iterdir())[::2]:
        file.unlink()
    assert run(job_of(tmp_path, **options)) == whole
    assert content(tmp_path / "out") == undisturbed


@pytest.mark.parametrize("late", [False, True])
def test_a_document_with_a_bad_chunk_is_a_dead_letter(late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiled(self: EmbedderArguments) -> Embedder:
        embedder = load(self)
        [letter] = embedder.tokenizer("Z")["input_ids"]
        with torch.no_grad():
            embedder.backbone.model.get_input_embeddings().weight[letter] = float("nan")  # type: ignore[operator, union-attr]
        return embedder

    load = EmbedderArguments.load
    monkeypatch.setattr(EmbedderArguments, "load", spoiled)
    (tmp_path / "corpus").mkdir()
    rows = [{"text": text} for text in (DOCUMENTS[0], f"{DOCUMENTS[0]} Z {DOCUMENTS[3]}", DOCUMENTS[3])]
    write_rows(tmp_path / "corpus" / "a.jsonl", rows)
    assert run(job_of(tmp_path, chunk=8, late=late)).dead_letters == 1
    [letter] = letters_of(tmp_path / "out")
    assert letter["line"] == 2 and "not finite" in letter["reason"]
    found = rows_of(tmp_path / "out")
    assert {row["id"].rpartition(":")[2] for row in found} == {"0", "2"}
    assert np.isfinite([row["vector"] for row in found]).all()


# --- the loss of a precision -----------------------------------------------------------------------------------------


def test_the_manifest_holds_the_measured_loss(embedder: Embedder, tmp_path: Path) -> None:
    texts = [f"{TEXTS[number % 6]} {number}" for number in range(40)]
    given = write_rows(tmp_path / "texts.jsonl", [{"text": text} for text in texts])
    job = EmbedJob((given,), tmp_path / "vectors.npy", precision="int8", dim=32)
    done = embed_file(embedder, job)
    expected = measure_loss(np.asarray(embedder.encode(texts, dim=32), np.float32), "int8")
    assert done.loss == expected and expected is not None
    assert json.loads(job.manifest.read_text())["precision_loss"] == expected.as_json()


# --- mistakes --------------------------------------------------------------------------------------------------------


def test_mistakes_are_found_before_texts_are_read(texts: Path, tmp_path: Path) -> None:
    files: list[tuple[dict[str, Any], str]] = [
        ({"overlap": 3}, "Without --chunk there are no chunks"),
        ({"chunk": 8, "overlap": 5}, r"0 to 4 tokens \(half a chunk\), not 5"),
        ({"chunk": 8, "output": Path("vectors.npy")}, r"holds vectors only"),
        ({"chunk": 8, "keep": ("start",)}, r"a column 'start' of its own"),
    ]
    for options, message in files:
        with pytest.raises(UnmaskError, match=message):
            EmbedJob(**{"inputs": (texts,), "output": Path("vectors.parquet"), **options}).files()
    write_corpus(tmp_path / "corpus")
    for options, message in (
        ({"chunk": 8, "late": True}, "nearest design"),
        ({"chunk": 510}, "leaves .* tokens next to the prompt 'eol'"),
    ):
        with pytest.raises(UnmaskError, match=message):
            run(job_of(tmp_path, **options), EmbedderArguments("pico", "causal/eol/last", PICO.options))
