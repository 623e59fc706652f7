"""Text keys: which texts count as the same, whatever their case, spaces, punctuation and titles; the positives of an anchor by key."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
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


Positives = Mapping[str, frozenset[str]]
"""The key of an anchor -> the keys of its positives (see `text_key`)."""


def positives_of(pairs: Iterable[tuple[str, str]]) -> Positives:
    """All positives of every anchor of these pairs of anchor and positive."""
    positives: dict[str, set[str]] = defaultdict(set)
    for anchor, positive in pairs:
        positives[text_key(anchor)].add(text_key(positive))
    return {anchor: frozenset(texts) for anchor, texts in positives.items()}


def several_positives(pairs: Iterable[tuple[str, str]]) -> Positives:
    """The same, of the anchors that have two positives or more. In most data sets these are few or none."""
    return {anchor: texts for anchor, texts in positives_of(pairs).items() if len(texts) > 1}


_SHORTEST: Final = 24  # characters of a folded text: "York" is not "New York" without a title
_LONGEST: Final = 200  # characters of a folded title


def other_forms(positives: Collection[str], pool: Collection[str], plain: Mapping[str, str]) -> Mapping[str, set[str]]:
    """The keys in the pool that are a positive with or without its title, by the key of the positive (see `text_key`).

    plain: the key of title and text -> the key of the text, of documents whose title is known. Otherwise a title is the part before a
    text of 24 characters or more, and it is at most as long as the text. Both collections are sets or dicts.
    """
    forms: dict[str, set[str]] = defaultdict(set)
    for with_title, text in chain(plain.items(), _titled(pool, positives), _titled(positives, pool)):
        for positive, alternative in ((with_title, text), (text, with_title)):
            if positive in positives and alternative in pool:
                forms[positive].add(alternative)
    return forms


def _titled(keys: Collection[str], texts: Collection[str]) -> Iterator[tuple[str, str]]:
    """The keys that may be a title and one of the texts, each with that text."""
    ends = {text[-_SHORTEST:] for text in texts}
    for key in keys:
        if key[-_SHORTEST:] not in ends:
            continue  # nearly all: a large corpus is not cut at every place
        for length in range(1, min(len(key) // 2, len(key) - _SHORTEST, _LONGEST) + 1):
            if key[length:] in texts:
                yield key, key[length:]
