"""Precisions of vectors that are written. Types, the command and errors take them from here."""

from __future__ import annotations

from typing import Final, Literal, get_args

Precision = Literal["float32", "float16", "int8", "binary"]
PRECISIONS: Final = get_args(Precision)
