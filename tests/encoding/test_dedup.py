"""Equal texts are computed once, and every one of them has its rows in the result."""

from __future__ import annotations

import numpy as np

from unmask.encoding.dedup import UniqueTexts, unique
from unmask.encoding.tokenization import TokenizedText


def text(*ids: int, spans: tuple[tuple[int, int], ...] = (), words: str = "") -> TokenizedText:
    return TokenizedText(ids, 0, spans=spans, text=words)


def test_unique_is_numpys_in_order_of_appearance() -> None:
    first, inverse = unique("banana")
    assert first.tolist() == [0, 1, 2] and inverse.tolist() == [0, 1, 2, 1, 2, 1]
    assert [part.tolist() for part in unique([])] == [[], []]


def test_vectors_of_distinct_texts_are_expanded_to_all_texts() -> None:
    spans = ((0, 1), (1, 2))
    distinct = UniqueTexts([text(5), text(6, 7, spans=spans), text(5), text(6, 7), text(6, 7, spans=spans)])
    assert [len(text.spans) for text in distinct.texts] == [0, 2, 0] and distinct.rows == 4
    assert distinct.rows_of([2, 1]).tolist() == [3, 1, 2]
    assert distinct.expand(np.array([0, 11, 12, 20])).tolist() == [0, 11, 12, 0, 20, 11, 12]


def test_lexical_designs_distinguish_texts_by_their_words() -> None:
    texts = [text(5, words="a"), text(5, words="b")]
    assert len(UniqueTexts(texts).texts) == 1 and len(UniqueTexts(texts, by_words=True).texts) == 2
