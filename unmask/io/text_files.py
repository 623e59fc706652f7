"""Text files, opened as UTF-8 whatever their byte-order mark says. Files that are not text are named for what they are."""

from __future__ import annotations

import codecs
import io
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from unmask.io.compressed import DAMAGE, open_unpacked
from unmask.io.lines import BadLine

_BLOCK: Final = 1 << 16
_MARKS: Final = (
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_EXCEL: Final = "In a spreadsheet, save the sheet as 'CSV UTF-8'"
_BINARY: Final = (
    (b"PK\x03\x04", "zip", f"a ZIP archive or an Excel workbook. {_EXCEL}; unpack an archive."),
    (b"\xd0\xcf\x11\xe0", "xls", f"an Excel workbook. {_EXCEL}."),
    (b"\x1f\x8b", "gzip", "compressed. Add .gz to its name."),
    (b"\x28\xb5\x2f\xfd", "zstd", "compressed. Add .zst to its name."),
    (b"\xfd7zXZ\x00", "xz", "compressed. Add .xz to its name."),
    (b"PAR1", "parquet", "a parquet file. Rename it to .parquet."),
    (b"ARROW1", "feather", "a feather file. Rename it to .feather."),
    (b"version https://git-lfs", "lfs", "a pointer of Git LFS, and the data are elsewhere. Run: git lfs pull"),
)


def open_text(file: Path) -> BinaryIO:
    """The bytes of a text file as UTF-8, decompressed. Reading may raise one of DAMAGE; raises BadLine for a file that is not text."""
    stream = open_unpacked(file)
    try:
        head = peek(stream)
    except DAMAGE:  # reading from the beginning raises it again
        stream.close()
        return open_unpacked(file)
    if told := explain_binary(head, expected="text"):
        stream.close()
        raise BadLine(1, told, "")
    encoding = next((name for mark, name in _MARKS if head.startswith(mark)), None)
    return stream if encoding is None else cast(BinaryIO, io.BufferedReader(_Recoded(stream, encoding), _BLOCK))


def peek(stream: BinaryIO) -> bytes:
    """Some bytes that come next, without reading them; none if the stream cannot show them."""
    shown: bytes = stream.peek(_BLOCK) if hasattr(stream, "peek") else b""
    return shown


def explain_binary(head: bytes, expected: str) -> str | None:
    """What follows the name of a file that begins like this, if its beginning says that it is not what its name says."""
    for magic, kind, told in _BINARY:
        if head.startswith(magic) and kind != expected:
            return f" is {told}"
    if expected == "text" and (head[1:4:2] == b"\0\0" or (head[:4:2] == b"\0\0" and not head.startswith(codecs.BOM_UTF32_BE))):
        return " looks like UTF-16 without a byte-order mark. Convert it: iconv -f UTF-16LE -t UTF-8 (or UTF-16BE)."
    return None


class _Recoded(io.RawIOBase):
    """A stream of another encoding, as UTF-8."""

    def __init__(self, stream: BinaryIO, encoding: str) -> None:
        self._stream, self._encoding, self._pending = stream, encoding, b""
        self._decoder = codecs.getincrementaldecoder(encoding)()

    def readable(self) -> bool:
        """It is made for reading."""
        return True

    def close(self) -> None:
        """Close the stream below, too."""
        self._stream.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        """Recode some bytes, or none at the end. Raises one of DAMAGE."""
        while not self._pending:
            block = self._stream.read(_BLOCK)
            try:
                self._pending = self._decoder.decode(block, final=not block).encode()
            except UnicodeDecodeError as error:
                raise EOFError(f"it is not {self._encoding.upper()} text ({error.reason})") from error
            if not block and not self._pending:
                return 0
        data, self._pending = self._pending[: len(buffer)], self._pending[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)
