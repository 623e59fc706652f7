"""Snippets: the passage of a text that holds most words of a query."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from unmask.encoding.words import composed, keyword_spans

_READ = 1_000_000
"""Characters of a text that are looked at: a text of many megabytes must not hold up the answer."""

Stem = Callable[[str], str]


def snippet(text: str, query: str, length: int, stem: Stem = str.casefold) -> str:
    """At most `length` characters of a text, on one line, around different words of the query: those with most letters in all.

    stem: gives the form in which words are compared. Without a word of the query, it is the beginning of the text. A cut is
    marked by three dots.
    """
    text = " ".join(text[:_READ].split())
    if len(text) <= length:
        return text
    form = cache(lambda word: stem(composed(word)))  # neighbours in scripts without spaces come again and again
    wanted = {form(query[start:end]) for start, end in keyword_spans(query)}
    words = ((start, end, form(text[start:end])) for start, end in keyword_spans(text))
    found = [word for word in words if word[2] in wanted]
    start, end = _densest(found, length) or (0, 0)
    return _cut(text, start, end, length)


def _densest(found: list[tuple[int, int, str]], length: int) -> tuple[int, int] | None:
    """Where the first of the windows whose different words have most letters begins and ends: long words say more than short ones."""
    best: tuple[int, int] | None = None
    most, letters, first = 0, 0, 0
    counts: dict[str, int] = {}
    for start, end, form in found:
        counts[form] = counts.get(form, 0) + 1
        letters += len(form) if counts[form] == 1 else 0
        while end - found[first][0] > length and found[first][0] < start:
            gone = found[first][2]
            counts[gone] -= 1
            if not counts[gone]:
                letters -= len(gone)
            first += 1
        if letters > most:
            most, best = letters, (found[first][0], end)
    return best


def _cut(text: str, start: int, end: int, length: int) -> str:
    """`length` characters with [start, end) near their middle, from word to word, dots where text is left out."""
    begin = max(0, min(start - max(0, length - (end - start)) // 2, len(text) - length))
    if begin:
        begin = _next_word(text, begin, start)
    before = "..." if begin else ""
    stop = min(len(text), begin + length - len(before))
    if stop == len(text):
        return before + text[begin:]
    stop -= 3
    space = text.rfind(" ", max(begin, stop - 20), stop + 1)
    return f"{before}{text[begin : space if space > max(begin, end - 1) else stop].rstrip()}..."


def _next_word(text: str, begin: int, start: int) -> int:
    """The beginning of a word at or after `begin`, but not after `start`."""
    space = text.find(" ", begin - 1, begin + 20)
    return space + 1 if 0 <= space < start else begin
