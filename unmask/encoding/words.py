"""Words of a text in any script: runs of letters and digits, with the combining marks that follow them.

In Hindi, Tamil and Thai such marks are vowels, among others. Python's `\\w` leaves them out, and would cut a word at each. A letter and
its mark may be one character or two, so words are compared in NFC.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import Final

_WITHOUT_SPACES: Final = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f"  # Burmese and its neighbours
    "\u1780-\u17ff"  # Khmer
    "\u3005-\u3007\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f\U0001b000-\U0001b16f"  # kana, and signs that repeat a character
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
)
_UNSPACED: Final = re.compile(f"[{_WITHOUT_SPACES}]")
_PART: Final = re.compile(f"(?P<run>[{_WITHOUT_SPACES}]+)|[^{_WITHOUT_SPACES}]+")


def words(text: str) -> list[str]:
    """The words of a text in NFC, in order. An underscore ends a word."""
    return _word_pattern(r"[^\W_]").findall(composed(text))


def keyword_spans(text: str) -> Iterator[tuple[int, int]]:
    """Where the keywords of a text begin and end: its words, but in scripts without spaces every two neighbours.

    Underscores belong to words, as in the name of a function.
    Chinese, Japanese, Thai, Lao, Khmer and Burmese do not mark words. A run of their characters becomes overlapping pairs, as in
    Lucene's CJKAnalyzer, which needs no dictionary.
    """
    words = _word_pattern(r"\w").finditer(text)
    if not _UNSPACED.search(text):  # most texts
        yield from (word.span() for word in words)
        return
    for word in words:
        for part in _PART.finditer(text, *word.span()):
            start, end = part.span()
            if part["run"] and end - start > 2:
                yield from ((index, index + 2) for index in range(start, end - 1))
            else:
                yield start, end


def composed(text: str) -> str:
    """A text in NFC: each letter is one character with its mark, where Unicode has that."""
    return unicodedata.normalize("NFC", text)


@cache
def _word_pattern(letter: str) -> re.Pattern[str]:
    """A word of such letters with the combining marks that follow them."""
    marks = "".join(mark for mark in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(mark) in ("Mn", "Mc"))
    return re.compile(rf"{letter}(?:{letter}|[{marks}])*")
