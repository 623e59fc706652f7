"""Lines of a csv, in bounded memory. A bad line costs its own record, and the rest of a quoted field is never taken for rows."""

from __future__ import annotations

import re
from enum import Enum

from unmask.io.lines import SHOWN, BadLine, Lines, not_utf8
from unmask.io.text_files import peek

_QUOTED = re.compile('"[^"]*"')
_DECLARED = re.compile("sep=(.)", re.IGNORECASE)
_ESCAPED = re.compile("[\udc80-\udcff]")


class _Place(Enum):
    """Where a text of a csv ends: before a field, in a field without quotes, in a quoted one, or behind a quote in a quoted one."""

    BEFORE, PLAIN, QUOTED, BEHIND = range(4)


class Quotes:
    """Whether a text that is read in pieces ends in a quoted field. inside: whether it begins in one."""

    def __init__(self, delimiter: str, inside: bool) -> None:
        self._ends = f"{delimiter}\r\n"
        self._tokens = re.compile(f'"|[{self._ends}]|[^"{self._ends}]+')
        self._place = _Place.QUOTED if inside else _Place.BEFORE

    @property
    def inside(self) -> bool:
        """Whether the text so far ends in a quoted field."""
        return self._place is _Place.QUOTED

    def read(self, text: str) -> None:
        """Read the next piece."""
        for token in self._tokens.finditer(text):
            self._place = self._after(text[token.start()])

    def _after(self, first: str) -> _Place:
        if self._place is _Place.QUOTED:
            return _Place.BEHIND if first == '"' else _Place.QUOTED
        if first == '"':  # it opens a field, or is half of a doubled quote; in a plain field it means nothing
            return _Place.PLAIN if self._place is _Place.PLAIN else _Place.QUOTED
        return _Place.BEFORE if first in self._ends else _Place.PLAIN


class CsvLines(Lines):
    """Lines for a csv reader. bad: the first bad line of a record.

    In place of a line that is too long, the reader is given a short one that leaves it in the same state. Bytes that are not UTF-8 are
    given as surrogates. quoted: whether fields may be quoted; delimiter: a comma, unless the header has none and has a semicolon or a tab.
    """

    delimiter, quoted = ",", True
    bad: BadLine | None = None
    _last: str | None = None
    _inside = _escaped = False

    def detect_delimiter(self) -> None:
        """Set the delimiter by the header. Nothing has been read yet."""
        head = peek(self._stream).decode("utf-8", "replace").lstrip("\ufeff\r\n")
        header = _QUOTED.sub("", re.split("[\r\n]", head, maxsplit=1)[0])
        declared = _DECLARED.fullmatch(header)
        self.delimiter = declared[1] if declared else next((mark for mark in ",;\t" if mark in header), ",")

    def begin_record(self) -> None:
        """Note that the next line begins a record."""
        self.bad = self._last = None

    def finish_record(self) -> None:
        """Skip what is left of a record that the reader gave up. An open quote runs to the end of the file."""
        if not self.quoted:
            return
        quotes = Quotes(self.delimiter, self._inside)
        line = self._last
        while line is not None:
            quotes.read(line)
            line = next(self, None) if quotes.inside else None

    def __next__(self) -> str:
        """The next line."""
        self._inside, begin = self._last is not None, self.offset
        self._last = line = super().__next__()
        if self._escaped and self.bad is None and (found := _ESCAPED.search(line)):
            byte = begin + len(line[: found.start()].encode())
            text = line[:SHOWN].encode("utf-8", "surrogateescape").decode(errors="replace")
            self.bad = BadLine(self.number, not_utf8(self.number, byte), text)
        return line

    def _undecodable(self, raw: bytes, error: UnicodeDecodeError) -> str:
        self._escaped = True
        return raw.decode("utf-8", "surrogateescape")

    def _too_long(self, raw: bytes) -> str:
        quotes, size = Quotes(self.delimiter, self._inside), 0
        for block in self._blocks_of_line(raw):
            quotes.read(block.decode("latin-1"))
            size += len(block)
        self.bad = self.bad or self._long_line(raw, size)
        stand_in = "x\n" if quotes.inside == self._inside or not self.quoted else '"\n'
        self.offset += size - len(stand_in)
        return stand_in


class TsvLines(CsvLines):
    """Lines of a table with tabs. Its fields are not quoted: a quote is a character like any other."""

    delimiter, quoted = "\t", False

    def detect_delimiter(self) -> None:
        """It is a tab."""
