"""Compressed files: opened as the bytes that they hold, by their ending."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

_BLOCK = 1 << 16


def open_unpacked(file: Path) -> BinaryIO:
    """The bytes of a file, unpacked if its ending says that they are packed. Reading may raise one of DAMAGE."""
    opener = COMPRESSIONS.get(file.suffix.lower())
    if opener is None:
        return file.open("rb")
    return opener(file) if file.stat().st_size else cast(BinaryIO, io.BufferedReader(_Nothing()))


def row_ending(file: Path) -> str:
    """The ending that says how rows are written, in lower case: `.jsonl` of `a.jsonl` and of `A.JSONL.GZ`."""
    name = Path(file.name.lower())
    return Path(name.stem).suffix if name.suffix in COMPRESSIONS else name.suffix


def is_damage(error: BaseException) -> bool:
    """Whether an error says that packed bytes are broken. An error with a number comes from the system: the disk, the permissions."""
    return isinstance(error, DAMAGE) and not getattr(error, "errno", None)


DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError)


class _Nothing(io.RawIOBase):
    """A packed file without a byte. It was lost: even nothing, packed, has a head."""

    def readable(self) -> bool:
        """It is made for reading."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Raise EOFError."""
        raise EOFError("the file is empty")


class _Streams(io.RawIOBase):
    """The packed streams of a file, one behind another, unpacked. Null bytes between them are padding.

    Python's own files of bzip2 and xz do not say so if a later stream is damaged: they take it for the end of the file. begin: makes what
    unpacks one stream.
    """

    def __init__(self, packed: BinaryIO, begin: Callable[[], Any]) -> None:
        """Begin with the first stream."""
        self._packed, self._begin, self._stream = packed, begin, begin()

    def readable(self) -> bool:
        """It is made for reading."""
        return True

    def close(self) -> None:
        """Close the file, too."""
        self._packed.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        """Unpack some bytes, or none at the end. Raises one of DAMAGE."""
        data = b""
        while not data:
            block = b""
            if self._stream.eof:
                if not (block := self._next_stream()):
                    return 0
                self._stream = self._begin()
            elif self._stream.needs_input and not (block := self._packed.read(_BLOCK)):
                raise EOFError("the file ends too early")
            data = self._stream.decompress(block, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _next_stream(self) -> bytes:
        """How the next stream begins; no bytes if there is none."""
        begins = self._stream.unused_data.lstrip(b"\0")
        while not begins and (block := self._packed.read(_BLOCK)):
            begins = block.lstrip(b"\0")
        return bytes(begins)


def _streams(begin: Callable[[], Any]) -> Callable[[Path], BinaryIO]:
    return lambda file: cast(BinaryIO, io.BufferedReader(_Streams(file.open("rb"), begin), _BLOCK))


def _zstd(file: Path) -> BinaryIO:
    import pyarrow as pa

    source: Any = pa.CompressedInputStream(pa.OSFile(str(file), "rb"), "zstd")
    return cast(BinaryIO, io.BufferedReader(source))


COMPRESSIONS: dict[str, Callable[[Path], BinaryIO]] = {
    ".gz": lambda file: cast(BinaryIO, gzip.GzipFile(file)),
    ".bz2": _streams(bz2.BZ2Decompressor),
    ".xz": _streams(lzma.LZMADecompressor),
    ".zst": _zstd,
}
