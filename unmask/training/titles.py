"""Titles: a document is the same with its title before its text and without. One file may join the two, and another may not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from typing import Final

_SHORTEST: Final = 24  # characters of a folded text: "York" is not "New York" without a title
_LONGEST: Final = 200  # characters of a folded title


def other_forms(positives: Collection[str], pool: Collection[str], plain: Mapping[str, str]) -> Mapping[str, set[str]]:
    """The keys in the pool that are a positive with or without its title, by the key of the positive (see `text_key`).

    plain: the key of title and text -> the key of the text, of documents whose title is known. Where it is not, a title is
    what stands before a text of 24 characters or more, and it is at most as long as the text. Both collections are sets or dicts.
    """
    forms: dict[str, set[str]] = defaultdict(set)
    for with_title, text in chain(plain.items(), _titled(pool, positives), _titled(positives, pool)):
        for positive, other in ((with_title, text), (text, with_title)):
            if positive in positives and other in pool:
                forms[positive].add(other)
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
