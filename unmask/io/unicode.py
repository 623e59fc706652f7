"""Texts that no encoding can hold: Python strings may have lone halves of surrogate pairs, as broken files do."""

from __future__ import annotations

import re
from typing import Final

_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def encodable(text: str) -> str:
    """The text as an encoding can hold it: both halves of a surrogate pair become their character, and a lone half U+FFFD."""
    try:
        text.encode("utf-8")
        return text
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def without_surrogates(text: str) -> str:
    """The text with U+FFFD for each surrogate, which no tokenizer can read. Unlike with `encodable`, indices of characters stay valid."""
    return _SURROGATE.sub("\ufffd", text)
