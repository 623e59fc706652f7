"""Equal texts are computed once, and every one of them has its rows in the result."""

from __future__ import annotations

import numpy as np

from unmask.encoding.copies import Copies
from unmask.encoding.tokenization import TokenizedText


def text(*ids: int, spans: tuple[tuple[int, int], ...] = (), kept: str = "") -> TokenizedText:
    return TokenizedText(ids, 0, spans=spans, kept=kept)


def test_each_copy_gets_the_rows_of_its_text() -> None:
    spans = ((0, 1), (1, 2))
    texts = [text(5), text(6, 7, spans=spans), text(5), text(6, 7), text(6, 7, spans=spans)]
    copies = Copies(texts, by_words=False)
    assert copies.places == [[0, 2], [1, 4], [3]] and copies.rows == 7
    result = np.full((7, 1), -1, np.float32)
    for batch in ([2, 1], [0]):
        owners = copies.owners(batch)
        assert owners == ([2, 1, 1] if batch == [2, 1] else [0])
        values = np.array([[10 * owner + place] for place, owner in enumerate(owners)], np.float32)
        copies.put(result, batch, values)
    assert result[:, 0].tolist() == [0, 11, 12, 0, 20, 11, 12]


def test_words_tell_texts_of_equal_tokens_apart() -> None:
    texts = [text(5, kept="a"), text(5, kept="b")]
    assert len(Copies(texts, by_words=False).unique) == 1
    assert len(Copies(texts, by_words=True).unique) == 2
