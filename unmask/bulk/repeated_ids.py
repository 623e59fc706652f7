"""Repeated ids: whether an id is in more than one file of vectors. Memory holds eight bytes for each row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from xxhash import xxh3_64_intdigest

_BATCH = 65_536


def count_repeated(files: Sequence[Path]) -> int:
    """How many documents have an id that a document before them has. Within one file, ids differ already."""
    import pyarrow.parquet as pq

    if len(files) < 2:
        return 0
    hashes = []
    for file in files:
        with pq.ParquetFile(file) as table:
            chunked = "chunk" in table.schema_arrow.names
            for batch in table.iter_batches(_BATCH, columns=["id", "chunk"] if chunked else ["id"]):
                names = batch["id"].to_pylist()
                if chunked:  # all chunks of a document have its id
                    names = [name for name, number in zip(names, batch["chunk"].to_pylist(), strict=True) if number == 0]
                hashes.append(np.array([xxh3_64_intdigest(name.encode()) for name in names], np.uint64))
    everything = np.concatenate(hashes) if hashes else np.empty(0, np.uint64)
    return len(everything) - len(np.unique(everything))
