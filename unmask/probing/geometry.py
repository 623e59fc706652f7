"""Geometry: are paraphrases close, and are texts spread over the sphere?

- alignment: mean squared distance of unit vectors of paraphrases; lower is closer.
- uniformity: log of the mean of exp(-2 |x - y|^2) over pairs of unit vectors; LOWER (more negative) is more uniform. It is 0 if all vectors
  are equal, and -4 for random directions in many dimensions. Alignment and uniformity: Wang and Isola (arXiv 2005.10242).
- effective rank: exp of the entropy of the singular values of the centred vectors, each divided by their sum: how many dimensions are in
  use (Roy and Vetterli, 2007).

Intervals are by jackknife (`unmask.statistics.intervals`), since a bootstrap would draw some texts twice, and two copies of a text are
equal. Texts that pairs link are left out together, since the two texts of a paraphrase are similar.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Real

from unmask.designs.design import Design
from unmask.embedder import Embedder
from unmask.encoding.encoder import Encoder
from unmask.encoding.forward_pass import group_by_pass
from unmask.errors import UnmaskError
from unmask.io.array_types import NDArray
from unmask.io.rows import field, read_rows
from unmask.io.terminal import progress_bar
from unmask.models.provenance import fingerprint_of
from unmask.starter import reference_texts
from unmask.statistics.intervals import Bounds, jackknife_interval, ratio_left_out
from unmask.tasks.sampling import random_subset

POSITIVE = 4.0
"""Pairs of the STS benchmark (scores 0 to 5) with at least this score count as paraphrases."""
_T = 2.0
_ROWS_AT_ONCE = 1024

Vectors = Real[NDArray[Any], "text dim"]


@dataclass(frozen=True)
class Pair:
    """Two texts and how similar they are. score: None if the file has no scores; then all pairs are paraphrases."""

    one: str
    other: str
    score: float | None = None


@dataclass(frozen=True)
class Geometry:
    """How texts lie on the sphere: alignment over the positives (paraphrases), everything else over the distinct texts.

    Lower alignment and lower uniformity are better. mean_cosine: of different texts, 0 if they lie evenly around the origin.
    effective_rank: at most the smaller of dim and texts - 1. It has no interval: it grows with the number of texts, so an interval around
    it would not hold what more texts give. Compare it between designs on the same texts. groups: of texts that pairs link, the units of
    the intervals, which are None for fewer than five.
    """

    alignment: float
    alignment_interval: Bounds | None
    uniformity: float
    uniformity_interval: Bounds | None
    mean_cosine: float
    mean_cosine_interval: Bounds | None
    effective_rank: float
    positives: int
    texts: int
    groups: int
    dim: int
    positive_from: float | None
    data: str
    provenance: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self) | {"better": {"alignment": "lower", "uniformity": "lower"}}


def alignment(first: Vectors, second: NDArray[Any]) -> float:
    """Mean of |x - y|^2 over pairs of rows at unit length: 0 if all are equal, 4 if all are opposite. Raises UnmaskError."""
    if len(first) != len(second) or not len(first):
        raise UnmaskError(
            f"Alignment needs the same number of vectors on both sides, at least 1, not {len(first)} and {len(second)}."
        )
    return float(np.square(unit(first) - unit(second)).sum(axis=1).mean())


def uniformity(vectors: Vectors) -> float:
    """Log of the mean of exp(-2 |x - y|^2) over all pairs of different rows; lower is more uniform. Raises UnmaskError."""
    _enough(vectors)
    # on the unit sphere |x - y|^2 is 2 - 2 cos
    total = sum(float(np.exp(-_T * (2 - 2 * block)).sum()) for block in _cosines(vectors))
    return float(np.log(total / (len(vectors) * (len(vectors) - 1) / 2)))


def mean_cosine(vectors: Vectors) -> float:
    """Mean cosine over all pairs of different rows, computed as (|sum of rows|^2 - n) / (n (n - 1)). Raises UnmaskError."""
    _enough(vectors)
    total, n = unit(vectors).sum(axis=0), len(vectors)
    return float((total @ total - n) / (n * (n - 1)))


def effective_rank(vectors: Vectors) -> float:
    """Exp of the entropy of the singular values of the centred rows, 1 to min(rows - 1, dim). Raises UnmaskError."""
    _enough(vectors)
    centred = np.asarray(vectors, np.float64) - np.asarray(vectors, np.float64).mean(axis=0)
    values = np.linalg.svd(centred, compute_uv=False)
    if not values.sum():
        raise UnmaskError("All vectors are equal, so they have no effective rank.")
    share = values[values > 0] / values.sum()
    return float(np.exp(-(share * np.log(share)).sum()))


def unit(vectors: Vectors) -> Float[NDArray[np.float64], "text dim"]:
    """Rows at unit length, in fp64. Raises UnmaskError for a row of zeros, which has no direction."""
    wide = np.asarray(vectors, np.float64)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    if not (lengths > 0).all():
        raise UnmaskError(f"Vector {int(np.argmin(lengths))} is zero or not a number, so it has no direction.")
    return np.asarray(wide / lengths, np.float64)


def read_pairs(file: Path, limit: int | None = None, seed: int = 0) -> list[Pair]:
    """Pairs from rows {sentence1, sentence2} with an optional number `score`. Raises UnmaskError with file, line and column.

    With a limit, the seed draws the pairs from the whole file, since many files are sorted by source or score.
    """
    pairs = []
    for line, row in read_rows(file):
        first, second = (field(file, line, row, column) for column in ("sentence1", "sentence2"))
        pairs.append(Pair(first, second, _score(file, line, row) if "score" in row else None))
    if not pairs:
        raise UnmaskError(f"'{file}' holds no pairs.")
    if len({pair.score is None for pair in pairs}) > 1:
        raise UnmaskError(f"'{file}': some pairs have a score and some have none.")
    return random_subset(pairs, limit, seed)


def linked(pairs: Sequence[tuple[int, int]], texts: int) -> NDArray[np.int64]:
    """The group of each text: a pair links its two texts, and pairs that share a text are one group."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    first, second = np.array(pairs).T
    links = coo_array((np.ones(len(pairs)), (first, second)), shape=(texts, texts))
    return np.asarray(connected_components(links, directed=False)[1], np.int64)


def without_each(
    vectors: Vectors, groups: NDArray[np.int64]
) -> tuple[Float[NDArray[np.float64], " group"], Float[NDArray[np.float64], " group"]]:
    """Uniformity and mean cosine of the texts without each group; nan where fewer than two texts are left."""
    rows, number = unit(vectors), int(groups.max()) + 1
    sums, with_all, inside = np.zeros((number, rows.shape[1])), np.zeros(number), np.zeros(number)
    np.add.at(sums, groups, rows)
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        block_groups = groups[start : start + _ROWS_AT_ONCE]
        near = np.exp(-_T * (2 - 2 * rows[start : start + _ROWS_AT_ONCE] @ rows.T))
        with_all += np.bincount(block_groups, near.sum(axis=1), number)
        inside += np.bincount(block_groups, (near * (block_groups[:, None] == groups)).sum(axis=1), number)
    remaining = len(rows) - np.bincount(groups, minlength=number).astype(np.float64)
    remaining[remaining < 2] = np.nan
    close = with_all.sum() - 2 * with_all + inside - remaining  # a text with itself has a kernel of 1
    total = np.square(sums.sum(axis=0) - sums).sum(axis=1) - remaining
    return np.log(close / remaining / (remaining - 1)), total / remaining / (remaining - 1)


def _score(file: Path, line: int, row: dict[str, Any]) -> float:
    try:
        return float(field(file, line, row, "score", (int, float, str)))  # csv holds strings only
    except ValueError as error:
        if isinstance(error, UnmaskError):
            raise
        raise UnmaskError(f"{file}, line {line}, column 'score': '{row['score']}' is not a number.") from error


def probe_geometry(embedder: Embedder, pairs: Sequence[Pair], positive_from: float = POSITIVE) -> Geometry:
    """Embed the distinct texts of pairs and measure how they lie. Raises UnmaskError if no pair is positive."""
    scored = pairs[0].score is not None if pairs else False
    positives = [pair for pair in pairs if pair.score is None or pair.score >= positive_from]
    if not positives:
        raise UnmaskError(
            f"No pair has a score of {positive_from:g} or more. Give a lower score from which a pair counts as a paraphrase."
        )
    texts = list(dict.fromkeys(text for pair in pairs for text in (pair.one, pair.other)))
    row = {text: index for index, text in enumerate(texts)}
    vectors = embedder.encode(texts)
    groups = linked([(row[pair.one], row[pair.other]) for pair in pairs], len(texts))
    first, second = ([row[getattr(pair, side)] for pair in positives] for side in ("one", "other"))
    squared_distances = np.square(unit(vectors[first]) - unit(vectors[second])).sum(axis=1)
    pair_groups = np.unique(groups[first], return_inverse=True)[1]
    aligned = ratio_left_out(
        np.bincount(pair_groups, squared_distances).astype(np.float64), np.bincount(pair_groups).astype(np.float64)
    )
    spread, close = without_each(vectors, groups)
    measures = alignment(vectors[first], vectors[second]), uniformity(vectors), mean_cosine(vectors)
    return Geometry(
        alignment=measures[0],
        alignment_interval=jackknife_interval(measures[0], aligned),
        uniformity=measures[1],
        uniformity_interval=jackknife_interval(measures[1], spread, most=0.0),
        mean_cosine=measures[2],
        mean_cosine_interval=jackknife_interval(measures[2], close, most=1.0),
        effective_rank=effective_rank(vectors),
        positives=len(positives),
        texts=len(texts),
        groups=int(groups.max()) + 1,
        dim=vectors.shape[1],
        positive_from=positive_from if scored else None,
        data=fingerprint_of([part for pair in pairs for part in (pair.one, pair.other, str(pair.score))]),
        provenance=embedder.encoder.provenance | {"design": embedder.design.name, "max_length": embedder.max_length},
    )


def pair_cosines(
    encoder: Encoder, designs: Sequence[Design], pairs: Sequence[Pair]
) -> Float[NDArray[np.float64], "pair design"]:
    """Cosine of the two texts of each pair under each design. Every distinct text is computed once. Raises UnmaskError."""
    texts = list(dict.fromkeys(text for pair in pairs for text in (pair.one, pair.other)))
    row = {text: index for index, text in enumerate(texts)}
    vectors = design_vectors(encoder, designs, texts)
    first, second = [row[pair.one] for pair in pairs], [row[pair.other] for pair in pairs]
    return np.stack([row_cosines(vectors[design][first], vectors[design][second]) for design in designs], axis=1)


def design_vectors(encoder: Encoder, designs: Sequence[Design], texts: Sequence[str]) -> dict[Design, NDArray[np.float32]]:
    """Vectors of every design, fitted on the reference texts of this package. Shows a progress bar. Raises UnmaskError."""
    for design in designs:
        design.require_dense("This command")
    encoder.check(designs)
    with progress_bar("reading texts", len(group_by_pass(designs)) * len(texts)) as advance:
        return encoder.encode(texts, encoder.fit(designs, reference_texts()), progress=advance)


def row_cosines(first: NDArray[np.floating], second: NDArray[np.floating]) -> NDArray[np.float64]:
    """Cosine of each row of one array with the same row of the other, in fp64. It is 0 if one of them is zero, as in mteb."""
    first, second = np.asarray(first, np.float64), np.asarray(second, np.float64)
    lengths = np.linalg.norm(first, axis=-1) * np.linalg.norm(second, axis=-1)
    return np.asarray((first * second).sum(axis=-1) / np.where(lengths > 0, lengths, 1.0))


def _enough(vectors: Vectors) -> None:
    if len(vectors) < 2:
        raise UnmaskError(f"Pairs of different texts need two texts or more, not {len(vectors)}.")


def _cosines(vectors: Vectors) -> Iterator[Float[NDArray[np.float64], " pair"]]:
    """Cosines of each row with the rows after it, in blocks, so that memory never holds all pairs of texts."""
    rows = unit(vectors)
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        block = rows[start : start + _ROWS_AT_ONCE] @ rows[start:].T
        yield block[np.triu_indices(len(block), 1, block.shape[1])]
