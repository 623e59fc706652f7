"""Vectors on disk, by the text that they are of, so that a run which was stopped goes on and memory holds one block at a time.

A shelf holds one design's vectors as blocks, each a file that is written whole and carries its checksum; a block that was damaged is
put aside, and its texts are computed again. What is on a shelf is never changed: the first vector of a text stays.
"""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.files import atomic

_KEY = 16


def key_of(text: str, instruction: str | None) -> bytes:
    """What a text is found by: a hash of it and of the instruction that it is read under."""
    content = repr((instruction, text)).encode("utf-8", "surrogatepass")
    return hashlib.sha256(content).digest()[:_KEY]


class Shelf:
    """Rows of one width by key. damaged: blocks that could not be read when the shelf was opened, and are gone."""

    def __init__(self, folder: Path) -> None:
        """Open or create the shelf; every block is read once and checked."""
        self.folder, self.damaged = folder, 0
        self._places: dict[bytes, tuple[int, int]] = {}
        self._blocks: list[Path] = []
        for file in sorted(folder.glob("*.npz")):
            try:
                keys, _ = _read(file)
            except (zipfile.BadZipFile, ValueError, KeyError, OSError, EOFError):
                file.unlink()
                self.damaged += 1
                continue
            self._note(file, keys)

    def __contains__(self, key: bytes) -> bool:
        """Whether a row of that key is on the shelf."""
        return key in self._places

    def add(self, keys: Sequence[bytes], rows: NDArray[Any]) -> None:
        """Put rows of new keys on the shelf, as one block."""
        new = [place for place, key in enumerate(keys) if key not in self._places]
        if not new:
            return
        last = int(self._blocks[-1].stem) if self._blocks else -1
        file = self.folder / f"{last + 1:08d}.npz"
        kept = [keys[place] for place in new]
        with atomic(file) as scratch, scratch.open("wb") as stream:
            np.savez(stream, keys=np.frombuffer(b"".join(kept), np.uint8).reshape(len(kept), _KEY), rows=rows[new])
        self._note(file, kept)

    def get(self, keys: Sequence[bytes]) -> NDArray[Any]:
        """Rows of these keys, in their order. Raises KeyError for one that is not on the shelf."""
        wanted: dict[int, list[tuple[int, int]]] = {}
        for at, key in enumerate(keys):
            block, row = self._places[key]
            wanted.setdefault(block, []).append((at, row))
        result: NDArray[Any] | None = None
        for block, places in wanted.items():
            _, rows = _read(self._blocks[block])
            if result is None:
                result = np.empty((len(keys), *rows.shape[1:]), rows.dtype)
            targets, sources = np.array(places).T
            result[targets] = rows[sources]
        if result is None:
            raise KeyError("no keys")
        return result

    def _note(self, file: Path, keys: Iterable[bytes]) -> None:
        for row, key in enumerate(keys):
            self._places[key] = len(self._blocks), row
        self._blocks.append(file)


class VectorCache:
    """Shelves by name, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._shelves: dict[str, Shelf] = {}

    def shelf(self, name: str) -> Shelf:
        """The shelf of that name, opened once."""
        if name not in self._shelves:
            self._shelves[name] = Shelf(self.folder / hashlib.sha256(name.encode()).hexdigest()[:20])
        return self._shelves[name]

    @property
    def damaged(self) -> int:
        """Blocks that were damaged, on the shelves that were opened."""
        return sum(shelf.damaged for shelf in self._shelves.values())

    def forget(self) -> None:
        """Remove all shelves from the disk."""
        self._shelves.clear()
        shutil.rmtree(self.folder, ignore_errors=True)


def _read(file: Path) -> tuple[list[bytes], NDArray[Any]]:
    with np.load(file, allow_pickle=False) as saved:
        keys, rows = saved["keys"], saved["rows"]
    if keys.shape != (len(rows), _KEY):
        raise ValueError(f"{file} holds {len(rows)} rows and {len(keys)} keys.")
    return [key.tobytes() for key in keys], rows
