"""Ranks: Spearman's correlation of many readings of the same items, and of resamples of these, sorted only once.

A resample is how often each item was drawn. RankTable within it follow from counts of the distinct values, so that a bootstrap of a
matrix of correlations costs what its products cost (Efron and Tibshirani, 1993, for the bootstrap).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

RESAMPLES = 1000
Table = Float[NDArray[np.float64], "item reading"]
Codes = Int[NDArray[np.int64], "reading item"]
Counts = Int[NDArray[np.int64], " item"]
RankTable = Float[NDArray[np.float64], "reading item"]


def codes_of(table: NDArray[np.floating]) -> Codes:
    """Each reading's distinct values numbered 0, 1, ... in ascending order."""
    return np.stack([np.unique(column, return_inverse=True)[1] for column in np.asarray(table).T])


def ranks_of(codes: Codes, counts: Counts) -> RankTable:
    """Average rank of every item among the items that were drawn, from 1; items that were not drawn get a rank as well."""
    ranks = np.empty(codes.shape)
    for row, code in enumerate(codes):
        drawn = np.bincount(code, counts)
        ranks[row] = (np.cumsum(drawn) - (drawn - 1) / 2)[code]
    return ranks


def correlations(ranks: RankTable, counts: Counts) -> Float[NDArray[np.float64], "reading reading"]:
    """Pearson's correlation of every two rows of ranks over the items that were drawn; 0 with a row that orders nothing."""
    centred = ranks - (counts.sum() + 1) / 2
    products = (centred * counts) @ centred.T
    spread = np.sqrt(products.diagonal())
    scale = np.where(spread > 0, spread, 1.0)
    return np.asarray(products / np.outer(scale, scale), np.float64)


def spearman_matrix(table: NDArray[np.floating]) -> Float[NDArray[np.float64], "reading reading"]:
    """Spearman's correlation of every two columns; 0 with a column that orders nothing."""
    once = np.ones(len(table), np.int64)
    return correlations(ranks_of(codes_of(table), once), once)


def resampled(n: int, seed: int = 0) -> Iterator[Counts]:
    """How often each of n items is drawn, for a thousand draws of n with replacement."""
    random = np.random.default_rng(seed)
    return (np.bincount(random.integers(n, size=n), minlength=n) for _ in range(RESAMPLES))
