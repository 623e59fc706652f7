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
_SHOWN = 200


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

    longest: most bytes of a line; None takes any. Raises BadLine for a longer line, and for one that is not UTF-8.
    """

    def __init__(self, stream: BinaryIO, longest: int | None = None) -> None:
        """Begin at the start of the stream."""
        self._stream, self._longest = stream, longest
        self._pieces: deque[str] = deque()
        self.number = self.offset = 0

    def go_to(self, start: Start) -> None:
        """Begin anew behind so many lines and bytes, which lie ahead."""
        if self._stream.seekable():
            self._stream.seek(start.offset)
        else:
            self._discard(start.offset - self.offset - sum(len(piece.encode()) for piece in self._pieces))
        self._pieces.clear()
        self.number, self.offset = start.line, start.offset

    def __next__(self) -> str:
        """The next line."""
        if not self._pieces:
            self._pieces.extend(self._read())
        piece = self._pieces.popleft()
        self.offset += len(piece.encode())
        if self.number == 0:
            piece = piece.removeprefix(_BOM)
        self.number += 1
        return piece

    def _read(self) -> list[str]:
        """The text up to the next line feed, parted at carriage returns that stand alone."""
        raw = self._stream.readline(-1 if self._longest is None else self._longest + 1)
        if not raw or (self.number == 0 and raw == _BOM.encode()):
            raise StopIteration
        begin, number = self.offset, self.number + 1
        if self._longest is not None and len(raw) > self._longest:
            size = len(raw) + self._rest_of_line(raw)
            self._pass(size)
            told = f", line {number}: the line has {size} bytes; {self._longest} are allowed."
            raise BadLine(number, told, raw[:_SHOWN].decode(errors="replace"))
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            self._pass(len(raw))
            told = f" is not UTF-8 text (line {number}, byte {begin + error.start})."
            raise BadLine(number, told, raw[:_SHOWN].decode(errors="replace")) from error
        return [piece for piece in _BREAKS.split(text) if piece] if "\r" in text else [text]

    def _pass(self, size: int) -> None:
        self.offset += size
        self.number += 1

    def _rest_of_line(self, read: bytes) -> int:
        """Skip what is left of a line; its size in bytes."""
        size = 0
        while read and not read.endswith(b"\n"):
            read = self._stream.readline(_BLOCK)
            size += len(read)
        return size

    def _discard(self, size: int) -> None:
        while size > 0 and (block := self._stream.read(min(size, _BLOCK))):
            size -= len(block)
