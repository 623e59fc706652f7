"""Names: what a token is called, from where it stands in a text. A record holds texts and places, and needs no tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.moe.atlas.tally import Tally

INSIDE = "·"
"""Stands before a token that continues a word."""
_BLANKS = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "⏎"}


def named_ids(tally: Tally, texts: Sequence[str], spans: Sequence[NDArray[Any]]) -> tuple[list[str], NDArray[np.int64]]:
    """A name for each token id of a record, as it is first seen; and for each token, the place of its id in the names."""
    _, seen, codes = np.unique(tally.ids, return_index=True, return_inverse=True)
    names = []
    for token in seen:
        text, position = int(tally.texts[token]), int(tally.positions[token])
        names.append(token_name(texts[text], *(int(place) for place in spans[text][position])))
    return names, codes.reshape(-1)


def token_name(text: str, first: int, last: int) -> str:
    """What the characters [first, last) of a text are called: blanks by signs, and a piece inside a word with a dot before it."""
    piece = text[first:last]
    if not piece.strip():
        return "".join(_BLANKS.get(blank, "␣") for blank in piece) or "∅"
    inside = first > 0 and piece[0].isalnum() and text[first - 1].isalnum()
    return (INSIDE if inside else "") + piece.strip()


def pieces(text: str, spans: NDArray[Any], positions: NDArray[Any], whole: bool) -> list[str]:
    """A text cut at its recorded tokens: what stands before each, the token itself, and at last what follows.

    A token that shares a character with the one before it (a part of an emoji, say) is empty. whole: whether the rest is shown.
    """
    parts, at = [], 0
    for position in positions:
        first, last = (int(place) for place in spans[position])
        first = max(first, at)
        parts += [text[at:first], text[first:last]]
        at = max(at, last)
    return [*parts, text[at:] if whole else ""]
