"""Paired tests: is one design better than another, by how much, and how sure is that?

There are two questions. `wilcoxon` asks about tasks in general; it needs one score for each task. `paired_bootstrap` asks about these
tasks only; it needs their items. Both tests are two-sided. They report the test, n, the effect size and an interval. Correct several
tests together with `with_holm`. `told_apart` decides whether two designs differ.
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
"""Tasks that a signed-rank test needs. The smallest p of n tasks is 2/2^n: 0.0625 for 5 tasks, 0.03125 for 6."""

SIGNIFICANT = 0.05
"""The level of every family of tests."""

DECIMALS = 12
"""Differences are rounded to this many decimals, so that 0.3 - 0.2 and 0.2 - 0.1 tie. In floating point they differ a little."""

_MOST_SUMS = 2**20
"""The largest number of sums that a sign-flip test counts. 20 items whose differences all have different sizes have this many sums."""


@dataclass(frozen=True)
class PairedTest:
    """The result of a comparison of a with b on the same tasks or items.

    difference: mean of a - b. interval: its bounds at `level`. bounds: computes the interval at another level. p: two-sided. p_holm: p
    corrected for all tests of the family; None until `with_holm` sets it. `with_holm` corrects `interval` and `level` too. effect:
    positive if a is better. least: the smallest p that `bounds` can show; m resamples show none below 2 / (m + 1). changes: how much each
    task adds to the difference, or each item of a sign-flip test; None for other tests.
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
    least: float = 0.0
    changes: Scores | None = field(default=None, compare=False, repr=False)


def told_apart(test: PairedTest, level: float = SIGNIFICANT) -> bool:
    """Whether a and b differ: p (corrected, in a family) is below the level, and the interval does not contain 0.

    Tables, marks, sentences and recommendations ask `better_side`, which builds on it. `with_holm` widens the interval of a pair that is
    not told apart until it contains 0, so that p and interval always agree.
    """
    p = test.p if test.p_holm is None else test.p_holm
    low, high = test.interval
    return p < level and not low <= 0 <= high


def better_side(test: PairedTest) -> Literal[-1, 0, 1]:
    """Which side a test shows to be better: 1 for a, -1 for b, 0 for neither.

    It shows a side if it tells a and b apart (`told_apart`), and if effect and mean difference point the same way. A test of ranks may
    point the other way than the mean: then nothing is shown.
    """
    if not told_apart(test) or test.effect * test.difference <= 0:
        return 0
    return 1 if test.difference > 0 else -1


def wilcoxon(a: ArrayLike, b: ArrayLike, *, level: float = 0.95, resamples: int = 2000, seed: int = 0) -> PairedTest:
    """Wilcoxon's signed-rank test of the scores of two designs on the same tasks, both of shape (task,).

    Tasks with equal scores are left out of the ranking, as Wilcoxon did (scipy's zero_method="wilcox"). The test's name says how many.
    Without any difference, p is 1 and the effect is 0. p is exact, also with ties. The effect is the matched rank-biserial correlation
    (W+ - W-) / (W+ + W-). W+ and W- are the rank sums of the positive and negative differences (Kerby, 2014). The interval is a
    percentile bootstrap of the mean difference over all tasks. Raises ValueError for scores that are not paired or not finite, and for
    fewer than 6 tasks: with 5, no result can be significant at 0.05.
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
        least=max(2 / (len(means) + 1), 2 / 2 ** len(differences)),
        changes=differences / len(differences),
    )


def paired_bootstrap(
    a: Sequence[Items], b: Sequence[Items], resamples: int = 2000, seed: int = 0, *, level: float = 0.95
) -> PairedTest:
    """Test of two designs on the items of their tasks; a[i] and b[i] are the items of task i.

    The interval is a bootstrap interval. Each resample draws items within each task, the same items for both designs. p is exact if
    `sign_flip_p` can count it; otherwise it comes from the bootstrap (see `difference_test`). To compare many designs, call
    `bootstrap_tasks` once for each design and `difference_test` for each pair. Raises ValueError if the tasks differ in number, metric,
    items or gold.
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
    """How much each item adds to the mean difference a - b. a[i] and b[i] are the items of task i, one set for each seed.

    None if a score is not a sum over items, as for rank correlation, average precision, V-measure and F1.
    """
    tasks = []
    for runs_a, runs_b in zip(a, b, strict=True):
        changes = _changes(runs_a, runs_b)
        if changes is None:
            return None
        tasks.append(changes / len(a))
    return np.concatenate(tasks)


def _changes(a: Sequence[Items], b: Sequence[Items]) -> Scores | None:
    """How much each item of one task adds to the difference a - b of the mean scores over seeds."""
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
    """Exact two-sided p of the sign-flip test.

    `changes` are the amounts that the items add to the difference. If the two designs are equal, the sign of each amount is a coin flip.
    p is the share of all sign patterns whose sum is as far from 0 as the observed sum, or farther. If all amounts have the same size, as
    for items that are right or wrong, this is McNemar's exact test. None if there are too many sums to count (`_MOST_SUMS`).
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
    as_far = np.abs(sums) >= abs(float(signed.sum())) - 1e-9  # sums that differ only by rounding are equal
    return float(min(1.0, share[as_far].sum()))


def bootstrap_tasks(tasks: Sequence[Items], resamples: int = 2000, seed: int = 0) -> Scores:
    """Scores of one design on resamples of each task's items, of shape (task, resample).

    Task i uses child i of the seed: its draws do not depend on the other tasks, and are the same for every design.
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
    """Test of the difference a - b, averaged over the tasks, from paired bootstrap samples.

    Samples have the shape (task, resample): `bootstrap_tasks` makes them, with the same seed for a and b. Points are the scores on all
    items, of shape (task,). n is the number of items of all tasks. `changes` are the amounts that the items add to the difference
    (`task_changes`).

    - p comes from `sign_flip_p` if there are `changes` and their sums can be counted. Otherwise it comes from the bootstrap. With d the
      differences on m resamples, shifted to have the observed mean, p = 2 min(#(d <= 0) + 1, #(d >= 0) + 1) / (m + 1), at most 1 (Davison
      and Hinkley, 1997, 4.2). If few items differ, this p is too small: for 4 items that differ, all in one direction, it is 0.04 instead
      of 0.125.
    - With `normal`, the bootstrap's p is 2 P(Z >= |effect|) for a standard normal Z, and the interval is normal too. Such a p can be as
      small as needed. It is for families of very many pairs, where a counted p would take a hundred thousand resamples.
    - The effect is the difference divided by its standard error (the standard deviation of d). It is infinite if all resamples have the
      same difference and it is not zero.

    A resample is left out if the score of a task is undefined on it; the test's name says how many. Raises ValueError if shapes do not
    match, or if fewer than 2 resamples are left.
    """
    table_a, table_b = np.asarray(samples_a, dtype=np.float64), np.asarray(samples_b, dtype=np.float64)
    scores_a, scores_b = np.asarray(point_a, dtype=np.float64), np.asarray(point_b, dtype=np.float64)
    if table_a.ndim != 2 or table_a.shape != table_b.shape:
        raise ValueError(f"Samples need the same shape (task, resample), not {table_a.shape} and {table_b.shape}.")
    if scores_a.shape != table_a.shape[:1] or scores_b.shape != scores_a.shape:
        raise ValueError(
            f"Points need the shape ({len(table_a)},), one score for each task, not {scores_a.shape} and {scores_b.shape}."
        )
    differences = (table_a - table_b).mean(axis=0)
    skipped = undefined(differences)
    differences = differences[~np.isnan(differences)]
    if len(differences) < 2:
        raise ValueError(
            f"A bootstrap test needs at least 2 resamples on which all tasks have a score. Here are {len(differences)}."
        )
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
        least=0.0 if normal else 2 / (len(differences) + 1),
        changes=None if exact is None else changes,
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction, in the given order: the k-th smallest of m p-values is multiplied by m - k + 1, at most 1.

    The order of the p-values stays: a corrected p is at least as large as those of all smaller p-values (Holm, 1979). The correction
    limits the chance of any false positive, also if the tests depend on each other. Raises ValueError for a p outside 0..1.
    """
    p = np.asarray(p_values, dtype=np.float64)
    if not ((p >= 0) & (p <= 1)).all():
        raise ValueError(f"A p-value must be between 0 and 1, but these were given: {', '.join(map(str, p_values))}.")
    order = np.argsort(p, kind="stable")
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1)
    return [float(value) for value in corrected]


def with_holm(tests: Sequence[PairedTest], level: float = SIGNIFICANT) -> list[PairedTest]:
    """The same tests, corrected as one family: with `p_holm`, and with intervals of the same correction.

    Holm multiplies the k-th smallest of m p-values by m - k + 1, and stops at the first that is not significant. The interval of a
    significant test has the confidence 1 - level / (m - k + 1). The c other tests have 1 - level / c (Guilbaud, 2008, who gives no
    interval for significant tests: theirs do not hold all at once). The interval of a pair that is not told apart contains 0: if test
    and bootstrap disagree, the interval is widened.
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
    """The number of tasks from which a family of signed-rank tests can have a significant one. For a single test it is 6.

    It is the smallest n with comparisons x 2/2^n < level. The smallest p of n tasks is 2/2^n, and Holm's first step multiplies it by the
    number of comparisons. Raises ValueError for less than one comparison, or a level outside 0..1.
    """
    if comparisons < 1 or not 0 < level < 1:
        raise ValueError(
            f"A family needs at least 1 comparison and a level between 0 and 1. Here: {comparisons} comparisons, level {level}."
        )
    return next(n for n in count(1) if comparisons * 2.0 ** (1 - n) < level)


def sums_under_chance(ranks: NDArray[np.int64]) -> Scores:
    """Distribution of the sum of the ranks with a plus sign, if both signs are equally likely: the share of each sum 0, 1, ...

    It is counted rank by rank: each rank is in the sum or not (Streitberg and Roehmel, 1986). Ranks are whole numbers.
    """
    share = np.ones(1)
    for rank in ranks:
        share = (np.pad(share, (0, rank)) + np.pad(share, (rank, 0))) / 2
    return share


def _task_differences(a: ArrayLike, b: ArrayLike) -> Scores:
    """The difference a - b on each task. Raises ValueError if the scores are not paired, not finite or too few."""
    scores_a, scores_b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if scores_a.ndim != 1 or scores_a.shape != scores_b.shape:
        raise ValueError(f"Both designs need one score for each task, not shapes {scores_a.shape} and {scores_b.shape}.")
    if not (np.isfinite(scores_a).all() and np.isfinite(scores_b).all()):
        raise ValueError("A score is nan or infinite: leave that task out for both designs.")
    if len(scores_a) < FEWEST_TASKS:
        raise ValueError(
            f"The Wilcoxon signed-rank test needs at least {FEWEST_TASKS} tasks, not {len(scores_a)}: with 5 tasks the smallest "
            "two-sided p is 0.0625, so no difference can be significant at 0.05. Add tasks, or use paired_bootstrap: it tests the "
            "difference on these tasks only."
        )
    return np.round(scores_a - scores_b, DECIMALS)


_COUNTED = 500  # differences whose signs are counted exactly


def _signed_rank(nonzero: Scores) -> tuple[float, float]:
    """Two-sided p of the signed-rank test, and the matched rank-biserial correlation.

    There are 2^m ways to set the m signs. p is twice the share of those with a W+ at least as extreme as the observed one. scipy's exact
    count assumes the ranks 1..m, which is wrong with ties, so this is our own count. It uses doubled ranks: they are integers, also for
    ties. A count for thousands takes minutes, so above 500 differences W+ is taken as normal, with the variance of these ranks.
    """
    from scipy.stats import norm, rankdata

    if not len(nonzero):
        return 1.0, 0.0
    doubled = np.rint(2 * rankdata(np.abs(nonzero))).astype(np.int64)
    effect = float((doubled * np.sign(nonzero)).sum() / doubled.sum())
    if len(nonzero) > _COUNTED:
        z = (doubled * np.sign(nonzero)).sum() / np.sqrt((doubled.astype(np.float64) ** 2).sum())
        return float(2 * norm.sf(abs(z))), effect
    share = sums_under_chance(doubled)  # share[w]: of all ways, the share in which twice W+ is w
    observed = doubled[nonzero > 0].sum()
    p = 2 * min(share[: observed + 1].sum(), share[observed:].sum())
    return float(min(1.0, p)), effect


def _centred(differences: Scores, difference: float) -> Scores:
    """Shift the differences of the resamples so that their mean is the observed difference.

    For most metrics the shift is about a hundredth of a standard error. But repeated items raise a V-measure, and many clusters raise it
    more than few. Without the shift, two equally good designs would differ only because of their numbers of clusters. A resample without
    a difference stays at zero and counts for both sides: the shift must not decide its sign.
    """
    undecided = np.abs(differences) < 10**-DECIMALS
    return np.where(undecided, 0.0, np.round(differences - differences.mean() + difference, DECIMALS))


def counted_p(differences: Scores) -> float:
    """Two-sided p of bootstrapped differences: twice the share on the smaller side of zero. One is added to both counts."""
    fewer = min(np.count_nonzero(differences <= 0), np.count_nonzero(differences >= 0))
    return min(1.0, 2 * (int(fewer) + 1) / (len(differences) + 1))


def _two_sided(effect: float) -> float:
    """Chance that a standard normal number is at least as far from zero as the effect."""
    from scipy.stats import norm

    return float(2 * norm.sf(abs(effect)))


def _in_standard_errors(difference: float, differences: Scores) -> float:
    """The difference divided by its bootstrap standard deviation. If that is 0: infinite, or 0 if the difference is 0 too."""
    error = float(differences.std(ddof=1))
    return difference / error if error > 10**-DECIMALS else effect_without_spread(difference)


def effect_without_spread(difference: float) -> float:
    """The effect of a difference that never varies: infinite, or 0 if there is no difference."""
    return float(np.copysign(np.inf, difference)) if difference else 0.0


def _check_pairs(a: Sequence[Items], b: Sequence[Items]) -> None:
    """Raise ValueError if a[i] and b[i] are not from the same task."""
    if len(a) != len(b) or not a:
        raise ValueError(f"Both designs need the same tasks, at least 1. One has {len(a)}, the other {len(b)}.")
    for index, (one, other) in enumerate(zip(a, b, strict=True)):
        if (one.metric, one.n) != (other.metric, other.n):
            difference = f"{one.metric} of {one.n} items, and {other.metric} of {other.n} items"
            raise ValueError(f"Task {index} is not the same for both designs: {difference}.")
        given = METRICS[one.metric].given
        if given is not None and not np.array_equal(one.columns[given], other.columns[given]):
            raise ValueError(f"Task {index} is not the same for both designs: their columns {given} differ.")
