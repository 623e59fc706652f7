"""Snippets: the passage of a text that shows best why it answers a query, as plain text on one line."""

from __future__ import annotations

from unmask.encoding.words import composed, keyword_spans

_READ = 1_000_000
"""Characters of a text that are searched: a text of many megabytes must not hold up the answer."""


def snippet(text: str, query: str, length: int) -> str:
    """At most `length` characters of a text, on one line, around different words of the query: those with most letters in all.

    Without a word of the query, it is the beginning of the text. A cut is marked by three dots.
    """
    text = " ".join(text[:_READ].split())
    if len(text) <= length:
        return text
    terms = {_form(query[start:end]) for start, end in keyword_spans(query)}
    matches = [(start, end, form) for start, end in keyword_spans(text) if (form := _form(text[start:end])) in terms]
    return _cut(text, *_best_window(matches, length), length)


def _form(word: str) -> str:
    return composed(composed(word).casefold())


def _best_window(matches: list[tuple[int, int, str]], length: int) -> tuple[int, int]:
    """Start and end of the first window whose different words have most letters: long words say more than short ones."""
    best, best_count, first = (0, 0), 0, 0
    for last, (_, end, _) in enumerate(matches):
        while first < last and end - matches[first][0] > length:
            first += 1
        letters = sum(map(len, {form for _, _, form in matches[first : last + 1]}))
        if letters > best_count:
            best_count, best = letters, (matches[first][0], end)
    return best


def _cut(text: str, start: int, end: int, length: int) -> str:
    """`length` characters with [start, end) near their middle, from word to word, with dots where text is left out."""
    begin = max(0, min(start - max(0, length - (end - start)) // 2, len(text) - length))
    if begin:
        space = text.find(" ", begin - 1, begin + 20)
        begin = space + 1 if 0 <= space < start else begin
    before = "..." if begin else ""
    stop = min(len(text), begin + length - len(before))
    if stop == len(text):
        return before + text[begin:]
    stop -= 3
    space = text.rfind(" ", max(begin, stop - 20), stop + 1)
    return f"{before}{text[begin : space if space > max(begin, end - 1) else stop].rstrip()}..."
