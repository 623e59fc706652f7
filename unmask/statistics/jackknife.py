"""Jackknife: intervals of measures that compare texts with each other, such as CKA, neighbours and clusters.

A bootstrap draws some texts twice. Two copies of a text are perfectly alike, so such a measure is too high on every resample. The
jackknife leaves out one text at a time instead, and no text is there twice (Tukey, 1958; Arvesen, 1969, for measures of pairs of texts).
With theta_i the measure without text i, the standard error is sqrt((n - 1) / n sum (theta_i - mean of theta)^2). The interval is the
measure +- t times this error. t is the quantile of Student's distribution with n - 1 degrees of freedom.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from unmask.io.array_types import NDArray
from unmask.statistics.intervals import Bounds

FEWEST = 5
"""The fewest texts with an interval. With fewer, the error itself is hardly known."""


def jackknife_interval(
    value: float, left_out: Float[NDArray[np.float64], " text"], most: float = np.inf, level: float = 0.95
) -> Bounds | None:
    """The interval of a measure. left_out: the measure without each text. most: the largest value that the measure can have.

    None for fewer than five texts, and if the measure does not exist (nan) without one of them.
    """
    from scipy.stats import t

    n = len(left_out)
    if n < FEWEST or not np.isfinite(left_out).all():
        return None
    half = float(t.ppf((1 + level) / 2, n - 1) * np.sqrt(jackknife_variance(left_out)))
    return value - half, min(value + half, max(most, value))


def jackknife_variance(left_out: Float[NDArray[np.float64], " part"]) -> float:
    """The variance of a measure, the square of its standard error. left_out: the measure without each text, prompt or other part."""
    n = len(left_out)
    return float((n - 1) / n * np.square(left_out - left_out.mean()).sum())


def ratio_left_out(
    above: Float[NDArray[np.float64], "text ..."], below: Float[NDArray[np.float64], "text ..."]
) -> Float[NDArray[np.float64], "text ..."]:
    """A ratio of two sums over texts, without each text; nan where nothing is left below."""
    rest = below.sum(axis=0) - below
    return np.asarray(np.where(rest > 0, (above.sum(axis=0) - above) / np.where(rest > 0, rest, 1), np.nan))
