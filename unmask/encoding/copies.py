"""Copies: texts with equal tokens are computed once, and each of them gets the vectors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from unmask.encoding.tokenization import TokenizedText


class Copies:
    """Texts without their copies, and the rows of a result that belong to each. A text with spans has a row for each of them.

    unique: one text of each kind. places: for each of these, the places of all its copies. by_words: texts with equal tokens but other
    words are no copies. Lexical vectors need this, since they depend on the words.
    """

    def __init__(self, texts: Sequence[TokenizedText], by_words: bool) -> None:
        same: dict[tuple[object, ...], list[int]] = {}
        for place, text in enumerate(texts):
            same.setdefault((text.ids, text.start, text.spans, text.parts, text.kept if by_words else ""), []).append(place)
        self.places = list(same.values())
        self.unique = [texts[places[0]] for places in self.places]
        self._vectors = [_vectors_of(text) for text in self.unique]
        self._first_row = np.cumsum([0, *map(_vectors_of, texts)])

    @property
    def rows(self) -> int:
        """The number of vectors of all texts."""
        return int(self._first_row[-1])

    def owners(self, batch: Sequence[int]) -> list[int]:
        """For each vector of a batch of unique texts, the text that it is of."""
        return [index for index in batch for _ in range(self._vectors[index])]

    def put(self, result: NDArray[np.float32], batch: Sequence[int], values: NDArray[np.float32]) -> None:
        """Write the vectors of a batch of unique texts into the rows of all their copies."""
        ends = np.cumsum([self._vectors[index] for index in batch])[:-1]
        for index, own in zip(batch, np.split(values, ends), strict=True):
            result[self._first_row[self.places[index]][:, None] + np.arange(len(own))] = own


def _vectors_of(text: TokenizedText) -> int:
    return len(text.spans) or 1
