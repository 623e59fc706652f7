"""Rank correlation of two measurements of the same few units, with an interval and a p-value.

Spearman's rho: Pearson's correlation of the ranks, ties with their mean rank. The interval is Fisher's z with the variance 1.06 / (n - 3)
(Fieller, Hartley and Pearson, 1957), which holds its level for few units where a bootstrap is too narrow. z of a perfect order is without
end, so it takes the rho of an order with two neighbours exchanged, 1 - 12 / (n^3 - n). p is from permutations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import atanh, sqrt, tanh
from typing import Any

import numpy as np

from unmask.statistics.correlations import codes_of, ranks_of, spearman_matrix
from unmask.statistics.intervals import Bounds

_PERMUTATIONS = 10_000
FEWEST = 4
"""Units that an interval needs."""


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
    """Spearman's correlation of two lists of values of the same units.

    Raises ValueError for lists of different lengths, for fewer than 4 units, and for values that are not finite. A list of equal values
    gives 0 and p = 1.
    """
    table = np.array([a, b], dtype=np.float64).T
    n = len(table)
    if n < FEWEST or not np.isfinite(table).all():
        raise ValueError(f"A rank correlation needs at least {FEWEST} units with finite values, not {n}.")
    rho = float(np.clip(spearman_matrix(table)[0, 1], -1, 1))
    random = np.random.default_rng(seed)
    ranks = ranks_of(codes_of(table), np.ones(n, np.int64))
    centred = ranks - (n + 1) / 2
    scale = float(np.sqrt((centred[0] ** 2).sum() * (centred[1] ** 2).sum()))
    orders = random.permuted(np.tile(centred[1], (_PERMUTATIONS, 1)), axis=1)
    shuffled = orders @ centred[0] / scale if scale else np.ones(1)
    p = (1 + int((np.abs(shuffled) >= abs(rho) - 1e-12).sum())) / (1 + len(shuffled)) if scale else 1.0
    error = sqrt(1.06 / (n - 3))
    most = 1 - 12 / (n**3 - n)
    middle = atanh(min(max(rho, -most), most))
    low, high = tanh(middle - 1.96 * error), tanh(middle + 1.96 * error)
    return RankCorrelation(rho, (min(low, rho), max(high, rho)), p, n, tanh((1.96 + 0.842) * error))
