"""Text files as UTF-8 bytes: decompressed by their ending, recoded by their byte-order mark; files that are not text are named as such."""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

_BLOCK: Final = 1 << 16
COMPRESSIONS: Final = (".gz", ".zst")
DAMAGE: Final = (OSError, EOFError, zlib.error)
"""Errors of reading a damaged compressed file, and of the system."""

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
    (b"\xfd7zXZ\x00", "xz", "compressed with xz. Unpack it, or compress it with gzip or zstd."),
    (b"PAR1", "parquet", "a parquet file. Rename it to .parquet."),
    (b"ARROW1", "feather", "a feather file. Rename it to .feather."),
    (b"version https://git-lfs", "lfs", "a pointer of Git LFS, and the data are elsewhere. Run: git lfs pull"),
)


class BadLine(Exception):
    """A line that cannot be read. reason: continues the name of its file in an error; text: how the line begins."""

    def __init__(self, line: int, reason: str, text: str) -> None:
        super().__init__(reason)
        self.line, self.reason, self.text = line, reason, text


def row_ending(file: Path) -> str:
    """The ending that says how rows are written, in lower case: `.jsonl` of `a.jsonl` and of `A.JSONL.GZ`."""
    name = Path(file.name.lower())
    return Path(name.stem).suffix if name.suffix in COMPRESSIONS else name.suffix


def is_damage(error: BaseException) -> bool:
    """Whether an error says that compressed bytes are broken. An error with a number comes from the system: the disk, the permissions."""
    return isinstance(error, DAMAGE) and not getattr(error, "errno", None)


def open_text(file: Path) -> BinaryIO:
    """The bytes of a text file as UTF-8, decompressed. Reading may raise one of DAMAGE; raises BadLine for a file that is not text."""
    stream = _open_decompressed(file)
    try:
        head = peek(stream)
    except DAMAGE:  # reading from the beginning raises it again
        stream.close()
        return _open_decompressed(file)
    if reason := explain_binary(head, expected="text"):
        stream.close()
        raise BadLine(1, reason, "")
    encoding = next((name for mark, name in _MARKS if head.startswith(mark)), None)
    return stream if encoding is None else cast(BinaryIO, io.BufferedReader(_Recoded(stream, encoding), _BLOCK))


def peek(stream: BinaryIO) -> bytes:
    """Some bytes that come next, without reading them; none if the stream cannot show them."""
    head: bytes = stream.peek(_BLOCK) if hasattr(stream, "peek") else b""
    return head


def explain_binary(head: bytes, expected: str) -> str | None:
    """Continues the name of a file in an error, if its first bytes show that it is not what its name says."""
    for magic, kind, reason in _BINARY:
        if head.startswith(magic) and kind != expected:
            return f" is {reason}"
    if expected == "text" and (head[1:4:2] == b"\0\0" or (head[:4:2] == b"\0\0" and not head.startswith(codecs.BOM_UTF32_BE))):
        return " looks like UTF-16 without a byte-order mark. Convert it: iconv -f UTF-16LE -t UTF-8 (or UTF-16BE)."
    return None


def _open_decompressed(file: Path) -> BinaryIO:
    ending = file.suffix.lower()
    if ending == ".gz":
        return cast(BinaryIO, gzip.GzipFile(file))
    if ending == ".zst":
        import pyarrow as pa

        source: Any = pa.CompressedInputStream(pa.OSFile(str(file), "rb"), "zstd")
        return cast(BinaryIO, io.BufferedReader(source))
    return file.open("rb")


class _Recoded(io.RawIOBase):
    """A stream in another encoding, as UTF-8."""

    def __init__(self, stream: BinaryIO, encoding: str) -> None:
        self._stream, self._encoding, self._pending = stream, encoding, b""
        self._decoder = codecs.getincrementaldecoder(encoding)()

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._stream.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
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
