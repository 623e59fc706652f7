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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Real

from unmask.embedder import Embedder
from unmask.errors import UnmaskError
from unmask.io.array_types import NDArray
from unmask.probing.inputs import Pair, ProbeResult, distinct_texts, fingerprint_of_pairs, unit
from unmask.statistics.intervals import Bounds, jackknife_interval, ratio_left_out

POSITIVE = 4.0
"""Pairs of the STS benchmark (scores 0 to 5) with at least this score count as paraphrases."""
_T = 2.0
_ROWS_AT_ONCE = 1024

Vectors = Real[NDArray[Any], "text dim"]


@dataclass(frozen=True)
class Geometry(ProbeResult):
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
        """The result, and which way is better."""
        return super().as_json() | {"better": {"alignment": "lower", "uniformity": "lower"}}


def alignment(first: Vectors, second: NDArray[Any]) -> Float[NDArray[np.float64], " pair"]:
    """|x - y|^2 of each pair of rows at unit length: 0 if they are equal, 4 if they are opposite. Raises UnmaskError."""
    return np.asarray(np.square(unit(first) - unit(second)).sum(axis=1))


@dataclass(frozen=True)
class Spread:
    """Uniformity and mean cosine over all pairs of different rows: of all, and without each group of texts."""

    uniformity: float
    mean_cosine: float
    uniformity_without: Float[NDArray[np.float64], " group"]
    """nan where fewer than two texts are left."""
    mean_cosine_without: Float[NDArray[np.float64], " group"]


def spread(vectors: Vectors, groups: NDArray[np.int64]) -> Spread:
    """How evenly rows are spread, in blocks, so that memory never holds all pairs. Raises UnmaskError for fewer than two rows."""
    if len(vectors) < 2:
        raise UnmaskError(f"Pairs of different texts need two texts or more, not {len(vectors)}.")
    rows, number = unit(vectors), int(groups.max()) + 1
    sums, with_all, inside = np.zeros((number, rows.shape[1])), np.zeros(number), np.zeros(number)
    np.add.at(sums, groups, rows)
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        block_groups = groups[start : start + _ROWS_AT_ONCE]
        # on the unit sphere |x - y|^2 is 2 - 2 cos
        near = np.exp(-_T * (2 - 2 * rows[start : start + _ROWS_AT_ONCE] @ rows.T))
        with_all += np.bincount(block_groups, near.sum(axis=1), number)
        inside += np.bincount(block_groups, (near * (block_groups[:, None] == groups)).sum(axis=1), number)

    def mean_of_pairs(total: Any, texts: Any) -> Any:
        # a text with itself has a kernel and a cosine of 1
        return (total - texts) / texts / (texts - 1)

    remaining = len(rows) - np.bincount(groups, minlength=number).astype(np.float64)
    remaining[remaining < 2] = np.nan
    total = sums.sum(axis=0)
    return Spread(
        float(np.log(mean_of_pairs(with_all.sum(), len(rows)))),
        float(mean_of_pairs(total @ total, len(rows))),
        np.log(mean_of_pairs(with_all.sum() - 2 * with_all + inside, remaining)),
        mean_of_pairs(np.square(total - sums).sum(axis=1), remaining),
    )


def effective_rank(vectors: Vectors) -> float:
    """Exp of the entropy of the singular values of the centred rows, 1 to min(rows - 1, dim). Raises UnmaskError."""
    centred = np.asarray(vectors, np.float64) - np.asarray(vectors, np.float64).mean(axis=0)
    values = np.linalg.svd(centred, compute_uv=False)
    if not values.sum():
        raise UnmaskError("All vectors are equal, so they have no effective rank.")
    share = values[values > 0] / values.sum()
    return float(np.exp(-(share * np.log(share)).sum()))


def group_linked(first: Sequence[int], second: Sequence[int], texts: int) -> NDArray[np.int64]:
    """The group of each text: a pair links its two texts, and pairs that share a text are one group."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    links = coo_array((np.ones(len(first)), (first, second)), shape=(texts, texts))
    return np.asarray(connected_components(links, directed=False)[1], np.int64)


def probe_geometry(embedder: Embedder, pairs: Sequence[Pair], positive_from: float = POSITIVE) -> Geometry:
    """Embed the distinct texts of pairs and measure how they lie. Raises UnmaskError if no pair is positive."""
    positive = [index for index, pair in enumerate(pairs) if pair.score is None or pair.score >= positive_from]
    if not positive:
        raise UnmaskError(
            f"No pair has a score of {positive_from:g} or more. Give a lower score from which a pair counts as a paraphrase."
        )
    texts, first, second = distinct_texts(pairs)
    vectors = embedder.encode(texts)
    groups = group_linked(first, second, len(texts))
    distances = alignment(vectors[np.array(first)[positive]], vectors[np.array(second)[positive]])
    pair_groups = np.unique(groups[np.array(first)[positive]], return_inverse=True)[1]
    distances_left_out = ratio_left_out(
        np.bincount(pair_groups, distances).astype(np.float64), np.bincount(pair_groups).astype(np.float64)
    )
    aligned, spread_out = float(distances.mean()), spread(vectors, groups)
    return Geometry(
        alignment=aligned,
        alignment_interval=jackknife_interval(aligned, distances_left_out),
        uniformity=spread_out.uniformity,
        uniformity_interval=jackknife_interval(spread_out.uniformity, spread_out.uniformity_without, most=0.0),
        mean_cosine=spread_out.mean_cosine,
        mean_cosine_interval=jackknife_interval(spread_out.mean_cosine, spread_out.mean_cosine_without, most=1.0),
        effective_rank=effective_rank(vectors),
        positives=len(positive),
        texts=len(texts),
        groups=int(groups.max()) + 1,
        dim=vectors.shape[1],
        positive_from=None if pairs[0].score is None else positive_from,
        data=fingerprint_of_pairs(pairs),
        provenance=embedder.encoder.provenance | {"design": embedder.design.name, "max_length": embedder.max_length},
    )
