"""Indexes of a few documents, made by a random model of two layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.tiny import write_rows
from unmask.embedder import Embedder
from unmask.search.build import Done, build
from unmask.search.documents import Corpus
from unmask.search.index import Index
from unmask.search.job import Job

ROWS: list[dict[str, Any]] = [
    {"_id": "d1", "title": "Guitars", "text": "A man plays a guitar with six strings.", "year": 2019, "tag": "a"},
    {"_id": "d2", "title": "", "text": "The stock market fell again today.", "year": 2020, "tag": "b"},
    {"_id": "d3", "title": "Dogs", "text": "Two dogs run across the wet grass.", "year": 2021, "tag": None},
    {"_id": "d4", "title": "", "text": "Nobody knows why the market rose.", "year": 2022, "tag": "a"},
]


def job(folder: Path, rows: list[dict[str, Any]] | None = None, **options: Any) -> Job:
    """A job that indexes rows below a folder."""
    file = write_rows(folder / "corpus.jsonl", ROWS if rows is None else rows)
    return Job(Corpus((file,)), folder / "index", **({"model": "in memory"} | options))


def indexed(embedder: Embedder, folder: Path, rows: list[dict[str, Any]] | None = None, **options: Any) -> Done:
    """Index rows below a folder."""
    return build(embedder, job(folder, rows, **options).check())


def opened(embedder: Embedder, folder: Path) -> Index:
    """The index below a folder."""
    return Index.open(folder / "index", embedder=embedder)


def contents(index: Index) -> list[dict[str, Any]]:
    """Every document of an index, with the bytes of its vector, in order."""
    fields = index.record.layout.schema.names
    rows = [row for batch in index._store.batches(fields) for row in batch.to_pylist()]
    vectors = [vector.tobytes() for block in index._store.vector_blocks() for vector in block]
    return [{**row, "vector": vector} for row, vector in zip(rows, vectors, strict=True)]
