"""Correlations: Spearman's correlation of many columns of scores of the same items, and of resamples of the items.

The values are sorted only once. A resample is stored as how often each item was drawn, and its ranks follow from counts of the distinct
values. So a bootstrap of a matrix of correlations costs no more than its products (Efron and Tibshirani, 1993, for the bootstrap).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import atanh, sqrt, tanh
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from unmask.io.array_types import NDArray
from unmask.statistics.intervals import Bounds

RESAMPLES = 1000
_PERMUTATIONS = 10_000
FEWEST_UNITS = 4
"""Units that the interval of a rank correlation needs."""
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
        frequency = np.bincount(code, counts)
        ranks[row] = (np.cumsum(frequency) - (frequency - 1) / 2)[code]
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


@dataclass(frozen=True)
class RankCorrelation:
    """rho: -1 to 1. interval: 95 %. p: two-sided. n: number of units. detectable: the |rho| that n units find in 80 % of studies."""

    rho: float
    interval: Bounds
    p: float
    n: int
    detectable: float

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


def rank_correlation(a: Sequence[float], b: Sequence[float], seed: int = 0) -> RankCorrelation:
    """Spearman's correlation of two measurements of the same few units, with an interval and a p-value.

    The interval is Fisher's z with the variance 1.06 / (n - 3) (Fieller, Hartley and Pearson, 1957), which holds its level for few units,
    where a bootstrap is too narrow. z of a perfect order is infinite, so it takes the rho of an order with two neighbours exchanged,
    1 - 12 / (n^3 - n). p is from permutations.

    Raises ValueError for lists of different lengths, for fewer than 4 units, and for values that are not finite. A list of equal values
    gives 0 and p = 1.
    """
    table = np.array([a, b], dtype=np.float64).T
    n = len(table)
    if n < FEWEST_UNITS or not np.isfinite(table).all():
        raise ValueError(f"A rank correlation needs at least {FEWEST_UNITS} units with finite values, not {n}.")
    rho = float(np.clip(spearman_matrix(table)[0, 1], -1, 1))
    random = np.random.default_rng(seed)
    ranks = ranks_of(codes_of(table), np.ones(n, np.int64))
    centred = ranks - (n + 1) / 2
    scale = float(np.sqrt((centred[0] ** 2).sum() * (centred[1] ** 2).sum()))
    orders = random.permuted(np.tile(centred[1], (_PERMUTATIONS, 1)), axis=1)
    shuffled = orders @ centred[0] / scale if scale else np.ones(1)
    p = (1 + int((np.abs(shuffled) >= abs(rho) - 1e-12).sum())) / (1 + len(shuffled)) if scale else 1.0
    error = sqrt(1.06 / (n - 3))
    limit = 1 - 12 / (n**3 - n)
    middle = atanh(min(max(rho, -limit), limit))
    low, high = tanh(middle - 1.96 * error), tanh(middle + 1.96 * error)
    return RankCorrelation(rho, (min(low, rho), max(high, rho)), p, n, tanh((1.96 + 0.842) * error))
