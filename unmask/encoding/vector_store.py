"""Vectors on disk, by the text that they are of, so that a run which was stopped goes on and memory holds one block at a time.

A shelf holds one design's vectors as blocks, each a file that is written whole and carries its checksum. A block that was damaged is
noticed whenever it is read: it goes, and its texts are computed again. What is on a shelf is never changed: the first vector of a
text stays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.errors import UnmaskError
from unmask.io.arrays import load_arrays, save_arrays
from unmask.io.files import is_own, make_own, remove_own
from unmask.io.seals import Damaged

_KEY = 16
_FOLDER = ".unmask-vectors"


def key_of(text: str, instruction: str | None) -> bytes:
    """What a text is found by: a hash of it and of the instruction that it is read under."""
    content = repr((instruction, text)).encode("utf-8", "surrogatepass")
    return hashlib.sha256(content).digest()[:_KEY]


class LostRows(Exception):
    """A block was damaged or removed since it was put on its shelf; its rows are no longer there."""


class StoredRows:
    """Rows of one width by key. damaged: blocks that could not be read, and are gone."""

    def __init__(self, folder: Path) -> None:
        """Open or create the shelf; every block is read once and checked."""
        self.folder, self.damaged = folder, 0
        self._places: dict[bytes, tuple[Path, int]] = {}
        self._last = -1
        for file in sorted(folder.glob("*.npz")):
            try:
                keys, _ = _read(file)
            except Damaged:
                self._drop(file)
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
        file = self.folder / f"{self._last + 1:08d}.npz"
        kept = [keys[place] for place in new]
        save_arrays(file, {"keys": np.frombuffer(b"".join(kept), np.uint8).reshape(len(kept), _KEY), "rows": rows[new]})
        self._note(file, kept)

    def get(self, keys: Sequence[bytes]) -> NDArray[Any]:
        """Rows of these keys, in their order.

        Raises KeyError for one that is not on the shelf, and LostRows if a block was damaged since: its keys are then no longer on the
        shelf, and can be added again.
        """
        wanted: dict[Path, list[tuple[int, int]]] = {}
        for at, key in enumerate(keys):
            block, row = self._places[key]
            wanted.setdefault(block, []).append((at, row))
        result: NDArray[Any] | None = None
        for block, places in wanted.items():
            rows = self._rows(block)
            if result is None:
                result = np.empty((len(keys), *rows.shape[1:]), rows.dtype)
            targets, sources = np.array(places).T
            result[targets] = rows[sources]
        if result is None:
            raise KeyError("no keys")
        return result

    def _rows(self, block: Path) -> NDArray[Any]:
        try:
            keys, rows = _read(block)
            if all(self._places[key] == (block, row) for row, key in enumerate(keys)):
                return rows
        except (Damaged, KeyError):
            pass
        self._drop(block)
        raise LostRows(str(block))

    def _drop(self, file: Path) -> None:
        file.unlink(missing_ok=True)
        self.damaged += 1
        self._last = max(self._last, _number(file))
        self._places = {key: place for key, place in self._places.items() if place[0] != file}

    def _note(self, file: Path, keys: Iterable[bytes]) -> None:
        for row, key in enumerate(keys):
            self._places[key] = file, row
        self._last = max(self._last, _number(file))


class VectorStore:
    """Shelves by name, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        """Open the folder, which the first vector creates. Raises UnmaskError for one that holds anything else."""
        if not is_own(folder):
            raise UnmaskError(f"'{folder}' holds files that unmask did not make, and it keeps vectors there: move it away.")
        self.folder = folder
        self._shelves: dict[str, StoredRows] = {}

    @classmethod
    def beside(cls, results: Path) -> VectorStore:
        """The vectors of a run that writes its results to a folder. They are removed when the run has ended well."""
        return cls(results / _FOLDER)

    def stored(self, name: str) -> StoredRows:
        """The shelf of that name, opened once."""
        if name not in self._shelves:
            make_own(self.folder)
            self._shelves[name] = StoredRows(self.folder / hashlib.sha256(name.encode()).hexdigest()[:20])
        return self._shelves[name]

    @property
    def damaged(self) -> int:
        """Blocks that were damaged, on the shelves that were opened."""
        return sum(shelf.damaged for shelf in self._shelves.values())

    def forget(self) -> None:
        """Remove all shelves from the disk."""
        self._shelves.clear()
        remove_own(self.folder)


def _number(file: Path) -> int:
    return int(file.stem) if file.stem.isdecimal() else -1


def _read(file: Path) -> tuple[list[bytes], NDArray[Any]]:
    arrays = load_arrays(file)
    if set(arrays) != {"keys", "rows"} or arrays["keys"].shape != (len(arrays["rows"]), _KEY):
        raise Damaged(f"'{file}' is damaged: it holds no keys and rows.")
    return [key.tobytes() for key in arrays["keys"]], arrays["rows"]
