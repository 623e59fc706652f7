"""What probes read and return: texts and pairs of texts from files, their vectors, and the base of every result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from unmask.designs.design import Design
from unmask.encoding.encoder import Encoder
from unmask.encoding.forward_pass import group_by_pass
from unmask.errors import UnmaskError
from unmask.io.array_types import NDArray
from unmask.io.rows import field, read_rows
from unmask.io.terminal import progress_bar
from unmask.models.provenance import fingerprint_of
from unmask.starter import reference_texts
from unmask.tasks.sampling import random_subset


@dataclass(frozen=True)
class ProbeResult:
    """What a probe measured."""

    def as_json(self) -> dict[str, Any]:
        """The result with everything that it depends on."""
        return asdict(self)


@dataclass(frozen=True)
class Pair:
    """Two texts and how similar they are. score: None if the file has no scores; then all pairs are paraphrases."""

    first: str
    second: str
    score: float | None = None


def read_texts(file: Path | None, column: str = "text", limit: int | None = None, seed: int = 0) -> list[str]:
    """Texts of a file, or the bundled reference texts; with a limit, a random sample."""
    texts = reference_texts() if file is None else [field(file, line, row, column) for line, row in read_rows(file)]
    if not texts:
        raise UnmaskError(f"{file} holds no row.")
    return random_subset(texts, limit, seed)


def read_pairs(file: Path, limit: int | None = None, seed: int = 0) -> list[Pair]:
    """Pairs from rows {sentence1, sentence2} with an optional number `score`. Raises UnmaskError with file, line and column.

    With a limit, the seed draws the pairs from the whole file, since many files are sorted by source or score.
    """
    pairs = []
    for line, row in read_rows(file):
        first, second = (field(file, line, row, column) for column in ("sentence1", "sentence2"))
        score = None
        if "score" in row:
            value = field(file, line, row, "score", (int, float, str))  # csv holds strings only
            try:
                score = float(value)
            except ValueError as error:
                raise UnmaskError(f"{file}, line {line}, column 'score': '{value}' is not a number.") from error
        pairs.append(Pair(first, second, score))
    if not pairs:
        raise UnmaskError(f"'{file}' holds no pairs.")
    if len({pair.score is None for pair in pairs}) > 1:
        raise UnmaskError(f"'{file}': some pairs have a score and some have none.")
    return random_subset(pairs, limit, seed)


def fingerprint_of_pairs(pairs: Sequence[Pair]) -> str:
    """A hash of texts and scores."""
    return fingerprint_of([part for pair in pairs for part in (pair.first, pair.second, str(pair.score))])


def distinct_texts(pairs: Sequence[Pair]) -> tuple[list[str], list[int], list[int]]:
    """The texts of some pairs without repetitions, and the index of the first and of the second text of each pair."""
    texts = list(dict.fromkeys(text for pair in pairs for text in (pair.first, pair.second)))
    row = {text: index for index, text in enumerate(texts)}
    return texts, [row[pair.first] for pair in pairs], [row[pair.second] for pair in pairs]


def pair_cosines(
    encoder: Encoder, designs: Sequence[Design], pairs: Sequence[Pair]
) -> Float[NDArray[np.float64], "pair design"]:
    """Cosine of the two texts of each pair under each design. Every distinct text is computed once. Raises UnmaskError."""
    texts, first, second = distinct_texts(pairs)
    vectors = design_vectors(encoder, designs, texts)
    return np.stack([row_cosines(vectors[design][first], vectors[design][second]) for design in designs], axis=1)


def design_vectors(encoder: Encoder, designs: Sequence[Design], texts: Sequence[str]) -> dict[Design, NDArray[np.float32]]:
    """Vectors of every design, fitted on the reference texts of this package. Shows a progress bar. Raises UnmaskError."""
    for design in designs:
        design.require_dense("This command")
    encoder.check(designs)
    with progress_bar("reading texts", len(group_by_pass(designs)) * len(texts)) as advance:
        return encoder.encode(texts, encoder.fit(designs, reference_texts()), progress=advance, share_text=True)


def row_cosines(first: NDArray[np.floating], second: NDArray[np.floating]) -> NDArray[np.float64]:
    """Cosine of each row of one array with the same row of the other, in fp64. It is 0 if one of them is zero, as in mteb."""
    first, second = np.asarray(first, np.float64), np.asarray(second, np.float64)
    lengths = np.linalg.norm(first, axis=-1) * np.linalg.norm(second, axis=-1)
    return np.asarray((first * second).sum(axis=-1) / np.where(lengths > 0, lengths, 1.0))


def unit(vectors: NDArray[Any]) -> Float[NDArray[np.float64], "text dim"]:
    """Rows at unit length, in fp64. Raises UnmaskError for a row of zeros, which has no direction."""
    wide = np.asarray(vectors, np.float64)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    if not (lengths > 0).all():
        raise UnmaskError(f"Vector {int(np.argmin(lengths))} is zero or not a number, so it has no direction.")
    return np.asarray(wide / lengths, np.float64)
