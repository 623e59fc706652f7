"""Ratios: scores that are a sum over sentences divided by another sum over sentences, such as accuracy and F1.

Accuracy is correct words / words. The F1 of entities is 2 x correct / (gold + predicted). Words of a sentence depend on each other, so
the bootstrap draws whole sentences (Efron and Tibshirani, 1993).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from unmask.errors import UnmaskError
from unmask.io.array_types import NDArray
from unmask.statistics.bootstrap import drawn_indices, interval, ratio
from unmask.statistics.intervals import NO_WIDTH, difference_interval, unseen
from unmask.statistics.paired import SIGNIFICANT, counted_p, sign_flip_p

RESAMPLES = 2000


@dataclass(frozen=True, eq=False)
class Ratio:
    """A numerator and a denominator for each sentence. share: whether 0 and 1 are the worst and the best score, as of an accuracy."""

    above: Float[NDArray[np.float64], " sentence"]
    below: Float[NDArray[np.float64], " sentence"]
    share: bool = False

    @property
    def value(self) -> float:
        """The score on all sentences; 0.0 if there is nothing to score."""
        total = float(self.below.sum())
        return float(self.above.sum()) / total if total else 0.0

    def interval(self, seed: int = 0) -> tuple[float, float] | None:
        """The 95 % interval by bootstrap over sentences; None for fewer than two.

        If all sentences of a share came out the same, a share `unseen` of other sentences may be all right, or all wrong.
        """
        if len(self.above) < 2:
            return None
        low, high = interval(_resampled(self, seed))
        if not self.share or high - low > NO_WIDTH:
            return low, high
        error = unseen(len(self.above))
        return self.value - error * self.value, self.value + error * (1 - self.value)


@dataclass(frozen=True)
class Difference:
    """First minus second on the same n sentences: interval by a paired bootstrap, and a two-sided p (see `difference`).

    The interval contains 0 if p is 0.05 or more.
    """

    metric: str
    first: float
    second: float
    difference: float
    interval: tuple[float, float]
    p: float
    n: int


def difference(metric: str, first: Ratio, second: Ratio, seed: int = 0) -> Difference:
    """Compare two ratios over the same sentences. Raises UnmaskError for fewer than two sentences.

    p is exact (`sign_flip_p`) if both have the same denominators, as an accuracy has, and few enough sentences differ. Otherwise it is
    counted on the bootstrap (`counted_p`). The interval of two shares always has a width (`difference_interval`).

    With few sentences the bootstrap interval is too narrow, so it is widened to contain 0 if p is 0.05 or more. If an exact p is
    smaller but the interval contains 0, as with skewed differences, the bootstrap p is used.
    """
    if len(first.above) != len(second.above) or len(first.above) < 2:
        counts = f"{len(first.above)} and {len(second.above)}"
        raise UnmaskError(f"A paired comparison needs the same sentences for both, two or more: {counts} were given.")
    samples = _resampled(first, seed) - _resampled(second, seed)
    samples = samples[~np.isnan(samples)]
    exact = sign_flip_p(first.above - second.above) if np.array_equal(first.below, second.below) else None
    p = counted_p(samples) if exact is None else exact
    n, observed = len(first.above), first.value - second.value
    low, high = difference_interval(samples, observed, n) if first.share and second.share else interval(samples)
    if low <= 0 <= high and p < SIGNIFICANT:
        p = counted_p(samples)
    if p >= SIGNIFICANT:
        low, high = min(low, 0.0), max(high, 0.0)
    return Difference(metric, first=first.value, second=second.value, difference=observed, interval=(low, high), p=p, n=n)


def _resampled(score: Ratio, seed: int) -> NDArray[np.float64]:
    """The score on each resample; nan for a resample with nothing to score."""
    columns = {"above": score.above, "below": score.below}
    blocks = drawn_indices(len(score.above), RESAMPLES, np.random.default_rng(seed))
    return np.concatenate([ratio(columns, indices) for indices in blocks])
