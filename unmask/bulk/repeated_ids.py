"""Repeated ids: whether an id is in more than one file of vectors. Memory holds eight bytes for each row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

_BATCH = 65_536


def count_repeated(files: Sequence[Path], *, chunked: bool) -> int:
    """How many documents have an id that a document before them has. Within one file, ids differ already.

    chunked: whether the rows are chunks of documents, all of which have the id of their document.
    """
    import pyarrow.parquet as pq

    if len(files) < 2:
        return 0
    hashes = np.empty(sum(pq.read_metadata(file).num_rows for file in files), np.uint64)
    count = 0
    for batch in (batch for file in files for batch in _ids(file, chunked)):
        hashes[count : count + len(batch)] = batch
        count += len(batch)
    return _repeated(hashes[:count])


def _ids(file: Path, chunked: bool) -> Iterator[NDArray[np.uint64]]:
    """The hashes of the ids of a file, once for each document."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as table:
        for batch in table.iter_batches(_BATCH, columns=["id", "chunk"] if chunked else ["id"]):
            names = batch["id"].to_pylist()
            if chunked:
                names = [name for name, number in zip(names, batch["chunk"].to_pylist(), strict=True) if number == 0]
            yield np.array([xxh3_64_intdigest(name.encode()) for name in names], np.uint64)


def _repeated(hashes: NDArray[np.uint64]) -> int:
    """How many values equal one before them. Sorts in place, and compares piece by piece: a copy would double the memory."""
    hashes.sort()
    before, after = hashes[:-1], hashes[1:]
    pieces = (slice(start, start + _BATCH) for start in range(0, len(before), _BATCH))
    return sum(int(np.count_nonzero(before[piece] == after[piece])) for piece in pieces)
