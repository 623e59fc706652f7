"""Intervals: how sure a score is, also where every item came out the same.

A bootstrap draws from the observed outcomes. If twenty texts of twenty are classified correctly, every resample is all correct, and the
interval has no width. Yet other outcomes can happen: if none of a hundred items failed, up to three of a hundred others may fail (the
rule of three; Hanley and Lippman-Hand, 1983).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist

import numpy as np
from jaxtyping import Float

from unmask.io.array_types import NDArray
from unmask.statistics.bootstrap import Items, Scores, bootstrap, interval, score

Bounds = tuple[float, float]


@dataclass(frozen=True)
class Estimate:
    """A number and its 95 % interval."""

    value: float
    interval: Bounds


NO_WIDTH = 1e-12
"""The smallest width that counts: anything less is floating-point error."""

FEWEST_TEXTS = 5
"""The fewest texts with a jackknife interval. With fewer, the error itself is hardly known."""

_DRAWN = 0.95
"""The highest level that is read off a thousand resamples."""

_LOWEST = {"spearman": -1.0}
"""The lowest score of a metric, where that is not 0; the highest is 1."""


def wilson(successes: float, n: int, level: float = 0.95) -> Bounds:
    """Wilson's score interval of a share (Wilson, 1927; recommended for small n by Brown, Cai and DasGupta, 2001)."""
    z2 = _z(level) ** 2
    share = successes / n
    centre, half = share + z2 / (2 * n), sqrt(z2 * (share * (1 - share) / n + z2 / (4 * n * n)))
    return max(0.0, (centre - half) / (1 + z2 / n)), min(1.0, (centre + half) / (1 + z2 / n))


def unseen(n: int, level: float = 0.95) -> float:
    """The largest plausible share of an outcome that none of n items showed: the upper bound of Wilson's interval for 0 of n."""
    z2 = _z(level) ** 2
    return z2 / (n + z2)


def score_interval(items: Items, level: float = 0.95, resamples: int = 1000) -> Bounds | None:
    """The interval of a score, from two items or more. None if no resample of them has a score.

    - Items that are right or wrong (0 or 1): Wilson's interval.
    - Other items: percentile bootstrap over the items. For V-measure it is centred on the score, since repeated items inflate it.
    - If the bootstrap has no width, since all items came out the same: a share `unseen` of other items may be as bad, or as good, as an
      item can be.
    """
    value = items.columns.get("value")
    if items.metric == "mean" and value is not None and np.isin(value, (0, 1)).all():
        return wilson(float(value.sum()), items.n, level)
    main, samples = score(items), bootstrap(items, resamples)
    if np.isnan(samples).all():
        return None
    low, high = interval(samples, min(level, _DRAWN), around=main if items.metric == "v-measure" else None)
    lowest, highest = min(_LOWEST.get(items.metric, 0.0), main), max(1.0, main)
    if high - low <= NO_WIDTH:
        share = unseen(items.n, level)
        return main - share * (main - lowest), main + share * (highest - main)
    if level <= _DRAWN:
        return low, high
    stretch = _z(level) / _z(_DRAWN)
    return max(lowest, main - stretch * (main - low)), min(highest, main + stretch * (high - main))


def mean_interval(scores: Sequence[float], intervals: Sequence[Bounds]) -> Bounds:
    """The interval of the mean of independent scores from the interval of each (MOVER; Zou and Donner, 2008)."""
    points, bounds = np.asarray(scores, float), np.asarray(intervals, float)
    lower, upper = np.square(points - bounds[:, 0]).sum(), np.square(bounds[:, 1] - points).sum()
    mean = float(points.mean())
    return mean - sqrt(lower) / len(points), mean + sqrt(upper) / len(points)


def normal_interval(differences: Scores, difference: float, n: int, level: float = 0.95) -> Bounds:
    """A normal interval with the standard error of bootstrapped differences. If these are all equal, `difference_interval`."""
    error = float(differences.std(ddof=1))
    if error <= NO_WIDTH:
        return difference_interval(differences, difference, n, level)
    half = _z(level) * error
    return difference - half, difference + half


def difference_interval(differences: Scores, difference: float, n: int, level: float = 0.95) -> Bounds:
    """Percentile interval of bootstrapped differences. If these are all equal, a bound on what n items did not show.

    If two designs have the same outcome on every item, they may differ by at most 1 on a share `unseen` of other items. If they differ
    by the same amount on every item, they may differ by that amount the other way on that share.
    """
    low, high = interval(differences, level)
    if high - low > NO_WIDTH:
        return low, high
    half = unseen(n, level) * (2 * abs(difference) if abs(difference) > NO_WIDTH else 1.0)
    return difference - half, difference + half


def t_interval(changes: Scores, level: float = 0.95) -> Bounds:
    """The t interval of a mean over few tasks, from how much each task adds to that mean.

    A percentile bootstrap of few tasks is too narrow: at 95 %, of 6 tasks it leaves out the truth in 13 % of studies, and at the levels of
    Holm's correction it is worse.
    """
    from scipy.stats import t

    n = len(changes)
    mean, half = float(changes.sum()), float(t.ppf((1 + level) / 2, n - 1) * changes.std(ddof=1) * sqrt(n))
    return mean - half, mean + half


def _z(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"The level of an interval lies between 0 and 1, not at {level}; 0.95 is usual.")
    return NormalDist().inv_cdf((1 + level) / 2)


def jackknife_interval(
    value: float, left_out: Float[NDArray[np.float64], " text"], most: float = np.inf, level: float = 0.95
) -> Bounds | None:
    """The interval of a measure that compares texts with each other, such as CKA, neighbours and clusters.

    A bootstrap draws some texts twice. Two copies of a text are identical, so such a measure is too high on every resample. The
    jackknife leaves out one text at a time instead (Tukey, 1958; Arvesen, 1969, for measures of pairs of texts). With theta_i the measure
    without text i, the standard error is sqrt((n - 1) / n sum (theta_i - mean of theta)^2). The interval is the measure +- t times this
    error, with n - 1 degrees of freedom.

    left_out: the measure without each text. most: the largest value that the measure can have. None for fewer than five texts, and if the
    measure does not exist (nan) without one of them.
    """
    from scipy.stats import t

    n = len(left_out)
    if n < FEWEST_TEXTS or not np.isfinite(left_out).all():
        return None
    half = float(t.ppf((1 + level) / 2, n - 1) * np.sqrt(jackknife_variance(left_out)))
    return value - half, min(value + half, max(most, value))


def jackknife_variance(left_out: Float[NDArray[np.float64], " part"]) -> float:
    """The variance of a measure, the square of its standard error. left_out: the measure without each text, prompt or other part."""
    n = len(left_out)
    return float((n - 1) / n * np.square(left_out - left_out.mean()).sum())


def ratio_left_out(
    numerators: Float[NDArray[np.float64], "text ..."], denominators: Float[NDArray[np.float64], "text ..."]
) -> Float[NDArray[np.float64], "text ..."]:
    """A ratio of two sums over texts, without each text; nan where nothing is left below."""
    rest = denominators.sum(axis=0) - denominators
    return np.asarray(np.where(rest > 0, (numerators.sum(axis=0) - numerators) / np.where(rest > 0, rest, 1), np.nan))
