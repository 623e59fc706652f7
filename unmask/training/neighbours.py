"""Neighbours: the texts that share the most telling words with a text, by the cosine of TF-IDF vectors.

Words of many texts are left out. They tell little, and with them a search would read all texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_WORDS = r"(?u)\w+|[^\w\s]"  # a text that is not empty has at least one
_FEW = 100  # texts that any word may be in; beyond, a twentieth of all texts


class Neighbours:
    """The nearest texts of each text, by words: no model is asked. A search reads only texts that share a telling word."""

    def __init__(self, texts: Sequence[str]) -> None:
        """Count the words of all texts, none of which is empty."""
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.preprocessing import normalize

        counted = TfidfVectorizer(token_pattern=_WORDS, sublinear_tf=True, norm=None, dtype=np.float32).fit_transform(texts)
        telling = counted[:, counted.getnnz(axis=0) <= max(_FEW, len(texts) // 20)]
        self._rows: Any = normalize(telling) if telling.shape[1] else telling
        self._by_word: Any = self._rows.T.tocsr()

    def nearest(self, place: int, count: int, free: NDArray[np.bool_]) -> list[int]:
        """Places of at most `count` free texts that share a word with the text at a place, the nearest first.

        free: for each text, whether it may be chosen, of shape (text,).
        """
        shared = self._rows[place] @ self._by_word
        may = free[shared.indices]
        places, cosines = shared.indices[may], shared.data[may]
        return [int(other) for other in places[np.lexsort((places, -cosines))][:count]]
