"""Vectors as an index stores them: of unit length when they were computed, in one of the precisions. A query stays in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.encoding.quantization import Precision, as_floats, finish, normalized

Vectors = NDArray[np.float32]
Stored = NDArray[Any]
_BYTE = 8


def stored(vectors: Vectors, precision: Precision) -> Stored:
    """Vectors of unit length, (text, dim), as they are stored: (text, width)."""
    return finish(vectors, None, False, precision)


def width(dim: int, precision: Precision) -> int:
    """The number of values that store one vector."""
    return dim // _BYTE if precision == "binary" else dim


def scalar_of(precision: Precision) -> str:
    """The type of these values, as numpy names it."""
    return "uint8" if precision == "binary" else precision


def restored(kept: Stored, precision: Precision) -> Vectors:
    """The vectors that stored ones stand for, (text, dim), of unit length."""
    floats = as_floats(kept)
    return floats if precision in ("float32", "float16") else normalized(floats)
