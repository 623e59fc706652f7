r"""Lines: a stream of UTF-8 in bounded memory. A line that cannot be read is an error that names it, and reading goes on after it.

A line ends with `\n`, `\r\n` or `\r`. A byte-order mark at the start of the stream is no part of the first line.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

_BOM = "\ufeff"
_BREAKS = re.compile(r"(?<=\r)(?!\n)")
_BLOCK = 1 << 20
SHOWN = 200
"""Characters of a bad line that an error shows."""


@dataclass(frozen=True)
class Start:
    """Where reading begins: rows, lines and unpacked bytes that lie before."""

    row: int = 0
    line: int = 0
    offset: int = 0


class BadLine(Exception):
    """A line that cannot be read. told: what follows the name of its file in an error; text: how it begins."""

    def __init__(self, line: int, told: str, text: str) -> None:
        super().__init__(told)
        self.line, self.told, self.text = line, told, text


class Lines(Iterator[str]):
    """Lines with their line breaks. number, offset: of lines and bytes that were read.

    longest: most bytes of a line; None takes any. notes: what the reader of the lines wants to report at their end. Raises BadLine for a
    longer line, and for one that is not UTF-8.
    """

    def __init__(self, stream: BinaryIO, longest: int | None = None) -> None:
        """Begin at the start of the stream."""
        self._stream, self.longest = stream, longest
        self._pieces: deque[str] = deque()
        self.notes: list[str] = []
        self.number = self.offset = 0

    def go_to(self, start: Start) -> None:
        """Begin anew behind so many lines and bytes, which lie ahead."""
        if self._stream.seekable():
            self._stream.seek(start.offset)
            self._pieces.clear()
        else:  # what was read and not given out yet cannot be read again: the start may lie in it
            while self._pieces and self.offset < start.offset:
                self.offset += _size(self._pieces.popleft())
            self._discard(start.offset - self.offset)
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
        """The text up to the next line feed, parted at carriage returns that stand alone."""
        raw = self._stream.readline(-1 if self.longest is None else self.longest + 1)
        if not raw or (self.number == 0 and raw == _BOM.encode()):
            raise StopIteration
        if self.longest is not None and len(raw) > self.longest:
            text = self._too_long(raw)
        else:
            try:
                text = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                text = self._undecodable(raw, error)
        return [piece for piece in _BREAKS.split(text) if piece] if "\r" in text else [text]

    def _too_long(self, raw: bytes) -> str:
        """What is read in place of a line that begins like this. Raises BadLine; a subclass may not."""
        size = sum(map(len, self._blocks_of_line(raw)))
        bad = self._long_line(raw, size)
        self._pass(size)
        raise bad

    def _undecodable(self, raw: bytes, error: UnicodeDecodeError) -> str:
        """What is read in place of a line that is not UTF-8. Raises BadLine; a subclass may not."""
        told = not_utf8(self.number + 1, self.offset + error.start)
        self._pass(len(raw))
        raise BadLine(self.number, told, raw[:SHOWN].decode(errors="replace")) from error

    def _long_line(self, raw: bytes, size: int) -> BadLine:
        told = f", line {self.number + 1}: the line has {size} bytes; {self.longest} are allowed."
        return BadLine(self.number + 1, told, raw[:SHOWN].decode(errors="replace"))

    def _pass(self, size: int) -> None:
        self.offset += size
        self.number += 1

    def _blocks_of_line(self, read: bytes) -> Iterator[bytes]:
        """A line in pieces, the first of which was read."""
        yield read
        while read and not read.endswith(b"\n"):
            read = self._stream.readline(_BLOCK)
            yield read

    def _discard(self, size: int) -> None:
        while size > 0 and (block := self._stream.read(min(size, _BLOCK))):
            size -= len(block)


class UnlimitedLines(Lines):
    """Lines of any length: an array of JSON often stands on one line, and its rows have limits of their own."""

    def __init__(self, stream: BinaryIO, longest: int | None = None) -> None:
        super().__init__(stream)


def not_utf8(line: int, byte: int) -> str:
    """What follows the name of a file in an error."""
    return f" is not UTF-8 text (line {line}, byte {byte}). Save it as UTF-8, or convert it: iconv -f WINDOWS-1252 -t UTF-8."


def _size(piece: str) -> int:
    return len(piece) if piece.isascii() else len(piece.encode("utf-8", "surrogateescape"))
