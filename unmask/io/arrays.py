"""Arrays: several of them in one file (npz), written whole and checked to the last bit when it is read."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.io.files import atomic
from unmask.io.seals import Damaged


def save_arrays(file: Path, arrays: Mapping[str, NDArray[Any]], *, compressed: bool = False) -> None:
    """Write arrays by name, whole and durable."""
    save = np.savez_compressed if compressed else np.savez
    with atomic(file) as scratch, scratch.open("wb") as stream:
        save(stream, **arrays)  # type: ignore[arg-type]


def load_arrays(file: Path) -> dict[str, NDArray[Any]]:
    """What `save_arrays` wrote. Raises Damaged if the file is missing, or holds anything else."""
    try:
        content = file.read_bytes()
    except FileNotFoundError as error:
        raise Damaged(f"'{file}' is missing.") from error
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as members:
            # numpy may read less than a member holds, and then its checksum is not compared
            if (bad := members.testzip()) is not None:
                raise ValueError(f"the checksum of {bad} does not fit")
        with np.load(io.BytesIO(content), allow_pickle=False) as saved:
            return {name: saved[name] for name in saved.files}
    # a flipped bit may raise anything: NotImplementedError, zlib.error, struct.error, MemoryError, tokenize.TokenError ...
    except Exception as error:
        raise Damaged(f"'{file}' is damaged: {type(error).__name__}: {error}.") from error
