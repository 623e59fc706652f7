"""Paired tests: is one design better than another, by how much, and how sure are we?

There are two questions. `wilcoxon` asks about tasks in general; it needs one score for each task. `paired_bootstrap` asks about these
tasks; it needs their items. Both are two-sided and report the test, n, the effect size and an interval. With several tests, correct them
together with `with_holm`. `told_apart` decides whether two designs differ.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from math import prod
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unmask.statistics.bootstrap import METRICS, Items, Scores, bootstrap, score, undefined
from unmask.statistics.intervals import Bounds, difference_interval, normal_interval

FEWEST_TASKS = 6
"""Tasks that a signed-rank test needs: the smallest p of n tasks is 2/2^n, 0.0625 for 5 and 0.03125 for 6."""

SIGNIFICANT = 0.05
"""The level of every family of tests."""

DECIMALS = 12
"""Decimals that differences are rounded to: 0.3 - 0.2 and 0.2 - 0.1 are a tie, whatever floating point makes of it."""

_MOST_SUMS = 2**20
"""Most sums of signed differences that a sign-flip test counts: those of 20 items that all differ by another amount."""


@dataclass(frozen=True)
class PairedTest:
    """Outcome of comparing a with b on the same tasks or items.

    `difference` is the mean of a - b, and `interval` the bounds of it at `level`; `p` is two-sided, and `p_holm` is p
    corrected for the family of comparisons, None before `with_holm`, which corrects `interval` and `level` alike. `effect` is
    positive where a is better. `bounds` gives the interval at another level.
    """

    test: str
    n: int
    unit: Literal["tasks", "items"]
    difference: float
    p: float
    p_holm: float | None
    effect: float
    effect_name: str
    interval: Bounds
    level: float
    bounds: Callable[[float], Bounds] | None = field(default=None, compare=False, repr=False)


def told_apart(test: PairedTest, level: float = SIGNIFICANT) -> bool:
    """Whether a and b may be said to differ: the p, corrected if it is of a family, is below the level, and the interval leaves out 0.

    This is the one rule for tables, marks, sentences and recommendations; `with_holm` sees to it that the interval of a pair that is
    not told apart holds 0, so that what is printed side by side agrees.
    """
    p = test.p if test.p_holm is None else test.p_holm
    low, high = test.interval
    return p < level and not low <= 0 <= high


def wilcoxon(a: ArrayLike, b: ArrayLike, *, level: float = 0.95, resamples: int = 2000, seed: int = 0) -> PairedTest:
    """Wilcoxon's signed-rank test of the scores of two designs on the same tasks, both of shape (task,).

    Tasks without a difference are dropped from the ranking, as Wilcoxon did (zero_method="wilcox" of scipy), and
    counted in the test's name; no difference at all gives p = 1 and effect 0. p is exact, ties or not. Effect: matched
    rank-biserial correlation (W+ - W-) / (W+ + W-), W the rank sums of the differences of either sign (Kerby, 2014).
    Interval: percentile bootstrap of the mean difference over all the tasks. Raises ValueError for scores that are
    unpaired or not finite, and for fewer than 6 tasks, with which nothing can be significant at 0.05.
    """
    differences = _task_differences(a, b)
    nonzero = differences[differences != 0]
    p, effect = _signed_rank(nonzero)
    dropped = len(differences) - len(nonzero)
    zeros = f", {dropped} zero difference{'s' if dropped > 1 else ''} dropped" if dropped else ""
    means = bootstrap(Items("mean", {"value": differences}), resamples, seed)
    bounds = partial(difference_interval, means, float(differences.mean()), len(differences))
    return PairedTest(
        test=f"Wilcoxon signed-rank (two-sided, exact{zeros})",
        n=len(differences),
        unit="tasks",
        difference=float(differences.mean()),
        p=p,
        p_holm=None,
        effect=effect,
        effect_name="matched rank-biserial correlation",
        interval=bounds(level),
        level=level,
        bounds=bounds,
    )


def paired_bootstrap(
    a: Sequence[Items], b: Sequence[Items], resamples: int = 2000, seed: int = 0, *, level: float = 0.95
) -> PairedTest:
    """Test of two designs on the items of their tasks; a[i] and b[i] are the items of task i.

    The interval is a bootstrap: items are drawn within each task, the same ones for both designs. p is exact where it can be counted
    (`sign_flip_p`), else of the same bootstrap: see `difference_test`. To compare many designs, call `bootstrap_tasks` once for each
    and `difference_test` for each pair. Raises ValueError if the tasks differ in number, metric, items or gold.
    """
    _check_pairs(a, b)
    return difference_test(
        bootstrap_tasks(a, resamples, seed),
        bootstrap_tasks(b, resamples, seed),
        [score(items) for items in a],
        [score(items) for items in b],
        n=sum(items.n for items in a),
        level=level,
        smallest=min(items.n for items in a),
        changes=task_changes([[items] for items in a], [[items] for items in b]),
    )


def task_changes(a: Sequence[Sequence[Items]], b: Sequence[Sequence[Items]]) -> Scores | None:
    """What each item adds to the mean difference a - b over the tasks: a[i] and b[i] hold the items of task i, one set for each seed.

    None if a score is not a sum over its items: rank correlations, average precision, V-measure, and F1.
    """
    tasks = []
    for runs_a, runs_b in zip(a, b, strict=True):
        changes = _changes(runs_a, runs_b)
        if changes is None:
            return None
        tasks.append(changes / len(a))
    return np.concatenate(tasks)


def _changes(a: Sequence[Items], b: Sequence[Items]) -> Scores | None:
    """What each item of one task adds to the difference of the mean scores over seeds."""
    first = a[0]
    if first.metric == "mean":
        column, whole = "value", float(first.n)
    elif first.metric == "ratio" and all(np.array_equal(items.columns["below"], first.columns["below"]) for items in (*a, *b)):
        column, whole = "above", float(first.columns["below"].sum())
    else:
        return None
    mean_a, mean_b = (np.mean([items.columns[column] for items in runs], axis=0) for runs in (a, b))
    return np.asarray((mean_a - mean_b) / whole, dtype=np.float64)


def sign_flip_p(changes: ArrayLike) -> float | None:
    """Exact two-sided p of the sign-flip test: the share of all ways to set the signs with a sum as far from 0 as the one observed.

    `changes`: what each item adds to the difference. If two designs are equal, each item favours either one with the same chance.
    If all changes have one size, as for items that are right or wrong, this is McNemar's exact test. None if there are too many
    different sums to count (`_MOST_SUMS`).
    """
    values = np.asarray(changes, dtype=np.float64)
    largest = float(np.abs(values).max(initial=0.0))
    if largest <= 10**-DECIMALS:
        return 1.0
    signed = np.round(values / largest, DECIMALS)
    sizes, counts = np.unique(np.abs(signed[signed != 0]), return_counts=True)
    if prod(int(number) + 1 for number in counts) > _MOST_SUMS:
        return None
    from scipy.stats import binom

    sums, share = np.zeros(1), np.ones(1)
    for size, number in zip(sizes, counts, strict=True):
        plus = np.arange(number + 1)
        sums = np.add.outer(sums, size * (2 * plus - number)).ravel()
        share = np.multiply.outer(share, binom.pmf(plus, number, 0.5)).ravel()
    as_far = np.abs(sums) >= abs(float(signed.sum())) - 1e-9  # sums that floating point alone sets apart are equal
    return float(min(1.0, share[as_far].sum()))


def bootstrap_tasks(tasks: Sequence[Items], resamples: int = 2000, seed: int = 0) -> Scores:
    """Scores of one design on resamples of each task's items, of shape (task, resample).

    Task i draws from child i of the seed: independently of the other tasks, and alike for every design.
    """
    seeds = np.random.SeedSequence(seed).spawn(len(tasks))
    return np.stack([bootstrap(items, resamples, child) for items, child in zip(tasks, seeds, strict=True)])


def difference_test(
    samples_a: ArrayLike,
    samples_b: ArrayLike,
    point_a: ArrayLike,
    point_b: ArrayLike,
    n: int,
    *,
    level: float = 0.95,
    normal: bool = False,
    smallest: int | None = None,
    changes: Scores | None = None,
) -> PairedTest:
    """Test of the difference a - b averaged over the tasks, from paired bootstrap samples.

    Samples have the shape (task, resample), as `bootstrap_tasks` makes them with one seed. Points are the scores on all the items, of
    shape (task,). n is the number of items of all tasks; `changes` is what each of them adds to the difference (`task_changes`).

    - p is that of `sign_flip_p` if there are `changes` and few enough of them to count. Else, with d the difference on each of m
      resamples, centred on the observed one, p = 2 min(#(d <= 0) + 1, #(d >= 0) + 1) / (m + 1), at most 1 (Davison and Hinkley,
      1997, 4.2). Where few items differ, that p is too small: 4 items that differ, all one way, give 0.04 and not 0.125.
    - With `normal`, the bootstrap's p is 2 P(Z >= |effect|) of a standard normal Z, which has no smallest value, and the interval is of
      that normal: for families of so many pairs that counting would take a hundred thousand resamples.
    - Effect: the difference in standard errors, the standard deviation of d; infinite if every resample shows one and the same
      difference other than zero.

    A resample on which any task's score is undefined is left out, and counted in the test's name. Raises ValueError if shapes do not
    match or fewer than 2 resamples are left.
    """
    table_a, table_b = np.asarray(samples_a, dtype=np.float64), np.asarray(samples_b, dtype=np.float64)
    scores_a, scores_b = np.asarray(point_a, dtype=np.float64), np.asarray(point_b, dtype=np.float64)
    if table_a.ndim != 2 or table_a.shape != table_b.shape:
        raise ValueError(f"Samples need one shape (task, resample), not {table_a.shape} and {table_b.shape}.")
    if scores_a.shape != table_a.shape[:1] or scores_b.shape != scores_a.shape:
        raise ValueError(f"{len(table_a)} tasks need as many scores, not {scores_a.shape} and {scores_b.shape}.")
    differences = (table_a - table_b).mean(axis=0)
    skipped = undefined(differences)
    differences = differences[~np.isnan(differences)]
    if len(differences) < 2:
        raise ValueError(f"A bootstrap test needs 2 resamples with a score on every task; {len(differences)} have one.")
    difference = float(np.round((scores_a - scores_b).mean(), DECIMALS))
    differences = _centred(differences, difference)
    effect = _in_standard_errors(difference, differences)
    bounds = partial(
        normal_interval if normal else difference_interval,
        differences,
        difference,
        len(table_a) * (smallest or n // len(table_a)),
    )
    exact = None if changes is None else sign_flip_p(changes)
    drawn = f"{'normal with the error of ' * normal}{len(differences)} resamples" + f", {skipped} more undefined" * bool(
        skipped
    )
    return PairedTest(
        test=f"paired bootstrap over items (two-sided, {drawn})"
        if exact is None
        else f"exact sign-flip test over items (two-sided; interval: paired bootstrap, {drawn})",
        n=n,
        unit="items",
        difference=difference,
        p=exact if exact is not None else _two_sided(effect) if normal else counted_p(differences),
        p_holm=None,
        effect=effect,
        effect_name="difference in standard errors",
        interval=bounds(level),
        level=level,
        bounds=bounds,
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction, in the order given: the k-th smallest of m p-values times m - k + 1, at most 1.

    A corrected p is never below that of a smaller p, so the order survives (Holm, 1979). Bounds the chance of any false
    positive, however the tests depend on each other. Raises ValueError for a p outside 0..1.
    """
    p = np.asarray(p_values, dtype=np.float64)
    if not ((p >= 0) & (p <= 1)).all():
        raise ValueError(f"A p-value lies between 0 and 1; given: {', '.join(map(str, p_values))}.")
    order = np.argsort(p, kind="stable")
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1)
    return [float(value) for value in corrected]


def with_holm(tests: Sequence[PairedTest], level: float = SIGNIFICANT) -> list[PairedTest]:
    """The same tests with `p_holm`, corrected for all of them as one family, and intervals of the same correction.

    Holm multiplies the k-th smallest p of m by m - k + 1, and stops at the first that is not significant. The interval of a test
    before has the confidence 1 - level / (m - k + 1), that of the c others 1 - level / c (Guilbaud, 2008). The interval of a pair that
    is not told apart holds 0: where test and bootstrap disagree, it is widened.
    """
    corrected = holm([test.p for test in tests])
    order = np.argsort([test.p for test in tests], kind="stable")
    steps = {int(place): len(tests) - k for k, place in enumerate(order)}
    left = sum(p >= level for p in corrected)
    return [
        _corrected(test, p, level, left if p >= level else steps[place])
        for place, (test, p) in enumerate(zip(tests, corrected, strict=True))
    ]


def _corrected(test: PairedTest, p: float, level: float, comparisons: int) -> PairedTest:
    confidence = 1 - level / comparisons
    low, high = test.bounds(confidence) if test.bounds else test.interval
    if p >= level:
        low, high = min(low, 0.0), max(high, 0.0)
    return replace(test, p_holm=p, interval=(low, high), level=confidence if test.bounds else test.level)


def fewest_tasks(comparisons: int = 1, level: float = 0.05) -> int:
    """Tasks that a family of signed-rank tests needs before any of them can be significant: 6 for a single one.

    The smallest n with comparisons x 2/2^n < level: Holm's first step multiplies the smallest p of n tasks by the number
    of comparisons. Raises ValueError for no comparison, or a level outside 0..1.
    """
    if comparisons < 1 or not 0 < level < 1:
        raise ValueError(f"A family has at least 1 comparison and a level between 0 and 1, not {comparisons} and {level}.")
    return next(n for n in count(1) if comparisons * 2.0 ** (1 - n) < level)


def sums_under_chance(ranks: NDArray[np.int64]) -> Scores:
    """Distribution of the sum of those ranks whose sign is plus, where either sign is as likely: share of each sum 0, 1, ...

    Counted rank by rank: each is in the sum or is not (Streitberg and Roehmel, 1986). Ranks are whole numbers.
    """
    share = np.ones(1)
    for rank in ranks:
        share = (np.pad(share, (0, rank)) + np.pad(share, (rank, 0))) / 2
    return share


def _task_differences(a: ArrayLike, b: ArrayLike) -> Scores:
    """Differences a - b a task; ValueError where the scores are unpaired, undefined or too few."""
    scores_a, scores_b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if scores_a.ndim != 1 or scores_a.shape != scores_b.shape:
        raise ValueError(f"Both designs need one score a task, not shapes {scores_a.shape} and {scores_b.shape}.")
    if not (np.isfinite(scores_a).all() and np.isfinite(scores_b).all()):
        raise ValueError("A score is nan or infinite: leave that task out for both designs.")
    if len(scores_a) < FEWEST_TASKS:
        raise ValueError(
            f"The Wilcoxon signed-rank test needs at least {FEWEST_TASKS} tasks, not {len(scores_a)}: with 5 the "
            "smallest two-sided p is 0.0625, so that no difference could be significant at 0.05. Add tasks, or ask "
            "paired_bootstrap about these."
        )
    return np.round(scores_a - scores_b, DECIMALS)


def _signed_rank(nonzero: Scores) -> tuple[float, float]:
    """Two-sided p of the signed-rank test, and the matched rank-biserial correlation.

    p is the share, doubled, of the 2^m ways to set the signs in which W+ is at least as far out as the one observed.
    Our own count, because scipy's takes the ranks to be 1..m, which they are not under ties. Twice an average rank is
    an integer, so that W+ can be counted.
    """
    from scipy.stats import rankdata

    if not len(nonzero):
        return 1.0, 0.0
    doubled = np.rint(2 * rankdata(np.abs(nonzero))).astype(np.int64)
    share = sums_under_chance(doubled)  # share[w]: of all ways, the share in which twice W+ is w
    observed = doubled[nonzero > 0].sum()
    p = 2 * min(share[: observed + 1].sum(), share[observed:].sum())
    return float(min(1.0, p)), float((doubled * np.sign(nonzero)).sum() / doubled.sum())


def _centred(differences: Scores, difference: float) -> Scores:
    """Shift the differences of the resamples so that their mean is the observed difference.

    For most metrics that is a hundredth of a standard error. But repeats inflate a V-measure, and that of many clusters
    more than that of few: two designs of equal worth would be told apart by their numbers of clusters alone. A resample
    in which no item tells the designs apart stays at zero and counts for either side, lest the shift decide its sign.
    """
    undecided = np.abs(differences) < 10**-DECIMALS
    return np.where(undecided, 0.0, np.round(differences - differences.mean() + difference, DECIMALS))


def counted_p(differences: Scores) -> float:
    """Two-sided p of bootstrapped differences: twice the share on the rarer side of zero, with one added to both counts."""
    fewer = min(np.count_nonzero(differences <= 0), np.count_nonzero(differences >= 0))
    return min(1.0, 2 * (int(fewer) + 1) / (len(differences) + 1))


def _two_sided(effect: float) -> float:
    """Chance that a standard normal is so far from zero."""
    from scipy.stats import norm

    return float(2 * norm.sf(abs(effect)))


def _in_standard_errors(difference: float, differences: Scores) -> float:
    """The difference over the standard deviation of its bootstrap; infinite over none, and 0 where it is zero too."""
    error = float(differences.std(ddof=1))
    if error > 10**-DECIMALS:
        return difference / error
    return float(np.copysign(np.inf, difference)) if difference else 0.0


def _check_pairs(a: Sequence[Items], b: Sequence[Items]) -> None:
    """Raise ValueError where a[i] and b[i] are not two designs on one task."""
    if len(a) != len(b) or not a:
        raise ValueError(f"Both designs need the same tasks, at least 1; one has {len(a)}, the other {len(b)}.")
    for index, (one, other) in enumerate(zip(a, b, strict=True)):
        if (one.metric, one.n) != (other.metric, other.n):
            difference = f"{one.metric} of {one.n} items against {other.metric} of {other.n}"
            raise ValueError(f"Task {index} is not the same for both designs: {difference}.")
        given = METRICS[one.metric].given
        if given is not None and not np.array_equal(one.columns[given], other.columns[given]):
            raise ValueError(f"Task {index} is not the same for both designs: their columns {given} differ.")
