"""Deduplication: texts with equal tokens are computed once."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.encoding.tokenization import TokenizedText

Indices = NDArray[np.int64]


def unique(keys: Iterable[Hashable]) -> tuple[Indices, Indices]:
    """The index of the first occurrence of each distinct key, in order, and for each key the index of its distinct one.

    As `np.unique(return_index=True, return_inverse=True)`, for any hashable keys and without sorting.
    """
    ids: dict[Hashable, int] = {}
    inverse = np.array([ids.setdefault(key, len(ids)) for key in keys], np.int64)
    return np.unique(inverse, return_index=True)[1], inverse


class UniqueTexts:
    """Distinct tokenized texts, and the rows of their vectors. A text with spans has a vector for each span.

    by_words: texts with equal tokens but different words count as distinct, since lexical vectors depend on the words.
    """

    def __init__(self, texts: Sequence[TokenizedText], by_words: bool = False) -> None:
        self.first, self.inverse = unique(
            (text.ids, text.start, text.spans, text.parts, text.text if by_words else "") for text in texts
        )
        self.texts = [texts[index] for index in self.first]
        self._offsets = np.cumsum([0, *(len(text.spans) or 1 for text in self.texts)])

    @property
    def rows(self) -> int:
        """Number of vectors of the distinct texts."""
        return int(self._offsets[-1])

    def rows_of(self, indices: Iterable[int]) -> Indices:
        """The rows of the vectors of these distinct texts."""
        ranges = [np.arange(self._offsets[index], self._offsets[index + 1]) for index in indices]
        return np.concatenate(ranges) if ranges else np.zeros(0, np.int64)

    def expand(self, vectors: NDArray[Any]) -> NDArray[Any]:
        """The vectors of every text, copied from the distinct texts."""
        return vectors if len(self.texts) == len(self.inverse) else vectors[self.rows_of(self.inverse)]
