"""LanceDB: one table with the documents and their vectors, which LanceDB's own tools can open."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from math import isqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from unmask.encoding.quantization import Precision
from unmask.io.seals import Damaged
from unmask.search.fusion import Rows
from unmask.search.stores.store import BLOCK, ROW, VECTOR, Block, Layout, in_order
from unmask.search.vectors import Stored, scalar_of, width

if TYPE_CHECKING:
    import pyarrow as pa

_TABLE = "documents"
_PROBED = 0.1
"""Share of the partitions that a query looks into."""
_FEWEST_PROBED = 20
_BUILDING = timedelta(hours=24)


class LanceKind:
    """The store of LanceDB. Its approximate index divides the vectors into partitions (IVF); it has none for int8."""

    name = "lance"
    needs = "lancedb"
    approximates: tuple[Precision, ...] = ("float32", "float16", "binary")

    def write(self, folder: Path, layout: Layout, blocks: Iterable[Block], *, approximate: bool) -> None:
        """Write the table."""
        source = _Source(layout, blocks)
        try:
            table = _connect(folder).create_table(_TABLE, data=source.reader())
        except Exception:
            if source.error is not None:  # ours, which LanceDB has wrapped into one of its own
                raise source.error from None
            raise
        if approximate:
            _divide(table, layout)

    def open(self, folder: Path, layout: Layout) -> LanceStore:
        """Open the table."""
        return LanceStore(folder, layout)


class _Source:
    """Blocks as LanceDB reads them. error: what went wrong while a block was made."""

    def __init__(self, layout: Layout, blocks: Iterable[Block]) -> None:
        self.layout, self.blocks = layout, blocks
        self.error: BaseException | None = None

    def reader(self) -> pa.RecordBatchReader:
        import pyarrow as pa

        schema = _with_vectors(self.layout)
        return pa.RecordBatchReader.from_batches(schema, self._batches(schema))

    def _batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        row = 0
        try:
            for batch, vectors in self.blocks:
                flat = pa.array(np.ascontiguousarray(vectors).reshape(-1))
                added = [
                    pa.array(np.arange(row, row + len(vectors))),
                    pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1]),
                ]
                yield pa.RecordBatch.from_arrays([*batch.columns, *added], schema=schema)
                row += len(vectors)
        except BaseException as error:
            self.error = error
            raise


def _with_vectors(layout: Layout) -> pa.Schema:
    import pyarrow as pa

    vector = pa.list_(pa.from_numpy_dtype(scalar_of(layout.precision)), width(layout.dim, layout.precision))
    return layout.schema.append(pa.field(ROW, pa.int64())).append(pa.field(VECTOR, vector))


def _connect(folder: Path) -> Any:
    os.environ.setdefault("LANCEDB_LOG", "error")  # its Rust part would tell the terminal of every empty partition
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import lancedb

    return lancedb.connect(folder)


def _divide(table: Any, layout: Layout) -> None:
    from lancedb.index import IvfFlat

    config = IvfFlat(distance_type=_distance(layout), num_partitions=_partitions(table.count_rows()))
    table.create_index(VECTOR, config=config, wait_timeout=_BUILDING)


def _partitions(rows: int) -> int:
    return max(1, isqrt(rows))


def _distance(layout: Layout) -> Literal["hamming", "cosine"]:
    return "hamming" if layout.precision == "binary" else "cosine"


class LanceStore:
    """The open table."""

    def __init__(self, folder: Path, layout: Layout) -> None:
        """Open the table. Raises Damaged if it is not there."""
        self.layout = layout
        try:
            self._table = _connect(folder).open_table(_TABLE)
        except ValueError as error:
            raise Damaged(f"'{folder}' is damaged: its table is missing.") from error
        self._rows = int(self._table.count_rows())

    def __len__(self) -> int:
        """Number of documents."""
        return self._rows

    def vectors(self, rows: Rows) -> Stored:
        """The stored vectors of these rows, in their order."""
        return self._plain(self.table(rows, [VECTOR])[VECTOR])

    def vector_blocks(self) -> Iterator[Stored]:
        """All stored vectors, block after block, in the order of rows."""
        for batch in self.batches([VECTOR]):
            yield self._plain(batch[VECTOR])

    def table(self, rows: Rows, fields: Sequence[str]) -> pa.Table:
        """These rows, in their order."""
        unique = np.unique(rows)
        found = self._table.take_offsets(unique.tolist()).select([*fields, ROW]).to_arrow()
        return found.take(in_order(rows, found[ROW].to_numpy())).select(list(fields))

    def batches(self, fields: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """All rows, in order. Raises Damaged if the table has them in another."""
        row = 0
        for batch in self._table.search().select([*fields, ROW]).to_batches(BLOCK):
            if not np.array_equal(batch[ROW].to_numpy(), np.arange(row, row + len(batch))):
                raise Damaged("The table of the index is damaged: its rows are not in order.")
            row += len(batch)
            yield batch.select(list(fields))

    def nearest(self, query: Stored, number: int) -> Rows:
        """About the nearest rows, by the partitions that are nearest to the query."""
        probed = max(_FEWEST_PROBED, int(_PROBED * _partitions(len(self))))
        search = self._table.search(query, vector_column_name=VECTOR).distance_type(_distance(self.layout)).nprobes(probed)
        return np.asarray(search.select([ROW, "_distance"]).limit(number).to_arrow()[ROW].to_numpy(), np.int64)

    def _plain(self, vectors: Any) -> Stored:
        """An array of the values in a column of vectors."""
        import pyarrow as pa

        chunks = vectors.chunks if isinstance(vectors, pa.ChunkedArray) else [vectors]
        wide = width(self.layout.dim, self.layout.precision)
        parts = [chunk.flatten().to_numpy().reshape(-1, wide) for chunk in chunks]
        return np.concatenate(parts) if parts else np.empty((0, wide), scalar_of(self.layout.precision))
