"""Texts that probes read."""

from __future__ import annotations

from pathlib import Path

from unmask.errors import UnmaskError
from unmask.io.rows import field, read_rows
from unmask.starter import reference_texts
from unmask.tasks.sampling import random_subset


def read_texts(file: Path | None, column: str = "text", limit: int | None = None, seed: int = 0) -> list[str]:
    """Texts of a file, or the bundled reference texts; with a limit, a random sample."""
    texts = reference_texts() if file is None else [field(file, line, row, column) for line, row in read_rows(file)]
    if not texts:
        raise UnmaskError(f"{file} holds no row.")
    return random_subset(texts, limit, seed)
