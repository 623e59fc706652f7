"""Text keys: which texts count as the same, whatever their case, spaces and punctuation; and the positives of an anchor by key."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

_DROPPED: Final = ("P", "Z", "C", "Sk")  # punctuation, spaces, controls, and the backtick of tokenised quotes


class _Fold(dict[int, str | None]):
    """A translation table that looks up each character once."""

    def __missing__(self, code: int) -> str | None:
        self[code] = None if unicodedata.category(chr(code)).startswith(_DROPPED) else chr(code)
        return self[code]


_FOLD: Final = _Fold()


def fold(text: str) -> str:
    """A text's letters, digits and symbols alone, in one case (NFKC): tokenised and plain spellings of it are equal."""
    return unicodedata.normalize("NFKC", text).casefold().translate(_FOLD)


def text_key(text: str) -> str:
    """The folded text, equal for texts that count as the same. A text of punctuation alone is its own key."""
    return fold(text) or text


Positives = Mapping[str, frozenset[str]]
"""The key of an anchor -> the keys of its positives (see `text_key`)."""


def positives_of(pairs: Iterable[tuple[str, str]]) -> Positives:
    """All positives of every anchor in these pairs of anchor and positive."""
    positives: dict[str, set[str]] = defaultdict(set)
    for anchor, positive in pairs:
        positives[text_key(anchor)].add(text_key(positive))
    return {anchor: frozenset(texts) for anchor, texts in positives.items()}


def several_positives(pairs: Iterable[tuple[str, str]]) -> Positives:
    """The same, of the anchors that have two positives or more. In most data sets these are few or none."""
    return {anchor: texts for anchor, texts in positives_of(pairs).items() if len(texts) > 1}
