"""Digests: what is in a model folder, byte by byte, so that no change of a weight goes unnoticed.

Every byte is read: samples of a file can miss what training changed. A digest of a large file is remembered in the user's cache, by
place, size and times of the file, so that the next command does not read it again.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import suppress
from pathlib import Path

import xxhash

from unmask.errors import UnmaskError
from unmask.io.files import write_json
from unmask.io.seals import SEAL
from unmask.models.bundled import cache_folder

_SETTINGS = (".json", ".jinja", ".txt", ".model", ".py", ".tiktoken", ".spm", ".vocab", ".bpe")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".npz")
_LARGE = 2**26
"""Bytes of a file whose digest is remembered: a smaller one is read in less time than it takes to look that up."""

_SETTLED = 3.0
"""Seconds after which a file system's clock tells two changes of a file apart."""


def digest_of_folder(folder: Path) -> str:
    """A short hash of everything in a model folder that a load of it depends on: weights in any format, settings, tokenizer and code.

    Hidden files, pictures, and texts about the model (.md) are left out. Raises UnmaskError for a file that cannot be read.
    """
    digest = hashlib.sha256(b"unmask identity 1")
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder)
        if file.suffix not in (*_SETTINGS, *_WEIGHTS) or any(part.startswith(".") for part in name.parts) or file.name == SEAL:
            continue
        if file.is_file():
            digest.update(f"{name.as_posix()}\0{digest_of_file(file)}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:16]


def digest_of_file(file: Path) -> str:
    """A 128-bit hash of a file's content, of all of it. Raises UnmaskError for a file that cannot be read."""
    try:
        real = Path(os.path.realpath(file))
        state = real.stat()
        if state.st_size < _LARGE:
            return _read(real)
        said = {
            "file": str(real),
            "size": state.st_size,
            "modified": state.st_mtime_ns,
            "changed": state.st_ctime_ns,
            "inode": [state.st_dev, state.st_ino],
        }
        return _remembered(said) or _remember(said, _read(real), real)
    except OSError as error:
        raise UnmaskError(f"'{file}' cannot be read: {error.strerror or error}.") from error


def _read(file: Path) -> str:
    # not cryptographic: it tells apart what training, copying or a damaged disk makes of a file, five times faster than SHA-256
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, xxhash.xxh3_128).hexdigest()


def _note(said: dict[str, object]) -> Path:
    return (
        cache_folder()
        / "digests"
        / f"{hashlib.sha256(str(said['file']).encode('utf-8', 'surrogateescape')).hexdigest()[:32]}.json"
    )


def _remembered(said: dict[str, object]) -> str | None:
    try:
        known = json.loads(_note(said).read_text(encoding="utf-8"))
        digest = known.pop("digest")
        whole = known.pop("checksum") == _checksum(known, digest)
    except (OSError, ValueError, KeyError, AttributeError, RecursionError):
        return None
    return str(digest) if whole and known == said else None


def _remember(said: dict[str, object], digest: str, file: Path) -> str:
    """Keep a digest, unless the file may have changed while it was read, or since, within one tick of its file system's clock."""
    state = file.stat()
    last = max(state.st_mtime, state.st_ctime)
    if [state.st_mtime_ns, state.st_ctime_ns, state.st_size] == [said["modified"], said["changed"], said["size"]] and (
        time.time() - last > _SETTLED
    ):
        with suppress(OSError):  # a cache that cannot be written costs time only
            write_json(_note(said), {**said, "digest": digest, "checksum": _checksum(said, digest)})
    return digest


def _checksum(said: dict[str, object], digest: str) -> str:
    return hashlib.sha256(f"{json.dumps(said, sort_keys=True)} {digest}".encode()).hexdigest()[:16]
