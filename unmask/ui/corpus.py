"""Corpus: a sample of the rows of a file, of a size that a map can show."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random

from unmask.errors import UnmaskError
from unmask.io.rows import field, read_rows

MOST_TEXTS = 20_000


@dataclass(frozen=True)
class Corpus:
    """Texts in the order of their file. labels: of each text, if there are any; rows: how many rows the file has."""

    name: str
    texts: tuple[str, ...]
    labels: tuple[str, ...] | None
    rows: int

    @property
    def label_names(self) -> list[str]:
        """The different labels, the most frequent first."""
        return [label for label, _ in Counter(self.labels or ()).most_common()]


def read_corpus(file: Path, column: str = "text", label: str | None = None, most: int = MOST_TEXTS, seed: int = 0) -> Corpus:
    """The texts of a file, or a random sample of so many. Every row is read and checked; only the sample is kept in memory.

    Raises UnmaskError, with file, line and column, for a row without its text or its label, and for a file without rows.
    """
    draw, rows = Random(seed), 0
    kept: list[tuple[int, str, str]] = []
    for line, row in read_rows(file):
        text = field(file, line, row, column)
        named = str(field(file, line, row, label, (str, int, float))) if label else ""
        place = rows if rows < most else draw.randrange(rows + 1)  # reservoir sampling (algorithm R)
        if place < most:
            kept[place : place + 1] = [(rows, text, named)]
        rows += 1
    if not kept:
        raise UnmaskError(f"{file} holds no row.")
    kept.sort()
    return Corpus(file.name, tuple(text for _, text, _ in kept), tuple(named for *_, named in kept) if label else None, rows)
