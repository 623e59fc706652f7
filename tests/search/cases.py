"""Indexes of a few documents, made by a random model of two layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.tiny import write_rows
from unmask.embedder import Embedder
from unmask.search.build import IndexChanges, IndexJob, build
from unmask.search.documents import DocumentSource
from unmask.search.index import Index
from unmask.search.table import vectors_in

ROWS: list[dict[str, Any]] = [
    {"_id": "d1", "title": "Guitars", "text": "A man plays a guitar with six strings.", "year": 2019, "tag": "a"},
    {"_id": "d2", "title": "", "text": "The stock market fell again today.", "year": 2020, "tag": "b"},
    {"_id": "d3", "title": "Dogs", "text": "Two dogs run across the wet grass.", "year": 2021, "tag": None},
    {"_id": "d4", "title": "", "text": "Nobody knows why the market rose.", "year": 2022, "tag": "a"},
]


def indexed(embedder: Embedder, folder: Path, rows: list[dict[str, Any]] = ROWS, **options: Any) -> IndexChanges:
    """Index rows below a folder."""
    file = write_rows(folder / "corpus.jsonl", rows)
    return build(IndexJob(DocumentSource((file,)), folder / "index", **({"model": "in memory"} | options)), lambda: embedder)


def opened(embedder: Embedder, folder: Path) -> Index:
    """The index below a folder."""
    return Index.open(folder / "index", embedder=embedder)


def counts(done: IndexChanges) -> tuple[int, ...]:
    return done.documents, done.added, done.changed, done.removed, done.embedded


def require_same_documents(index: Index, other: Index) -> None:
    """Equal documents, in any order, with vectors that are equal up to rounding, which depends on the batches."""
    tables = [opened._table.to_arrow().sort_by("_id") for opened in (index, other)]
    assert tables[0].drop_columns("_vector") == tables[1].drop_columns("_vector")
    vectors, expected = map(vectors_in, tables)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
