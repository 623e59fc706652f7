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


def open_unpacked(file: Path) -> BinaryIO:
    """The bytes of a file, unpacked if its ending says that they are packed. Reading may raise one of DAMAGE."""
    opener = COMPRESSIONS.get(file.suffix.lower())
    return file.open("rb") if opener is None else opener(file)


def row_ending(file: Path) -> str:
    """The ending that says how rows are written, in lower case: `.jsonl` of `a.jsonl` and of `A.JSONL.GZ`."""
    name = Path(file.name.lower())
    return Path(name.stem).suffix if name.suffix in COMPRESSIONS else name.suffix


def is_damage(error: BaseException) -> bool:
    """Whether an error says that packed bytes are broken. An error with a number comes from the system: the disk, the permissions."""
    return isinstance(error, DAMAGE) and not getattr(error, "errno", None)


DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError)


def _zstd(file: Path) -> BinaryIO:
    import pyarrow as pa

    source: Any = pa.CompressedInputStream(pa.OSFile(str(file), "rb"), "zstd")
    return cast(BinaryIO, io.BufferedReader(source))


COMPRESSIONS: dict[str, Callable[[Path], BinaryIO]] = {
    ".gz": lambda file: cast(BinaryIO, gzip.GzipFile(file)),
    ".bz2": lambda file: cast(BinaryIO, bz2.BZ2File(file)),
    ".xz": lambda file: cast(BinaryIO, lzma.LZMAFile(file)),  # noqa: SIM115 (the caller closes it)
    ".zst": _zstd,
}
