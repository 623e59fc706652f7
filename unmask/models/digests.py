"""Digests: hashes of the files in a model folder, so that no change of a weight goes unnoticed.

Every byte is read, since samples of a file can miss what training changed. The digest of a large file is kept in the user's cache, by
path, size and times of the file. So the next command does not read the file again.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from unmask.errors import UnmaskError
from unmask.io.files import write_json
from unmask.io.paths import cache_folder
from unmask.io.seals import SEAL

if TYPE_CHECKING:
    from torch import Tensor

_SETTINGS = (".json", ".jinja", ".txt", ".model", ".py", ".tiktoken", ".spm", ".vocab", ".bpe")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".npz")
_LARGE = 2**26
"""Bytes from which the digest of a file is kept. A smaller file is read faster than its digest is looked up."""

_SETTLED = 3.0
"""Seconds after which the clock of a file system surely tells two changes apart."""


def digest_of_folder(folder: Path, pattern: str = "*") -> str:
    """A short hash of everything in a model folder that a load depends on: weights in any format, settings, tokenizer and code.

    Hidden files, pictures, texts about the model (.md) and checkpoints of its training are left out. pattern: of the files that count.
    Raises UnmaskError for a file that cannot be read.
    """
    digest = hashlib.sha256(b"unmask identity 1")
    for name, file in _files_of(folder, pattern):
        digest.update(f"{name}\0{digest_of_file(file)}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:16]


def state_of_folder(folder: Path, pattern: str = "*") -> str:
    """A hash of the names, sizes, times and inodes of the files behind `digest_of_folder`. It is cheap, and changes with any writing."""
    digest = hashlib.sha256()
    for name, file in _files_of(folder, pattern):
        with suppress(OSError):  # the file is gone, so its name does not count
            state = file.stat()
            description = f"{name}\0{state.st_size} {state.st_mtime_ns} {state.st_dev} {state.st_ino}\0"
            digest.update(description.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:16]


def _files_of(folder: Path, pattern: str) -> Iterator[tuple[str, Path]]:
    for file in sorted(folder.rglob(pattern)):
        name = file.relative_to(folder)
        hidden = any(part.startswith(".") for part in name.parts)
        checkpoint = any(part.startswith("checkpoint-") for part in name.parent.parts)
        if file.suffix in (*_SETTINGS, *_WEIGHTS) and not hidden and not checkpoint and file.name != SEAL and file.is_file():
            yield name.as_posix(), file


def digest_of_tensors(tensors: Mapping[str, Tensor]) -> str:
    """A short hash of named tensors, as float32."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tuple(tensor.shape)}\n".encode() + tensor.detach().float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def digest_of_file(file: Path) -> str:
    """A 128-bit hash of the full content of a file. Raises UnmaskError for a file that cannot be read."""
    try:
        real = Path(os.path.realpath(file))
        state = real.stat()
        if state.st_size < _LARGE:
            return _read(real)
        noted = {
            "file": str(real),
            "size": state.st_size,
            "modified": state.st_mtime_ns,
            "changed": state.st_ctime_ns,
            "inode": [state.st_dev, state.st_ino],
        }
        name = hashlib.sha256(str(real).encode("utf-8", "surrogateescape")).hexdigest()[:32]
        note = cache_folder() / "digests" / f"{name}.json"
        with suppress(OSError, ValueError):
            entry = json.loads(note.read_text(encoding="utf-8"))
            if isinstance(entry, dict) and entry == {**noted, "digest": entry.get("digest")}:
                return str(entry["digest"])
        digest = _read(real)
        after = real.stat()
        unchanged = (after.st_mtime_ns, after.st_ctime_ns, after.st_size) == (
            noted["modified"],
            noted["changed"],
            noted["size"],
        )
        # a change within one tick of the file system's clock would not be noticed
        if unchanged and time.time() - max(after.st_mtime, after.st_ctime) > _SETTLED:
            with suppress(OSError):  # without a writable cache the digest is computed again
                write_json(note, {**noted, "digest": digest})
        return digest
    except OSError as error:
        raise UnmaskError(f"'{file}' cannot be read: {error.strerror or error}.") from error


def _read(file: Path) -> str:
    # not cryptographic, but five times faster than SHA-256: it detects training, bad copies and damaged disks
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, xxhash.xxh3_128).hexdigest()
