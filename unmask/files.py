"""Files: written whole or not at all, held by one run at a time, and named by their content."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from unmask.errors import UnmaskError


@contextmanager
def atomic(file: Path) -> Iterator[Path]:
    """A scratch file beside a file, which takes its place if the block ends well and vanishes if not."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{file.name}-", dir=file.parent)
    os.close(handle)
    scratch = Path(name)
    try:
        yield scratch
        scratch.chmod(0o644)
        scratch.replace(file)
    except OSError as error:
        if error.errno:
            error.filename = error.filename or str(file)  # a full disk does not say where
        raise
    finally:
        scratch.unlink(missing_ok=True)


@contextmanager
def only_run_in(folder: Path) -> Iterator[None]:
    """Hold a folder for one run. Raises UnmaskError if another run holds it."""
    from filelock import FileLock, Timeout

    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock", timeout=0):
            yield
    except Timeout:
        raise UnmaskError(f"Another run is writing to '{folder}'.") from None


_SMALL = (".json", ".jinja", ".txt", ".model", ".py")


def fingerprint(folder: Path) -> str:
    """Hash of a model folder: its settings, tokenizer, template and code whole, its weights by name, size and samples.

    A sample is 4 KB: 64 of them spread over each file, and one at the start of each tensor, since training may leave all
    tensors but a few as they were. Reading gigabytes to name them would take longer than many a comparison.
    """
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        if not file.is_file():
            continue
        if file.suffix in _SMALL:
            digest.update(f"{file.relative_to(folder)}:".encode() + file.read_bytes())
        elif file.suffix == ".safetensors":
            size = file.stat().st_size
            digest.update(f"{file.relative_to(folder)}:{size}".encode())
            with file.open("rb") as stream:
                for start in [*(size * block // 64 for block in range(64)), *_tensors(stream)]:
                    stream.seek(start)
                    digest.update(stream.read(4096))
    return digest.hexdigest()[:16]


def _tensors(stream: BinaryIO) -> list[int]:
    """Where each tensor of a safetensors file begins; nowhere in a broken file, which loading will refuse."""
    length = int.from_bytes(stream.read(8), "little")
    try:
        header = json.loads(stream.read(min(length, 2**27)))
    except ValueError:
        return []
    return [8 + length + header[name]["data_offsets"][0] for name in sorted(header) if name != "__metadata__"]


def write_json(file: Path, content: Any) -> None:
    """Write JSON so that the file appears whole."""
    with atomic(file) as scratch:
        scratch.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
