"""Quantization: vectors are cut, normalised and written in a precision, and the loss of that precision is measured.

float16 rounds each value. int8 scales each vector by its own largest value, so that a vector depends on its text only. binary keeps the
sign of each value: eight dimensions in a byte, the first dimension in the highest bit, 1 for a value above 0. That is numpy.packbits,
`ubinary` in sentence-transformers, and the format of the binary indexes of FAISS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from numbers import Integral
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from unmask.designs.design import Design
from unmask.errors import UnmaskError, unknown
from unmask.statistics.correlations import spearman_matrix

Precision = Literal["float32", "float16", "int8", "binary"]
PRECISIONS: Final = get_args(Precision)
Vectors = NDArray[np.float32]
AnyVectors = NDArray[np.float32 | np.float16 | np.int8 | np.uint8]
SAMPLE = 200
"""Vectors that a loss is measured on."""
NEIGHBOURS = 10
_MIN_VECTORS = 3  # vectors; two have one cosine, and nothing to rank
_POSITIVE = ("softmax", "sigmoid")  # routing weights that are never negative


@dataclass(frozen=True)
class PrecisionLoss:
    """The change that a precision makes to the similarities of a sample of vectors.

    spearman: rank correlation of the cosines of every pair, before and after; None if the vectors are all equal. neighbours: share of the
    nearest vectors of each vector that stay among its nearest, of ten (of fewer in a small sample).
    """

    precision: Precision
    vectors: int
    spearman: float | None
    neighbours: float

    def as_json(self) -> dict[str, Any]:
        """For manifests."""
        return asdict(self)

    def __str__(self) -> str:
        """One sentence for people."""
        ranks = "" if self.spearman is None else f"rank correlation of cosines {self.spearman:.4f}, "
        return f"{self.precision} against float32, on {self.vectors} vectors: {ranks}{self.neighbours:.1%} of the nearest neighbours stay"


def finish(vectors: Vectors, dim: int | None, normalize: bool, precision: Precision) -> AnyVectors:
    """Cut, normalise and convert vectors. Raises UnmaskError for a dimension or precision that they do not have."""
    require_width(dim, vectors.shape[1], precision)
    vectors = vectors[:, :dim]
    if normalize:
        vectors = normalized(vectors)
    if precision == "float16":
        if vectors.size and np.abs(vectors).max() > np.finfo(np.float16).max:
            raise UnmaskError("These vectors do not fit float16; use normalize=True.")
        return vectors.astype(np.float16)
    if precision == "int8":
        largest = np.abs(vectors).max(axis=1, keepdims=True, initial=np.finfo(np.float32).tiny)
        return np.asarray(np.rint(vectors / largest * 127), np.int8)
    return np.packbits(vectors > 0, axis=1) if precision == "binary" else vectors


def require_width(dim: int | None, width: int, precision: Precision) -> None:
    """Raise UnmaskError unless vectors of this width can be cut to `dim` and written in this precision."""
    if precision not in PRECISIONS:
        raise unknown("precision", precision, PRECISIONS)
    if dim is not None and (not isinstance(dim, Integral) or isinstance(dim, bool)):
        raise UnmaskError(f"dim must be a whole number between 1 and {width}, not {dim!r}.")
    if dim is not None and not 1 <= dim <= width:
        raise UnmaskError(f"dim must be between 1 and {width}, not {dim}.")
    dims = dim or width
    if precision == "binary" and dims % 8:
        less = dims - dims % 8
        hint = f"Use dim={less}" if less else "Use int8"
        raise UnmaskError(f"binary packs eight dimensions into a byte, and {dims} is not a multiple of 8. {hint}.")


def require_signs(design: Design, precision: Precision) -> None:
    """Raise UnmaskError for binary vectors of a design whose values have no sign: all their bits would be 1."""
    if precision == "binary" and design.routing in _POSITIVE and not design.transforms:
        raise UnmaskError(
            f"Routing weights are never negative, so binary would give each text the same bits for them. Add '/zscore' to "
            f"'{design.name}', or use int8."
        )


def as_floats(vectors: NDArray[np.generic]) -> Vectors:
    """Vectors of any precision as float32. Binary ones (uint8) become +1 and -1, whose cosine is 1 - 2 Hamming / dimensions."""
    if np.asarray(vectors).dtype == np.uint8:
        return np.unpackbits(np.asarray(vectors, np.uint8), axis=-1) * np.float32(2) - np.float32(1)
    return np.asarray(vectors, np.float32)


def normalized(vectors: Vectors) -> Vectors:
    """Vectors at unit length."""
    with np.errstate(over="ignore"):
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not np.isfinite(lengths).all():  # squares beyond fp32, where every vector would become zero
        lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, np.finfo(np.float32).tiny), np.float32)


def unit_cosines(first: Vectors, second: Vectors) -> Vectors:
    """The cosine of each row of `first` with each row of `second`, all of unit length. Shapes (n, dim), (m, dim) -> (n, m).

    Equal vectors have equal cosines, whatever their row. `first @ second.T` does not guarantee that: BLAS rounds a row by its position in
    the block.
    """
    return np.asarray(np.vecdot(first[:, None], second), np.float32)


def sample_rows(count: int) -> NDArray[np.intp]:
    """The rows that a loss is measured on: at most 200, evenly spread, the same in every run."""
    return np.unique(np.linspace(0, count - 1, min(count, SAMPLE)).astype(np.intp)) if count else np.empty(0, np.intp)


def measure_loss(vectors: Vectors, precision: Precision) -> PrecisionLoss | None:
    """The change that a precision would make to these vectors; None for float32, and for fewer than three vectors."""
    if precision == "float32" or len(vectors) < _MIN_VECTORS:
        return None
    before, after = _cosines(vectors), _cosines(as_floats(finish(vectors, None, False, precision)))
    pairs = np.triu_indices(len(vectors), 1)
    table = np.stack([before[pairs], after[pairs]], axis=1)
    distinct = bool(np.ptp(table[:, 0]) > 0)
    nearest = min(NEIGHBOURS, len(vectors) - 1)
    common = [len(set(a) & set(b)) for a, b in zip(_nearest(before, nearest), _nearest(after, nearest), strict=True)]
    spearman = float(spearman_matrix(table)[0, 1]) if distinct else None
    return PrecisionLoss(precision, len(vectors), spearman, sum(common) / (nearest * len(common)))


def mean_loss(losses: Sequence[PrecisionLoss]) -> PrecisionLoss | None:
    """The loss over several samples of one precision, each weighted by its vectors. None without samples."""
    if len(losses) < 2:
        return losses[0] if losses else None
    ranked = [(loss.spearman, loss.vectors) for loss in losses if loss.spearman is not None]
    neighbours = _weighted_mean([(loss.neighbours, loss.vectors) for loss in losses])
    total = sum(loss.vectors for loss in losses)
    return PrecisionLoss(losses[0].precision, total, _weighted_mean(ranked) if ranked else None, neighbours)


def _weighted_mean(values: Sequence[tuple[float, int]]) -> float:
    return sum(value * weight for value, weight in values) / sum(weight for _, weight in values)


def _cosines(vectors: Vectors) -> Vectors:
    unit = normalized(vectors)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)  # no vector is its own neighbour
    return np.asarray(cosines, np.float32)


def _nearest(cosines: Vectors, count: int) -> list[list[int]]:
    """The nearest of each vector. Of equals, the first."""
    return np.argsort(-cosines, axis=1, kind="stable")[:, :count].tolist()  # type: ignore[no-any-return]
