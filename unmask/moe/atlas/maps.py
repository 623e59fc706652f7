"""Maps: texts in two dimensions, once by hidden states and once by routing weights, and how far both put the same texts side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from unmask.io.array_types import NDArray
from unmask.statistics.intervals import Bounds
from unmask.statistics.jackknife import jackknife_interval

NEIGHBOURS = 10
Nearest = Int[NDArray[np.int64], "text neighbour"]
Rows = Int[NDArray[np.int64], " text"]


@dataclass(frozen=True, eq=False)
class TextMap:
    """places: from 0 to 1 on two axes, with one scale for both. explained: the share of variance on each axis.

    nearest: the ten nearest texts of each, and an eleventh, which takes the place of one that the jackknife leaves out.
    """

    places: Float[NDArray[np.float64], "text 2"]
    explained: tuple[float, float]
    nearest: Nearest

    @property
    def neighbours(self) -> Nearest:
        """The ten nearest texts of each; fewer if there are not as many."""
        return self.nearest[:, :NEIGHBOURS]


@dataclass(frozen=True)
class Nearness:
    """A share of nearest neighbours, what chance gives, and the 95 % interval of the share: by jackknife over texts.

    A bootstrap would draw some texts twice, and a copy of a text is its nearest neighbour. interval is None for fewer than five texts.
    """

    value: float
    chance: float
    interval: Bounds | None


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
    coordinates = np.zeros((len(vectors), 2))
    coordinates[:, : axes.shape[1]] = axes * np.sqrt(np.maximum(values, 0))
    spread = max(float(np.ptp(coordinates, axis=0).max()), 1e-12)
    middle = (coordinates.max(axis=0) + coordinates.min(axis=0)) / 2
    shares = [*np.maximum(values, 0) / total, 0.0, 0.0]
    return TextMap((coordinates - middle) / spread + 0.5, (float(shares[0]), float(shares[1])), _nearest(products))


def shared_neighbours(first_map: TextMap, second_map: TextMap) -> Nearness:
    """The share of nearest neighbours that two maps have in common."""

    def share(_: Rows, first: Nearest, second: Nearest) -> NDArray[np.float64]:
        return np.asarray((first[:, :, None] == second[:, None, :]).any(axis=2).mean(axis=1), np.float64)

    texts, size = first_map.neighbours.shape
    return _nearness(share, [first_map.nearest, second_map.nearest], size / (texts - 1))


def same_label(text_map: TextMap, codes: Int[NDArray[Any], " text"]) -> Nearness:
    """The share of nearest neighbours with the same label."""

    def share(texts: Rows, nearest: Nearest) -> NDArray[np.float64]:
        return np.asarray((codes[nearest] == codes[texts, None]).mean(axis=1), np.float64)

    counts = np.bincount(codes)[codes]
    return _nearness(share, [text_map.nearest], float(((counts - 1) / (len(codes) - 1)).mean()))


def _nearness(share: Callable[..., NDArray[np.float64]], nearest: Sequence[Nearest], chance: float) -> Nearness:
    """The mean of a share over texts, with its interval. share: of some texts, from their nearest texts."""
    number = len(nearest[0])
    shares = share(np.arange(number), *(neighbours[:, :NEIGHBOURS] for neighbours in nearest))
    left_out = np.empty(number)
    for text in range(number):
        near = np.flatnonzero(np.any([(neighbours[:, :NEIGHBOURS] == text).any(axis=1) for neighbours in nearest], axis=0))
        changed = share(near, *(_without(neighbours[near], text) for neighbours in nearest)).sum() if number > 2 else 0.0
        left_out[text] = (shares.sum() - shares[text] - shares[near].sum() + changed) / (number - 1)
    return Nearness(float(shares.mean()), chance, jackknife_interval(float(shares.mean()), left_out, most=1.0))


def _without(nearest: Nearest, text: int) -> Int[NDArray[np.int64], "text rest"]:
    """The nearest texts but one, in their order."""
    last = np.argsort(nearest == text, axis=1, kind="stable")
    return np.take_along_axis(nearest, last, axis=1)[:, : nearest.shape[1] - 1]


def _standardised(vectors: NDArray[Any]) -> NDArray[np.float64]:
    wide = vectors.astype(np.float64)
    spread = wide.std(axis=0)
    varies = spread > 1e-9
    return np.asarray((wide[:, varies] - wide[:, varies].mean(axis=0)) / spread[varies])


def _nearest(products: NDArray[np.float64]) -> Nearest:
    size = min(NEIGHBOURS + 1, len(products) - 1)
    lengths = np.diagonal(products)
    distances = lengths[:, None] + lengths - 2 * products
    np.fill_diagonal(distances, np.inf)
    return np.asarray(np.argsort(distances, axis=1, kind="stable")[:, :size])
