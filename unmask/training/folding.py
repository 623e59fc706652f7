"""Folding: which texts count as the same, whatever their case, spaces and punctuation."""

from __future__ import annotations

import unicodedata
from typing import Final

_DROPPED: Final = ("P", "Z", "C", "Sk")  # punctuation, spaces, controls, and the backtick of tokenised quotes


class _Fold(dict[int, str | None]):
    """A translation table that learns each character once."""

    def __missing__(self, code: int) -> str | None:
        self[code] = None if unicodedata.category(chr(code)).startswith(_DROPPED) else chr(code)
        return self[code]


_FOLD: Final = _Fold()


def fold(text: str) -> str:
    """A text's letters, digits and symbols alone, in one case (NFKC): tokenised and plain spellings of it are equal."""
    return unicodedata.normalize("NFKC", text).casefold().translate(_FOLD)


def text_key(text: str) -> str:
    """What texts share that count as the same: their folded form. A text of signs alone, of which nothing is left, is its own key."""
    return fold(text) or text
