"""The interface of a store: vectors, texts and columns of documents by row. A store keeps and fetches; ranking is done elsewhere.

A store is written once, as a whole, and only read afterwards. All stores hold the same rows in the same order, so that every search
gives the same answer on each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from unmask.encoding.quantization import Precision
from unmask.search.fusion import Rows
from unmask.search.vectors import Stored

if TYPE_CHECKING:
    import pyarrow as pa

VECTOR, ROW = "vector", "row"
"""Names of columns that a store may add to those of the documents."""
BLOCK: Final = 4096
"""Rows that are read at a time."""


@dataclass(frozen=True)
class Layout:
    """What a store holds. schema: of the documents, without their vectors."""

    schema: pa.Schema
    dim: int
    precision: Precision


Block = tuple["pa.RecordBatch", Stored]
"""Documents and their vectors, in the same order."""


class Store(Protocol):
    """An open store."""

    def __len__(self) -> int:
        """Number of documents."""

    def vectors(self, rows: Rows) -> Stored:
        """The stored vectors of these rows, in their order."""

    def vector_blocks(self) -> Iterator[Stored]:
        """All stored vectors, block after block, in the order of rows."""

    def table(self, rows: Rows, fields: Sequence[str]) -> pa.Table:
        """These rows, in their order."""

    def batches(self, fields: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """All rows, in order."""

    def nearest(self, query: Stored, number: int) -> Rows:
        """About the `number` rows whose vectors are nearest to a stored one, by the store's approximate index."""


class StoreKind(Protocol):
    """How a store is written and opened. name: on the command line; needs: the module that it imports."""

    name: str
    needs: str
    approximates: tuple[Precision, ...]

    def write(self, folder: Path, layout: Layout, blocks: Iterable[Block], *, approximate: bool) -> None:
        """Write all documents to a folder that exists. approximate: build what `nearest` needs."""

    def open(self, folder: Path, layout: Layout) -> Store:
        """Open what `write` wrote."""


def in_order(rows: Rows, found: Rows) -> Rows:
    """Where each of `rows` stands in `found`, which holds the same rows in another order."""
    order = np.argsort(found, kind="stable")
    return np.asarray(order[np.searchsorted(found[order], rows)], np.int64)
