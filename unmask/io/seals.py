"""Seals: checksums in the files that this program writes, so that a file which was damaged later is noticed and never believed.

A file without a checksum was written by an older version, and is read without a check.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.errors import UnmaskError
from unmask.io.files import atomic, sync_tree, write_json

if TYPE_CHECKING:
    from torch import Tensor

CHECKSUM = "checksum"
"""Key of the checksum in every record."""
SEAL = "checksums.json"
_NOT_SEALED = (".md", ".lock")  # a model card is there to be edited


class Damaged(UnmaskError):
    """A file does not hold what was written to it."""


def seal_content(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content with its checksum, as the last key."""
    plain = json.loads(json.dumps(dict(content), ensure_ascii=False))
    return {**plain, CHECKSUM: _digest(plain)}


def open_content(content: Any) -> dict[str, Any]:
    """The content without its checksum. Raises Damaged if it does not fit."""
    if not isinstance(content, dict):
        raise Damaged(f"expected an object, found {type(content).__name__}")
    plain = {key: value for key, value in content.items() if key != CHECKSUM}
    if CHECKSUM not in content:
        if any(_is_nearly_the_key(key) for key in plain):
            raise Damaged("the name of its checksum was changed")
    elif content[CHECKSUM] != _digest(plain):
        raise Damaged("its checksum does not fit its content")
    return plain


def seal_line(content: Mapping[str, Any]) -> str:
    """One line of JSON that carries its checksum."""
    return json.dumps(seal_content(content), ensure_ascii=False)


def open_line(line: str | bytes) -> dict[str, Any]:
    """What `seal_line` was given. Raises Damaged."""
    try:
        return open_content(json.loads(line))
    except (ValueError, RecursionError) as error:
        if isinstance(error, Damaged):
            raise
        raise Damaged(f"it is not JSON: {error}") from error


def write_record(file: Path, content: Mapping[str, Any]) -> None:
    """Write JSON with its checksum, whole and durable."""
    write_json(file, seal_content(content))


def read_record(file: Path) -> dict[str, Any] | None:
    """What `write_record` wrote; None if there is no such file, and None with a warning if it was damaged."""
    try:
        return open_line(file.read_bytes())
    except FileNotFoundError:
        return None
    except Damaged as error:
        warnings.warn(f"'{file}' is damaged ({error}); it is treated as missing.", stacklevel=2)
        return None


def seal(folder: Path, name: str = SEAL) -> None:
    """Write the checksum of every file in a folder, as its last file: where it lies, the folder is complete."""
    sync_tree(folder)
    (folder / name).unlink(missing_ok=True)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    # in a folder below, such as the folder of an expert in a mixture, a card and a seal are content like any other
    content = [path for path in files if path.suffix not in _NOT_SEALED or path.parent != folder]
    write_record(folder / name, {str(path.relative_to(folder)): hash_file(path) for path in content})


def is_sealed(folder: Path, name: str = SEAL) -> bool:
    """Whether a folder has a seal, intact or not."""
    return (folder / name).is_file()


def check_seal(folder: Path, name: str = SEAL) -> None:
    """Raise Damaged if a sealed file is missing or was changed. Files that came later, and a folder without a seal, pass."""
    if not is_sealed(folder, name):
        return
    try:
        files = open_line((folder / name).read_bytes())
    except Damaged as error:
        raise Damaged(f"'{folder / name}' is damaged: {error}.") from error
    for path, digest in files.items():
        if not (folder / path).is_file():
            raise Damaged(f"'{folder / path}' is missing; '{folder}' is not complete.")
        if hash_file(folder / path) != digest:
            raise Damaged(
                f"'{folder / path}' was changed or damaged since it was written. "
                f"If you changed it on purpose, delete '{folder / name}'."
            )


def hash_file(file: Path) -> str:
    """SHA-256 of a file's content."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def save_tensors(file: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors as safetensors with a checksum, whole and durable."""
    from safetensors.torch import save_file

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with atomic(file) as scratch:
        save_file(plain, scratch, {"format": "pt", **(metadata or {}), CHECKSUM: _digest_of_tensors(plain)})
        _order_header(scratch)


def _order_header(file: Path) -> None:
    """Give the metadata of a safetensors file an order: the library writes them in a random one, and equal tensors to other bytes."""
    with file.open("r+b") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(length))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        ordered = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        if len(ordered) <= length:  # what is left over was and is filled with spaces
            stream.seek(8)
            stream.write(ordered.ljust(length))


def load_tensors(file: Path) -> dict[str, Tensor]:
    """What `save_tensors` wrote, on the CPU. Raises Damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "pt") as saved:
            metadata = saved.metadata() or {}
            tensors = {name: saved.get_tensor(name) for name in saved.keys()}  # noqa: SIM118 (it is not a dictionary)
    except (SafetensorError, ValueError, RuntimeError, UnicodeDecodeError) as error:
        raise Damaged(f"'{file}' is damaged: {error}.") from error
    changed = any(_is_nearly_the_key(key) for key in metadata)
    if changed or (CHECKSUM in metadata and metadata[CHECKSUM] != _digest_of_tensors(tensors)):
        raise Damaged(f"'{file}' is damaged: its checksum does not fit its content.")
    return tensors


def _digest(content: Mapping[str, Any]) -> str:
    plain = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(plain.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _digest_of_tensors(tensors: Mapping[str, Tensor]) -> str:
    import torch

    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


def _is_nearly_the_key(key: str) -> bool:
    """Whether one flipped bit may have made this of the name of the checksum."""
    return len(key) == len(CHECKSUM) and sum(actual != expected for actual, expected in zip(key, CHECKSUM, strict=True)) == 1
