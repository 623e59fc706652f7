"""Packing: arrays of numbers inside the JSON of a page, short and quick to read. The page's `unpack` reads them."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.io.terminal import visible

_KINDS = {"uint8": "u8", "uint16": "u16", "uint32": "u32", "float32": "f32"}
NONE16, NONE32 = 2**16 - 1, 2**32 - 1
"""Places that stand for "none"."""


def packed(values: NDArray[Any]) -> dict[str, str]:
    """An array as JSON: its type and its bytes in base64, little endian, row by row."""
    plain = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False)
    return {"type": _KINDS[values.dtype.name], "data": base64.b64encode(plain.tobytes()).decode("ascii")}


def shares(values: NDArray[Any]) -> NDArray[np.uint16]:
    """Shares from 0 to 1 in 16 bits, rounded to 1/65535."""
    return np.asarray(np.rint(np.clip(values, 0, 1) * NONE16), np.uint16)


def as_script(content: Any) -> str:
    r"""JSON that may stand inside a `<script>` element: no `<` can end it. Nothing in its strings is hidden or turns their direction."""
    text = json.dumps(_seen(content), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _seen(content: Any) -> Any:
    if isinstance(content, str):
        return visible(content, keep="\n\t")
    if isinstance(content, dict):
        return {key: _seen(value) for key, value in content.items()}
    return [_seen(value) for value in content] if isinstance(content, (list, tuple)) else content
