"""Maps: texts in two dimensions, once by hidden states and once by routing weights, and how far both put the same texts side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

NEIGHBOURS = 10


@dataclass(frozen=True, eq=False)
class TextMap:
    """places: from 0 to 1 on two axes, with one scale for both. explained: the share of variance on each axis."""

    places: Float[NDArray[np.float64], "text 2"]
    explained: tuple[float, float]
    neighbours: Int[NDArray[np.int64], "text neighbour"]


def text_map(vectors: Float[NDArray[Any], "text dim"]) -> TextMap:
    """The first two principal components of vectors, and the nearest neighbours in all dimensions.

    Each dimension is standardised first: a few dimensions of hidden states are so large that they would be the whole map.
    """
    standard = _standardised(vectors)
    products = standard @ standard.T
    values, axes = np.linalg.eigh(products)
    total = max(float(np.trace(products)), 1e-12)
    values, axes = values[::-1][:2], axes[:, ::-1][:, :2]
    axes = axes * np.where(axes[np.abs(axes).argmax(axis=0), range(axes.shape[1])] < 0, -1.0, 1.0)
    places = np.zeros((len(vectors), 2))
    places[:, : axes.shape[1]] = axes * np.sqrt(np.maximum(values, 0))
    spread = max(float(np.ptp(places, axis=0).max()), 1e-12)
    middle = (places.max(axis=0) + places.min(axis=0)) / 2
    shares = [*np.maximum(values, 0) / total, 0.0, 0.0]
    return TextMap((places - middle) / spread + 0.5, (float(shares[0]), float(shares[1])), _nearest(products))


def shared_neighbours(one: TextMap, other: TextMap) -> tuple[float, float]:
    """The share of nearest neighbours that two maps have in common, and what chance gives."""
    texts, size = one.neighbours.shape
    same = [len(np.intersect1d(*pair)) / size for pair in zip(one.neighbours, other.neighbours, strict=True)] if size else []
    return float(np.mean(same)) if same else 0.0, size / max(1, texts - 1)


def same_label(neighbours: Int[NDArray[np.int64], "text neighbour"], codes: Int[NDArray[Any], " text"]) -> tuple[float, float]:
    """The share of nearest neighbours with the same label, and what chance gives."""
    texts = len(codes)
    counts = np.bincount(codes)[codes]
    return float((codes[neighbours] == codes[:, None]).mean()), float(((counts - 1) / max(1, texts - 1)).mean())


def _standardised(vectors: NDArray[Any]) -> NDArray[np.float64]:
    wide = vectors.astype(np.float64)
    spread = wide.std(axis=0)
    kept = spread > 1e-9
    return np.asarray((wide[:, kept] - wide[:, kept].mean(axis=0)) / spread[kept])


def _nearest(products: NDArray[np.float64]) -> NDArray[np.int64]:
    size = min(NEIGHBOURS, len(products) - 1)
    lengths = np.diagonal(products)
    distances = lengths[:, None] + lengths - 2 * products
    np.fill_diagonal(distances, np.inf)
    return np.asarray(np.argsort(distances, axis=1, kind="stable")[:, :size])
