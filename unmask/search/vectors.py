"""Vectors as an index stores them: of unit length, in one of four precisions, and back.

A query stays in float32. Its score is the cosine with the vector that the stored bytes stand for.
"""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
Stored = NDArray[Any]
StoredPrecision = Literal["float32", "float16", "int8", "binary"]
STORED_PRECISIONS: Final = get_args(StoredPrecision)
_BYTE = 8


def stored(vectors: Vectors, precision: StoredPrecision) -> Stored:
    """Vectors of unit length, (text, dim), as they are stored: (text, width).

    int8 scales each vector by its own largest value. binary keeps the sign of each dimension, eight dimensions in a byte.
    """
    if precision == "binary":
        return np.packbits(vectors > 0, axis=1)
    if precision == "int8":
        largest = np.abs(vectors).max(axis=1, keepdims=True, initial=np.finfo(np.float32).tiny)
        return np.asarray(np.rint(vectors / largest * 127), np.int8)
    return vectors.astype(precision)


def width(dim: int, precision: StoredPrecision) -> int:
    """The number of values that store one vector."""
    return -(-dim // _BYTE) if precision == "binary" else dim


def restored(kept: Stored, precision: StoredPrecision, dim: int) -> Vectors:
    """The vectors that stored ones stand for, (text, dim), of unit length."""
    if precision in ("float32", "float16"):  # of unit length when they were stored
        return np.asarray(kept, np.float32)
    signs = precision == "binary"
    decoded = np.unpackbits(kept, axis=1, count=dim).astype(np.float32) * 2 - 1 if signs else kept.astype(np.float32)
    lengths = np.linalg.norm(decoded, axis=1, keepdims=True)
    return np.asarray(decoded / np.maximum(lengths, np.finfo(np.float32).tiny), np.float32)
