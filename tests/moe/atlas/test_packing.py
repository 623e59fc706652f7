"""What is packed is what the page unpacks, and no string can leave its script or hide in it."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

from unmask.moe.atlas.aggregate import as_script, packed, quantized_shares

KINDS = {"u8": "u1", "u16": "<u2", "u32": "<u4", "f32": "<f4"}


def unpacked(given: dict[str, str]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(given["data"]), KINDS[given["type"]])


@pytest.mark.parametrize("kind", ["uint8", "uint16", "uint32", "float32", ">u2"])
def test_arrays_come_back_row_by_row(kind: str) -> None:
    values = np.arange(24).reshape(4, 6).astype(kind)
    assert (unpacked(packed(values.T)) == values.T.reshape(-1)).all()


def test_shares_are_exact_to_16_bits_and_stay_between_0_and_1() -> None:
    values = np.array([-0.1, 0.0, 0.25, 1 / 3, 1.0, 1.1])
    assert np.allclose(quantized_shares(values) / 65535, np.clip(values, 0, 1), atol=1e-5)


def test_no_string_ends_the_script() -> None:
    hostile = ["</script><script>alert(1)</script>", "<!--", "\u2028\u2029", "\u202eabc", "\x1b[31m\x00", "line\nbreak\ttab"]
    text = as_script({"a": hostile, "b": (1, 0.5, None, True)})
    assert "<" not in text and "\u202e" not in text and "\x00" not in text
    found = json.loads(text)
    assert found["b"] == [1, 0.5, None, True]
    assert found["a"] == [*hostile[:2], "\\u2028\\u2029", "\\u202eabc", "\\x1b[31m\\x00", hostile[5]]
