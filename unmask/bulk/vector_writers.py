"""Vector writers: blocks of vectors, written one after the other to a parquet, npy or jsonl file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.encoding.lexical import entries


@dataclass(frozen=True)
class Block:
    """Some rows of a file of vectors. columns: values of the columns that are kept, by name.

    chunks: where the text of each row lies in its document: number of the chunk, first character, and character after the last.
    """

    ids: list[str]
    vectors: NDArray[Any]
    columns: dict[str, list[str | None]]
    chunks: list[tuple[int, int, int]] | None = None

    @property
    def chunk_columns(self) -> dict[str, list[int]]:
        """The columns with the positions of chunks."""
        if self.chunks is None:
            return {}
        return {name: [chunk[position] for chunk in self.chunks] for position, name in enumerate(CHUNK_COLUMNS)}

    def pieces(self) -> Iterator[Block]:
        """The rows in groups: many chunks may repeat a large value of their document, and memory holds a few of its copies at once."""
        first = size = 0
        for row, values in enumerate(zip(self.ids, *self.columns.values(), strict=True)):
            added = sum(len(value) for value in values if value)
            if row > first and size + added > _PIECE:
                yield self._rows(first, row)
                first, size = row, 0
            size += added
        yield self._rows(first, len(self.ids))

    def _rows(self, first: int, end: int) -> Block:
        columns = {name: values[first:end] for name, values in self.columns.items()}
        return Block(self.ids[first:end], self.vectors[first:end], columns, self.chunks and self.chunks[first:end])


_PIECE = 16_000_000
"""Most characters of ids and kept values that a parquet file is given at once."""
CHUNK_COLUMNS = ("chunk", "start", "end")
"""Columns of a file of chunks: the number of a chunk in its document, from 0, and its characters, document[start:end]."""


Write = Callable[[Block], object]


@dataclass(frozen=True)
class Layout:
    """Layout of a file of vectors. rows: their number, which only npy needs in advance; columns: names other than id and vector.

    chunked: whether rows are chunks of documents. sparse: whether vectors are packed sparse ones, which only jsonl writes.
    """

    dim: int
    dtype: np.dtype[Any]
    columns: tuple[str, ...] = ()
    rows: int | None = None
    chunked: bool = False
    sparse: bool = False


@contextmanager
def _parquet(file: Path, layout: Layout) -> Iterator[Write]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    value = pa.from_numpy_dtype(layout.dtype)
    chunk_fields = [(name, pa.int64()) for name in CHUNK_COLUMNS if layout.chunked]
    kept_columns = [(name, pa.string()) for name in layout.columns]
    schema = pa.schema([("id", pa.string()), *chunk_fields, ("vector", pa.list_(value, layout.dim)), *kept_columns])
    # a dictionary packs numbers of one or two bytes; one of float32 numbers, which hardly repeat, takes an eighth more than the numbers
    packed = [name for name in schema.names if name != "vector"] if layout.dtype.itemsize > 2 else True
    with pq.ParquetWriter(file, schema, use_dictionary=packed) as writer:

        def write(block: Block) -> None:
            for piece in block.pieces():
                vectors = pa.FixedSizeListArray.from_arrays(pa.array(piece.vectors.reshape(-1)), layout.dim)
                columns: dict[str, Any] = {"id": piece.ids, "vector": vectors, **piece.chunk_columns, **piece.columns}
                writer.write_table(pa.table([columns[name] for name in schema.names], schema=schema))

        yield write


@contextmanager
def _npy(file: Path, layout: Layout) -> Iterator[Write]:
    with file.open("wb") as stream:
        header = np.lib.format.header_data_from_array_1_0(np.empty((0, layout.dim), layout.dtype))
        np.lib.format.write_array_header_1_0(stream, {**header, "shape": (layout.rows or 0, layout.dim)})
        yield lambda block: stream.write(np.ascontiguousarray(block.vectors).tobytes())


@contextmanager
def _jsonl(file: Path, layout: Layout) -> Iterator[Write]:
    with file.open("w", encoding="utf-8") as lines:

        def write(block: Block) -> None:
            vectors: list[dict[str, Any]]
            if layout.sparse:
                vectors = [{"indices": ids, "values": values} for ids, values in entries(block.vectors)]
            elif block.vectors.dtype.kind in "iu":
                vectors = [{"vector": vector.tolist()} for vector in block.vectors]
            else:  # the shortest decimals that are read as the same float32
                vectors = [{"vector": [float(str(value)) for value in vector]} for vector in block.vectors]
            columns: dict[str, list[Any]] = {"id": block.ids, **block.chunk_columns}
            for index, vector in enumerate(vectors):
                before, after = ({name: values[index] for name, values in part.items()} for part in (columns, block.columns))
                lines.write(json.dumps(before | vector | after, ensure_ascii=False) + "\n")

        yield write


WRITERS: dict[str, Callable[[Path, Layout], AbstractContextManager[Write]]] = {
    ".parquet": _parquet,
    ".npy": _npy,
    ".jsonl": _jsonl,
}
