"""Stores: every store holds the same documents and vectors to the last bit, in their order, whatever ids and texts are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from unmask.encoding.quantization import PRECISIONS, Precision, normalized
from unmask.errors import UnmaskError
from unmask.search.stores import STORES, default_store
from unmask.search.stores.store import Block, Layout, in_order
from unmask.search.vectors import Stored, scalar_of, stored, width

DIM, COUNT = 32, 700
SCHEMA = pa.schema(
    [("id", pa.large_string()), ("text", pa.large_string()), ("c0", pa.int64()), ("c1", pa.float64()), ("c2", pa.bool_())]
)
IDS = [f"{number}'; DROP TABLE x; -- \"`\0\n../\u202e\U0001f600" for number in range(COUNT)]
ROWS = np.array([5, COUNT - 1, 0, 5, 300], np.int64)


def made(precision: Precision) -> Stored:
    vectors = np.random.default_rng(0).normal(size=(COUNT, DIM)).astype(np.float32)
    return stored(normalized(vectors), precision)


def blocks(vectors: Stored) -> Iterator[Block]:
    for start in range(0, COUNT, 64):
        places = range(start, min(start + 64, COUNT))
        columns: list[list[Any]] = [
            [IDS[place] for place in places],
            ["x\0\n" * (place % 3) for place in places],
            [None if place % 3 else place for place in places],
            [place / 2 for place in places],
            [place % 2 == 0 for place in places],
        ]
        arrays = [pa.array(column, kind) for column, kind in zip(columns, SCHEMA.types, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=SCHEMA), vectors[start : start + 64]


@pytest.fixture(params=STORES)
def kind(request: pytest.FixtureRequest) -> Any:
    return STORES[request.param]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_store_gives_back_what_it_was_given(kind: Any, precision: Precision, tmp_path: Path) -> None:
    layout, vectors = Layout(SCHEMA, DIM, precision), made(precision)
    kind.write(tmp_path, layout, blocks(vectors), approximate=False)
    store = kind.open(tmp_path, layout)
    assert len(store) == COUNT
    assert vectors.shape[1] == width(DIM, precision) and vectors.dtype == scalar_of(precision)
    for found, expected in (
        (store.vectors(ROWS), vectors[ROWS]),
        (np.concatenate(list(store.vector_blocks())), vectors),
        (store.vectors(ROWS[:0]), vectors[:0]),
    ):
        assert found.dtype == expected.dtype and np.array_equal(found, expected)
    assert [name for batch in store.batches(["id"]) for name in batch["id"].to_pylist()] == IDS
    table = store.table(ROWS, ["text", "id", "c0", "c1", "c2"])
    assert table.column_names == ["text", "id", "c0", "c1", "c2"]
    assert table.to_pylist() == [
        {
            "text": "x\0\n" * (row % 3),
            "id": IDS[row],
            "c0": None if row % 3 else row,
            "c1": row / 2,
            "c2": row % 2 == 0,
        }
        for row in ROWS.tolist()
    ]
    assert store.table(ROWS[:0], ["id"]).num_rows == 0


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_approximate_index_proposes_the_nearest(kind: Any, precision: Precision, tmp_path: Path) -> None:
    if precision not in kind.approximates:
        pytest.skip("refused before anything is written: test_job.py")
    layout, vectors = Layout(SCHEMA, DIM, precision), made(precision)
    kind.write(tmp_path, layout, blocks(vectors), approximate=True)
    store = kind.open(tmp_path, layout)
    for row in ROWS.tolist():
        found = store.nearest(vectors[row], 20)
        assert row in found.tolist() and len(found) <= 20
    assert len(store.nearest(vectors[0], 10 * COUNT)) <= COUNT


def test_what_goes_wrong_in_a_block_is_seen_as_it_is(kind: Any, tmp_path: Path) -> None:
    def failing() -> Iterator[Block]:
        yield next(blocks(made("float32")))
        raise UnmaskError("mine")

    with pytest.raises(UnmaskError, match="mine"):
        kind.write(tmp_path, Layout(SCHEMA, DIM, "float32"), failing(), approximate=False)


def test_a_store_may_be_moved(kind: Any, tmp_path: Path) -> None:
    layout = Layout(SCHEMA, DIM, "float32")
    (tmp_path / "one").mkdir()
    kind.write(tmp_path / "one", layout, blocks(made("float32")), approximate=False)
    (tmp_path / "one").rename(tmp_path / "other")
    assert kind.open(tmp_path / "other", layout).table(ROWS, ["id"]).num_rows == len(ROWS)


def test_files_of_equal_documents_are_equal(tmp_path: Path) -> None:
    layout, kind = Layout(SCHEMA, DIM, "float32"), STORES["usearch"]
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        kind.write(tmp_path / name, layout, blocks(made("float32")), approximate=False)
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "other" / file.name).read_bytes()


def test_rows_are_put_in_order() -> None:
    found = np.array([8, 2, 5], np.int64)
    rows = np.array([5, 8, 5, 2], np.int64)
    assert found[in_order(rows, found)].tolist() == rows.tolist()


def test_the_default_is_a_store_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_store() == "lance"
    monkeypatch.setattr("unmask.search.stores.find_spec", lambda name: None if name == "lancedb" else object())
    assert default_store() == "usearch"
    monkeypatch.setattr("unmask.search.stores.find_spec", lambda _: None)
    assert default_store() == "lance"
