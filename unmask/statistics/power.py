"""Power: the true difference that a study of a given size can show."""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist

import numpy as np

from unmask.statistics.bootstrap import Scores
from unmask.statistics.intervals import unseen
from unmask.statistics.paired import SIGNIFICANT, PairedTest, sums_under_chance

_SIMULATED = 400  # studies, so the resulting power is accurate to 0.02
_EXACT = 60  # up to this number of tasks the null distribution is exact; above it, a normal one is right to three digits of p


def detectable(test: PairedTest, power: float = 0.8, *, by_interval: bool = False) -> float:
    """The true difference that `PairedTest.winner` finds with this power, at the level of the test, which `with_holm` corrects.

    A test over tasks needs two things: a signed-rank p below the level, and an interval without 0. Both are checked on simulated studies
    of as many tasks. Their differences are normal, with the standard error of the test. A study shifted up by d is significant from one
    d on: W+ counts the means of two of its tasks (Walsh averages) that are above -d, and its interval moves with d. The answer is the
    quantile `power` of these d. It is infinite if so few tasks cannot show anything at this level. Where a test allows for training seeds,
    their error counts as one of tasks.

    A test over items has p and interval from one source, and by_interval asks for the interval alone, as a claim with a margin does. Then
    the answer is half of the interval plus z(power) standard errors. The standard error is from the 95 % interval, assuming normality.
    If p comes from an exact sign-flip test, that test must also be significant (`_shown_by_sign_flips`).
    """
    normal = NormalDist()
    half = _half_width(test, test.level)
    error = _half_width(test, 1 - SIGNIFICANT) / normal.inv_cdf(1 - SIGNIFICANT / 2)
    if by_interval or test.unit == "items":
        difference = half + normal.inv_cdf(power) * error
        if by_interval or test.changes is None:
            return difference
        return max(difference, _shown_by_sign_flips(test.changes, test.level, half, power))
    significant = np.flatnonzero(_p_values(test.n) < 1 - test.level)
    upper = significant[significant > test.n * (test.n + 1) / 4]
    if not len(upper):
        return float("inf")
    studies = np.random.default_rng(0).standard_normal((_SIMULATED, test.n))
    ranked = np.array([_shown_from(study, int(upper[0])) for study in studies])
    reach = half / error if error else 0.0  # in standard errors: more than a normal interval's, where few seeds decide
    interval = (reach * studies.std(axis=1, ddof=1) / sqrt(test.n)) - studies.mean(axis=1)
    deviation = error * test.n / sqrt(test.n - 1)  # a bootstrap of n tasks has too little by n - 1 of n
    return float(np.quantile(np.maximum(ranked, interval), power)) * deviation


def _half_width(test: PairedTest, level: float) -> float:
    low, high = test.bounds(level) if test.bounds else test.interval
    return (high - low) / 2


def _shown_by_sign_flips(changes: Scores, level: float, half: float, power: float) -> float:
    """The true difference that the exact sign-flip test finds with this power. Infinite if even n items that all agree are too few.

    In a simulated study each of n items differs with one chance, each by the same size. Number and size have the sums of the observed
    changes and of their squares, so for items that are right or wrong this is exact. A larger true difference makes more of the signs
    equal, and when all are, more of the items differ. `half` is half of the interval, which gives the size if no item differs. If all
    items differ, each by another size, the test is about as strong as a t-test: it is the answer where it asks for more.
    """
    from scipy.stats import t

    n, alpha = len(changes), 1 - level
    if 2.0 ** (1 - n) >= alpha:
        return float("inf")
    total = float(np.abs(changes).sum())
    # without a difference the interval is the share `unseen` of one whole item
    size = float(np.square(changes).sum()) / total if total else half / unseen(n, level) / n
    differ = total / size / n
    low, high = 0.0, 1.0
    while high - low > 0.005 * high:
        middle = (low + high) / 2
        enough = _power_of_signs(n, max(differ, middle), middle, alpha) >= power
        low, high = (low, middle) if enough else (middle, high)
    by_t = (t.ppf(1 - alpha / 2, n - 1) + NormalDist().inv_cdf(power)) * sqrt(n) * changes.std(ddof=1)
    return max(high * n * size, float(by_t))


def _power_of_signs(n: int, share: float, excess: float, alpha: float) -> float:
    """How often the sign-flip test of n items shows a as better. share: of the items that differ; excess: share for a minus share for b."""
    from scipy.stats import binom

    low, high = binom.ppf((1e-6, 1 - 1e-6), n, share)
    differ = np.arange(low, high + 1)
    needed = binom.isf(alpha / 2, differ, 0.5)  # more than this number must favour a
    return float((binom.pmf(differ, n, share) * binom.sf(needed, differ, (1 + excess / share) / 2)).sum())


def _shown_from(differences: Scores, needed: int) -> float:
    """The least shift of these differences whose W+ is `needed`."""
    first, second = np.triu_indices(len(differences))
    means = (differences[first] + differences[second]) / 2
    return -float(np.partition(means, -needed)[-needed])


def _p_values(n: int) -> Scores:
    """Two-sided p of each rank sum W+ = 0, 1, ..., n (n + 1) / 2."""
    if n <= _EXACT:
        share = sums_under_chance(np.arange(1, n + 1))
        p = 2 * np.minimum(np.cumsum(share), np.cumsum(share[::-1])[::-1])
    else:
        from scipy.stats import norm

        centre = n * (n + 1) / 4
        out = np.abs(np.arange(n * (n + 1) // 2 + 1) - centre) - 0.5
        p = 2 * norm.sf(out / np.sqrt(n * (n + 1) * (2 * n + 1) / 24))
    return np.asarray(np.minimum(p, 1.0))
