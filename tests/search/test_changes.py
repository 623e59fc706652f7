"""An open index takes new documents, changes and deletes some, and is then the index that is built of the same documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.search.made import ROWS, contents, indexed, opened
from unmask.embedder import Embedder
from unmask.errors import UnmaskError
from unmask.search.index import Index
from unmask.search.stores import STORES

NEW = {"_id": "d5", "title": "Rain", "text": "It rains in the mountains.", "year": 2023, "tag": "c"}
CHANGED = ROWS[1] | {"text": "The stock market rose again today."}


def require_same_documents(index: Index, other: Index) -> None:
    """Equal documents, with vectors that are equal up to rounding, which depends on the batches."""
    rows, expected = (sorted(contents(one), key=lambda row: str(row["id"])) for one in (index, other))
    vectors, expected_vectors = ([np.frombuffer(row.pop("vector"), np.float32) for row in part] for part in (rows, expected))
    assert rows == expected
    np.testing.assert_allclose(vectors, expected_vectors, atol=1e-5)


@pytest.mark.parametrize("store", STORES)
def test_an_index_that_was_changed_is_the_one_that_is_built_of_its_documents(
    store: str, embedder: Embedder, tmp_path: Path
) -> None:
    indexed(embedder, tmp_path, store=store)
    index = opened(embedder, tmp_path)
    assert index.search("mountains", mode="bm25") == []
    done = index.add([NEW, CHANGED])
    assert (done.documents, done.added, done.changed, done.removed, done.embedded) == (5, 1, 1, 0, 2)
    assert index.search("mountains", mode="bm25")[0].id == "d5" and len(index) == 5
    done = index.delete(["d1", "d3"])
    assert (done.documents, done.removed, done.embedded) == (3, 2, 0)

    (tmp_path / "fresh").mkdir()
    indexed(embedder, tmp_path / "fresh", [CHANGED, ROWS[3], NEW], store=store)
    fresh = opened(embedder, tmp_path / "fresh")
    require_same_documents(index, fresh)
    require_same_documents(index, opened(embedder, tmp_path))
    for query, where in (("market", None), ("rain", "year >= 2021")):
        hits, expected = (one.search(query, mode="hybrid", where=where) for one in (index, fresh))
        assert {hit.id: hit.columns for hit in hits} == {hit.id: hit.columns for hit in expected}


def test_nothing_to_do_changes_nothing(index: Index) -> None:
    before = contents(index)
    for done in (index.add([]), index.add([ROWS[0]]), index.delete([])):
        assert (done.added, done.changed, done.removed, done.embedded) == (0, 0, 0, 0)
    assert contents(index) == before


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda index: index.add([{"text": "no id"}]), "line 1: column 'id'"),
        (lambda index: index.add([{"id": "x"}]), "line 1: column 'text'"),
        (lambda index: index.add([NEW, NEW]), "comes twice"),
        (lambda index: index.delete(["d1", "d9"]), "no document 'd9'"),
        (lambda index: index.delete("d1"), r"delete\(\[id\]\)"),
        (lambda index: index.delete(["d1", "d2", "d3", "d4"]), "remove the folder"),
    ],
)
def test_a_change_that_cannot_be_made_is_refused_and_leaves_the_index(change: Any, cause: str, index: Index) -> None:
    before = contents(index)
    with pytest.raises(UnmaskError, match=cause):
        change(index)
    assert contents(index) == before
