"""Vector cache: vectors on disk, keyed by their text, so that an interrupted run can continue. Memory holds one block at a time.

A cache is a folder with one table for each design. A table consists of blocks. A block is a file that is written atomically and has a
checksum. A damaged block is noticed when it is read; it is removed, and its texts are computed again. The first vector of a text stays.
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


def text_key(text: str, instruction: str | None) -> bytes:
    """The key of a text: a hash of the text and of its instruction."""
    content = repr((instruction, text)).encode("utf-8", "surrogatepass")
    return hashlib.sha256(content).digest()[:_KEY]


class LostRows(Exception):
    """A block was damaged or removed after it was stored."""


class CacheTable:
    """A table of a cache: rows of one width, by key. damaged: number of blocks that could not be read and were removed."""

    def __init__(self, folder: Path) -> None:
        """Open the folder. Every block in it is read once and checked."""
        self.folder, self.damaged = folder, 0
        self._rows_by_key: dict[bytes, tuple[Path, int]] = {}
        self._last = -1
        for file in sorted(folder.glob("*.npz")):
            try:
                keys, _ = _read(file)
            except Damaged:
                self._drop(file)
                continue
            self._note(file, keys)

    def __contains__(self, key: bytes) -> bool:
        """Whether the row of a key is stored."""
        return key in self._rows_by_key

    def add(self, keys: Sequence[bytes], rows: NDArray[Any]) -> None:
        """Store the rows of new keys as one block."""
        new = [index for index, key in enumerate(keys) if key not in self._rows_by_key]
        if not new:
            return
        file = self.folder / f"{self._last + 1:08d}.npz"
        new_keys = [keys[index] for index in new]
        key_bytes = np.frombuffer(b"".join(new_keys), np.uint8).reshape(len(new_keys), _KEY)
        save_arrays(file, {"keys": key_bytes, "rows": rows[new]})
        self._note(file, new_keys)

    def get(self, keys: Sequence[bytes]) -> NDArray[Any]:
        """Rows of these keys, in their order.

        Raises KeyError for a key that is not stored, and LostRows if a block was damaged since. Its keys can then be added again.
        """
        by_block: dict[Path, list[tuple[int, int]]] = {}
        for index, key in enumerate(keys):
            block, row = self._rows_by_key[key]
            by_block.setdefault(block, []).append((index, row))
        result: NDArray[Any] | None = None
        for block, pairs in by_block.items():
            rows = self._rows(block)
            if result is None:
                result = np.empty((len(keys), *rows.shape[1:]), rows.dtype)
            targets, sources = np.array(pairs).T
            result[targets] = rows[sources]
        if result is None:
            raise KeyError("no keys")
        return result

    def _rows(self, block: Path) -> NDArray[Any]:
        try:
            keys, rows = _read(block)
            if all(self._rows_by_key[key] == (block, row) for row, key in enumerate(keys)):
                return rows
        except (Damaged, KeyError):
            pass
        self._drop(block)
        raise LostRows(str(block))

    def _drop(self, file: Path) -> None:
        file.unlink(missing_ok=True)
        self.damaged += 1
        self._last = max(self._last, _number(file))
        self._rows_by_key = {key: (block, row) for key, (block, row) in self._rows_by_key.items() if block != file}

    def _note(self, file: Path, keys: Iterable[bytes]) -> None:
        for row, key in enumerate(keys):
            self._rows_by_key[key] = file, row
        self._last = max(self._last, _number(file))


class VectorCache:
    """Tables by name, in one folder."""

    def __init__(self, folder: Path) -> None:
        """Open the folder; the first vector creates it. Raises UnmaskError for a folder with other files in it."""
        if not is_own(folder):
            raise UnmaskError(f"unmask keeps vectors in '{folder}', but the folder holds other files. Move them away.")
        self.folder = folder
        self._tables: dict[str, CacheTable] = {}

    @classmethod
    def in_folder(cls, results: Path) -> VectorCache:
        """The cache of a run, in the folder of its results. It is removed when the run has finished."""
        return cls(results / _FOLDER)

    def table(self, name: str) -> CacheTable:
        """The table of a name, opened once."""
        if name not in self._tables:
            make_own(self.folder)
            self._tables[name] = CacheTable(self.folder / hashlib.sha256(name.encode()).hexdigest()[:20])
        return self._tables[name]

    @property
    def damaged(self) -> int:
        """Number of damaged blocks in the tables that were opened."""
        return sum(table.damaged for table in self._tables.values())

    def remove(self) -> None:
        """Remove everything from the disk."""
        self._tables.clear()
        remove_own(self.folder)


def _number(file: Path) -> int:
    return int(file.stem) if file.stem.isdecimal() else -1


def _read(file: Path) -> tuple[list[bytes], NDArray[Any]]:
    arrays = load_arrays(file)
    if set(arrays) != {"keys", "rows"} or arrays["keys"].shape != (len(arrays["rows"]), _KEY):
        raise Damaged(f"'{file}' is damaged: it holds no keys and rows.")
    return [key.tobytes() for key in arrays["keys"]], arrays["rows"]
