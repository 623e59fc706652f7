"""Power: the number of tasks needed to see a difference between two designs, and the difference that a given number can show."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unmask.statistics.bootstrap import Scores
from unmask.statistics.intervals import unseen
from unmask.statistics.paired import DECIMALS, SIGNIFICANT, PairedTest, fewest_tasks, sums_under_chance

MOST_TASKS = 1000
"""The largest number of tasks that is reported. A difference that needs more is too small for any collection of tasks."""

_STUDIES = 4000  # the standard error of a power of 0.8 is then 0.006
_DRAWN = 400  # the resulting power is accurate to 0.02
_EXACT = 60  # up to this number of tasks the null distribution is exact; above it, a normal one is right to three digits of p


@dataclass(frozen=True)
class Power:
    """The power of n tasks for a difference, and the number of tasks that it needs.

    difference, deviation: mean and standard deviation of a - b over the tasks. effect: difference / deviation. tasks_needed: about how
    many tasks give the requested power; None without a difference, or if `MOST_TASKS` are too few. power_now: the share of studies with
    n such tasks that are significant, if the true difference is the observed one; it says nothing more than p does. text: the result in
    a sentence.
    """

    n: int
    difference: float
    deviation: float
    effect: float
    power_now: float
    tasks_needed: int | None
    text: str


def power_statement(
    a: ArrayLike, b: ArrayLike, power: float = 0.8, level: float = 0.05, comparisons: int = 1, *, seed: int = 0
) -> Power:
    """Power of the two-sided Wilcoxon signed-rank test for the difference between scores a and b, both of shape (task,).

    It simulates studies. Their differences are normal, with the observed mean and deviation, and each study is tested as `wilcoxon` does.
    Drawing from the observed differences would mislead: if all of them have one sign, every drawn study would too, and six tasks would
    seem enough. If the true differences have heavier tails than normal ones, the test has more power, not less (Hodges and Lehmann, 1956).

    `comparisons` divides the level, as the first step of Holm's correction does. Use the numbers to plan the next study. They treat the
    observed difference as the true one; a study that was selected for its result overstates it. About this study, power_now says no more
    than p does (Hoenig and Heisey, 2001). Raises ValueError for fewer than 2 tasks or more than `MOST_TASKS`, for scores that are not
    paired or not finite, for differences without a spread, and for a power or level outside 0..1.
    """
    differences = _differences(a, b)
    if not level < power < 1:
        raise ValueError(f"The power must be between the level {level} and 1, not {power}. 0.8 is usual.")
    fewest = fewest_tasks(comparisons, level)
    difference, deviation = float(np.round(differences.mean(), DECIMALS)), float(differences.std(ddof=1))
    effect = difference / deviation
    # a study takes the first tasks of one long row: a larger study contains all smaller ones
    studies = np.random.default_rng(seed).standard_normal((_STUDIES, MOST_TASKS), dtype=np.float32) + np.float32(effect)
    now = _power(studies[:, : len(differences)], level / comparisons)
    needed = _tasks_needed(studies, power, level / comparisons, fewest) if difference else None
    return Power(
        n=len(differences),
        difference=difference,
        deviation=deviation,
        effect=effect,
        power_now=now,
        tasks_needed=needed,
        text=_sentence(len(differences), difference, deviation, needed, power, comparisons),
    )


def detectable(test: PairedTest, power: float = 0.8, *, by_interval: bool = False, seed: int = 0) -> float:
    """The true difference that `PairedTest.winner` finds with this power, at the level of the test, which `with_holm` corrects.

    A test over tasks needs two things: a signed-rank p below the level, and an interval without 0. Both are asked of simulated studies of
    as many tasks. Their differences are normal, with the standard error of the test. A study whose tasks are shifted up by d is shown from
    one d on: W+ counts the means of two of its tasks (Walsh averages) that are above -d, and its interval moves with d. The answer is the
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
    studies = np.random.default_rng(seed).standard_normal((_DRAWN, test.n))
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


def _differences(a: ArrayLike, b: ArrayLike) -> Scores:
    scores_a, scores_b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if scores_a.ndim != 1 or scores_a.shape != scores_b.shape:
        raise ValueError(f"Both designs need one score for each task, not shapes {scores_a.shape} and {scores_b.shape}.")
    if len(scores_a) > MOST_TASKS:
        raise ValueError(
            f"At most {MOST_TASKS} tasks can be simulated, not {len(scores_a)}. With so many, no planning is needed: use wilcoxon."
        )
    if len(scores_a) < 2:
        raise ValueError(f"A deviation needs at least 2 tasks, not {len(scores_a)}. Score both designs on more tasks first.")
    differences = np.round(scores_a - scores_b, DECIMALS)
    if not np.isfinite(differences).all():
        raise ValueError("A score is nan or infinite: leave that task out for both designs.")
    if np.ptp(differences) == 0:
        raise ValueError(
            f"The designs differ by {differences[0]:+g} on every task, so there is no spread to plan with. Score them on tasks of another "
            "kind, or use paired_bootstrap on the items of these tasks."
        )
    return differences


def _tasks_needed(studies: NDArray[np.float32], power: float, level: float, fewest: int) -> int | None:
    """About the smallest number of tasks with this power, by bisection between a number that is too small and one that is enough."""
    low, high = fewest - 1, fewest  # with fewer tasks, the power is 0
    while _power(studies[:, :high], level) < power:
        if high == MOST_TASKS:
            return None
        low, high = high, min(2 * high, MOST_TASKS)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _power(studies[:, :middle], level) >= power else (middle, high)
    return high


def _power(studies: NDArray[np.float32], level: float) -> float:
    """Share of the studies in which the signed-rank test has a p below the level. `studies`: differences of shape (study, task)."""
    ranks = np.abs(studies).argsort(axis=1).argsort(axis=1) + 1
    sums = np.where(studies > 0, ranks, 0).sum(axis=1)
    return float((_p_values(studies.shape[1])[sums] < level).mean())


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


def _sentence(n: int, difference: float, deviation: float, needed: int | None, power: float, comparisons: int) -> str:
    family = f", corrected for {comparisons} comparisons" if comparisons > 1 else ""
    this = f"A difference like this ({100 * difference:+.1f} points, deviation {100 * deviation:.1f})"
    if not difference:
        return f"The mean difference over the {n} tasks is zero, so no number of tasks can be planned."
    number = f"more than {MOST_TASKS}" if needed is None else f"about {needed}"
    return f"{this} needs {number} tasks: then {100 * power:.0f} % of studies find it{family}. Here are {n} tasks."
