r"""Lines of a UTF-8 stream in bounded memory. A line that cannot be read is an error that names it; the next lines can still be read.

A line ends with `\n`, `\r\n` or `\r`. A byte-order mark at the start of the stream is skipped.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from unmask.io.compressed import BadLine, peek

_BOM = "\ufeff"
_BREAKS = re.compile(r"(?<=\r)(?!\n)")
_BLOCK = 1 << 20
_QUOTED = re.compile('"[^"]*"')
_SEPARATOR_LINE = re.compile("sep=(.)", re.IGNORECASE)
_SURROGATE = re.compile("[\udc80-\udcff]")
EXCERPT = 200
"""Characters of a bad line that an error shows."""


@dataclass(frozen=True)
class Start:
    """Where reading starts: rows, lines and decompressed bytes before it."""

    row: int = 0
    line: int = 0
    offset: int = 0


class Lines(Iterator[str]):
    """Lines with their line breaks. number, offset: of lines and bytes read so far.

    longest: most bytes of a line; None for no limit. Raises BadLine for a longer line, and for one that is not UTF-8.
    """

    def __init__(self, stream: BinaryIO, longest: int | None = None) -> None:
        self._stream, self.longest = stream, longest
        self._pieces: deque[str] = deque()
        self.number = self.offset = 0

    def seek(self, start: Start) -> None:
        """Continue at a start further on."""
        if self._stream.seekable():
            self._stream.seek(start.offset)
            self._pieces.clear()
        else:  # pieces that were read already cannot be read again: the start may lie in them
            while self._pieces and self.offset < start.offset:
                self.offset += _size(self._pieces.popleft())
            ahead = start.offset - self.offset
            while ahead > 0 and (block := self._stream.read(min(ahead, _BLOCK))):
                ahead -= len(block)
        self.number, self.offset = start.line, start.offset

    def __next__(self) -> str:
        """The next line."""
        if not self._pieces:
            self._pieces.extend(self._read())
        piece = self._pieces.popleft()
        self.offset += _size(piece)
        if self.number == 0:
            piece = piece.removeprefix(_BOM)
        self.number += 1
        return piece

    def _read(self) -> list[str]:
        """The text up to the next line feed, split at carriage returns without one."""
        raw = self._stream.readline(-1 if self.longest is None else self.longest + 1)
        if not raw or (self.number == 0 and raw == _BOM.encode()):
            raise StopIteration
        if self.longest is not None and len(raw) > self.longest:
            size, block = len(raw), raw
            while block and not block.endswith(b"\n"):
                block = self._stream.readline(_BLOCK)
                size += len(block)
            reason = f", line {self.number + 1}: the line has {size} bytes; {self.longest} are allowed."
            raise self._skip(raw, size, reason)
        try:
            text = self._decode(raw)
        except UnicodeDecodeError as error:
            raise self._skip(raw, len(raw), not_utf8(self.number + 1, self.offset + error.start)) from error
        return [piece for piece in _BREAKS.split(text) if piece] if "\r" in text else [text]

    def _decode(self, raw: bytes) -> str:
        return raw.decode("utf-8")

    def _skip(self, raw: bytes, size: int, reason: str) -> BadLine:
        self.offset += size
        self.number += 1
        return BadLine(self.number, reason, raw[:EXCERPT].decode(errors="replace"))


class UnlimitedLines(Lines):
    """Lines of any length: an array of JSON is often one line, and its rows are limited separately."""

    def __init__(self, stream: BinaryIO, longest: int | None = None) -> None:
        super().__init__(stream)


class CsvLines(Lines):
    """Lines for a csv reader, which limits the length of fields. Bytes that are not UTF-8 arrive as surrogates.

    bad: the first line of the current record that is not UTF-8. is_quoted: whether fields may be quoted. delimiter: a comma, unless the
    header has none and has a semicolon or a tab.
    """

    delimiter, is_quoted = ",", True
    bad: BadLine | None = None
    _quotes = 0

    def __init__(self, stream: BinaryIO, longest: int | None = None) -> None:
        super().__init__(stream)
        self.longest_field = longest

    def detect_delimiter(self) -> None:
        """Set the delimiter by the header. Nothing has been read yet."""
        head = peek(self._stream).decode("utf-8", "replace").lstrip("\ufeff\r\n")
        header = _QUOTED.sub("", re.split("[\r\n]", head, maxsplit=1)[0])
        declared = _SEPARATOR_LINE.fullmatch(header)
        self.delimiter = declared[1] if declared else next((mark for mark in ",;\t" if mark in header), ",")

    def begin_record(self) -> None:
        """Note that the next line starts a record."""
        self.bad, self._quotes = None, 0

    def finish_record(self) -> None:
        """Skip the rest of a record that the reader gave up, so that the rest of a quoted field is never taken for rows."""
        while self.is_quoted and self._quotes % 2 and next(self, None) is not None:
            pass

    def __next__(self) -> str:
        """The next line."""
        offset = self.offset
        line = super().__next__()
        self._quotes += line.count('"')
        if self.bad is None and not line.isascii() and (match := _SURROGATE.search(line)):
            byte = offset + len(line[: match.start()].encode())
            text = line[:EXCERPT].encode("utf-8", "surrogateescape").decode(errors="replace")
            self.bad = BadLine(self.number, not_utf8(self.number, byte), text)
        return line

    def _decode(self, raw: bytes) -> str:
        return raw.decode("utf-8", "surrogateescape")


class TsvLines(CsvLines):
    """Lines of a table with tabs. Fields are not quoted: a quote is a character like any other."""

    delimiter, is_quoted = "\t", False

    def detect_delimiter(self) -> None:
        """The delimiter is a tab."""


def not_utf8(line: int, byte: int) -> str:
    """Continues the name of a file in an error."""
    return f" is not UTF-8 text (line {line}, byte {byte}). Save it as UTF-8, or convert it: iconv -f WINDOWS-1252 -t UTF-8."


def _size(piece: str) -> int:
    return len(piece) if piece.isascii() else len(piece.encode("utf-8", "surrogateescape"))
