"""Correlations: Spearman's correlation of many columns of scores of the same items, and of resamples of the items.

The values are sorted only once. A resample is stored as how often each item was drawn, and its ranks follow from counts of the distinct
values. So a bootstrap of a matrix of correlations costs no more than its products (Efron and Tibshirani, 1993, for the bootstrap).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int

from unmask.io.array_types import NDArray

RESAMPLES = 1000
Table = Float[NDArray[np.float64], "item column"]
Codes = Int[NDArray[np.int64], "column item"]
Counts = Int[NDArray[np.int64], " item"]
RankTable = Float[NDArray[np.float64], "column item"]


def codes_of(table: NDArray[np.floating]) -> Codes:
    """The distinct values of each column, numbered 0, 1, ... in ascending order."""
    return np.stack([np.unique(column, return_inverse=True)[1] for column in np.asarray(table).T])


def ranks_of(codes: Codes, counts: Counts) -> RankTable:
    """Average rank of every item among the drawn items, from 1. Items that were not drawn get a rank as well."""
    ranks = np.empty(codes.shape)
    for row, code in enumerate(codes):
        drawn = np.bincount(code, counts)
        ranks[row] = (np.cumsum(drawn) - (drawn - 1) / 2)[code]
    return ranks


def correlations(ranks: RankTable, counts: Counts) -> Float[NDArray[np.float64], "column column"]:
    """Pearson's correlation of every two rows of ranks, over the drawn items. It is 0 with a row of equal ranks."""
    centred = ranks - (counts.sum() + 1) / 2
    products = (centred * counts) @ centred.T
    spread = np.sqrt(products.diagonal())
    scale = np.where(spread > 0, spread, 1.0)
    return np.asarray(products / np.outer(scale, scale), np.float64)


def spearman_matrix(table: NDArray[np.floating]) -> Float[NDArray[np.float64], "column column"]:
    """Spearman's correlation of every two columns. It is 0 with a column of equal values."""
    once = np.ones(len(table), np.int64)
    return correlations(ranks_of(codes_of(table), once), once)


def resampled(n: int, seed: int = 0) -> Iterator[Counts]:
    """How often each of n items is drawn, for a thousand resamples of n items with replacement."""
    random = np.random.default_rng(seed)
    return (np.bincount(random.integers(n, size=n), minlength=n) for _ in range(RESAMPLES))
