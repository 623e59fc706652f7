"""Plain files: the vectors in one file of usearch, texts and columns in one parquet file. Any other program can read both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unmask.encoding.quantization import PRECISIONS, Precision
from unmask.io.seals import Damaged
from unmask.search.fusion import Rows
from unmask.search.stores.store import BLOCK, Block, Layout
from unmask.search.vectors import Stored, scalar_of, width

if TYPE_CHECKING:
    import pyarrow as pa

_VECTORS, _DOCUMENTS = "vectors.usearch", "documents.parquet"
_SCALARS = {"float32": "f32", "float16": "f16", "int8": "i8", "binary": "b1"}


class UsearchKind:
    """The store of plain files. Its file of vectors is a graph (HNSW), so it can always search approximately."""

    name = "usearch"
    needs = "usearch"
    approximates: tuple[Precision, ...] = PRECISIONS

    def write(self, folder: Path, layout: Layout, blocks: Iterable[Block], *, approximate: bool) -> None:
        """Write both files."""
        import pyarrow.parquet as pq

        graph, threads = _graph(layout), 0 if approximate else 1  # one thread makes equal files of equal documents
        with pq.ParquetWriter(folder / _DOCUMENTS, layout.schema) as documents:
            for batch, vectors in blocks:
                documents.write_batch(batch)
                graph.add(np.arange(len(graph), len(graph) + len(vectors)), vectors, threads=threads)
        graph.save(str(folder / _VECTORS))

    def open(self, folder: Path, layout: Layout) -> UsearchStore:
        """Open both files. The vectors stay on the disk until they are needed."""
        return UsearchStore(folder, layout)


def _graph(layout: Layout) -> Any:
    from usearch.index import Index

    metric = "hamming" if layout.precision == "binary" else "cos"
    return Index(ndim=layout.dim, metric=metric, dtype=_SCALARS[layout.precision])


class UsearchStore:
    """The open files."""

    def __init__(self, folder: Path, layout: Layout) -> None:
        """Open the files. Raises Damaged if they do not hold equally many documents."""
        import pyarrow.parquet as pq

        self.layout = layout
        self._documents = pq.ParquetFile(folder / _DOCUMENTS)
        self._graph = _graph(layout)
        self._graph.view(str(folder / _VECTORS))
        sizes = [self._documents.metadata.row_group(group).num_rows for group in range(self._documents.num_row_groups)]
        self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        if len(self._graph) != len(self):
            raise Damaged(f"'{folder}' is damaged: it holds {len(self._graph)} vectors of {len(self)} documents.")

    def __len__(self) -> int:
        """Number of documents."""
        return int(self._starts[-1])

    def vectors(self, rows: Rows) -> Stored:
        """The stored vectors of these rows, in their order."""
        wide = width(self.layout.dim, self.layout.precision)
        if not len(rows):
            return np.empty((0, wide), scalar_of(self.layout.precision))
        return np.stack(self._graph.get(rows, dtype=_SCALARS[self.layout.precision])).reshape(len(rows), wide)

    def vector_blocks(self) -> Iterator[Stored]:
        """All stored vectors, block after block, in the order of rows."""
        for start in range(0, len(self), BLOCK):
            yield self.vectors(np.arange(start, min(start + BLOCK, len(self))))

    def table(self, rows: Rows, fields: Sequence[str]) -> pa.Table:
        """These rows, in their order. Each row group that holds one of them is read once."""
        import pyarrow as pa

        groups = np.searchsorted(self._starts, rows, side="right") - 1
        schema = pa.schema([self.layout.schema.field(name) for name in fields])
        parts, order = [schema.empty_table()], []
        for group in np.unique(groups).tolist():
            places = np.flatnonzero(groups == group)
            parts.append(self._documents.read_row_group(group, list(fields)).take(rows[places] - self._starts[group]))
            order.append(places)
        return pa.concat_tables(parts).take(np.argsort(np.concatenate(order))) if order else parts[0]

    def batches(self, fields: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """All rows, in order."""
        yield from self._documents.iter_batches(BLOCK, columns=list(fields))

    def nearest(self, query: Stored, number: int) -> Rows:
        """About the nearest rows, by the graph."""
        return np.asarray(self._graph.search(query, min(number, len(self)), threads=1).keys, np.int64)
