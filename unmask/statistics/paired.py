"""Paired tests of two systems (designs, embedders, mixtures): which is better, by how much, and how certain is that?

- over tasks, for a statement about tasks in general: `compare_on_tasks` (Wilcoxon's signed-rank test; `seed_test` for designs trained
  with several seeds);
- over the items of these tasks, for a statement about these tasks only: `compare_on_items` (sign flips or bootstrap, and seeds where
  there are several).

All tests are two-sided and report the test, n, the effect size and an interval. `with_holm` corrects the tests of a family together.
`PairedTest.winner` says which system is better.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from math import prod
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unmask.statistics.bootstrap import METRICS, Items, Scores, bootstrap, score
from unmask.statistics.intervals import NO_WIDTH, Bounds, difference_interval, normal_interval, unseen

FEWEST_TASKS = 6
"""Tasks that a signed-rank test needs. The smallest p of n tasks is 2/2^n: 0.0625 for 5 tasks, 0.03125 for 6."""

SIGNIFICANT = 0.05
"""The level of every family of tests."""

DECIMALS = 12
"""Differences are rounded to this many decimals, so that 0.3 - 0.2 and 0.2 - 0.1 tie. In floating point they differ a little."""

_MOST_SUMS = 2**20
"""The largest number of sums that a sign-flip test counts. 20 items whose differences all have different sizes have this many sums."""

_MOST_COUNTED = 500
"""The most differences whose sign patterns the signed-rank test counts. Counting thousands takes minutes."""

_RESAMPLES = 2000
_IN_STANDARD_ERRORS = "difference in standard errors"

VarianceSource = tuple[float, int]
"""A variance and its degrees of freedom."""


@dataclass(frozen=True)
class PairedTest:
    """The result of a comparison of a with b on the same tasks or items."""

    test: str
    n: int
    unit: Literal["tasks", "items"]
    difference: float
    """Mean of a - b."""
    p: float
    """Two-sided."""
    effect: float
    """Positive if a is better."""
    effect_name: str
    interval: Bounds
    """Bounds of the difference at `level`."""
    level: float = 0.95
    p_holm: float | None = None
    """p corrected for all tests of the family; None until `with_holm` sets it, which corrects `interval` and `level` too."""
    bounds: Callable[[float], Bounds] | None = field(default=None, compare=False, repr=False)
    """Computes the interval at another level."""
    least: float = 0.0
    """The smallest p that `bounds` can show: m resamples show none below 2 / (m + 1)."""
    changes: Scores | None = field(default=None, compare=False, repr=False)
    """The share of each task in the difference, or of each item of a sign-flip test; None for other tests."""

    @property
    def corrected_p(self) -> float:
        """p, corrected if the test is part of a family."""
        return self.p if self.p_holm is None else self.p_holm

    def is_significant(self, level: float = SIGNIFICANT) -> bool:
        """True if the corrected p is below the level and the interval does not contain 0.

        `with_holm` widens the interval of a test that is not significant until it contains 0, so that p and interval always agree.
        """
        low, high = self.interval
        return self.corrected_p < level and not low <= 0 <= high

    @property
    def winner(self) -> Literal["a", "b"] | None:
        """The better side. None without a significant difference, and if a test of ranks points the other way than the mean."""
        if not self.is_significant() or self.effect * self.difference <= 0:
            return None
        return "a" if self.difference > 0 else "b"

    def mirrored(self) -> PairedTest:
        """The same test of b against a."""
        low, high = self.interval
        flipped = {"difference": -self.difference, "effect": -self.effect, "interval": (-high, -low)}
        return replace(self, **flipped, bounds=None, changes=None)  # type: ignore[arg-type]

    def in_percent(self) -> PairedTest:
        """The same test of scores multiplied by 100."""

        def times_100(bounds: Bounds) -> Bounds:
            return 100 * bounds[0], 100 * bounds[1]

        bounds = self.bounds
        return replace(
            self,
            difference=100 * self.difference,
            interval=times_100(self.interval),
            bounds=None if bounds is None else lambda level: times_100(bounds(level)),
            changes=None if self.changes is None else 100 * self.changes,
        )


def wilcoxon(a: ArrayLike, b: ArrayLike, *, resamples: int = _RESAMPLES) -> PairedTest:
    """Wilcoxon's signed-rank test of the scores of two designs on the same tasks, both of shape (task,).

    Tasks with equal scores are left out of the ranking, as Wilcoxon did (scipy's zero_method="wilcox"). The test's name says how many.
    Without any difference, p is 1 and the effect is 0. p is exact, also with ties. The effect is the matched rank-biserial correlation
    (W+ - W-) / (W+ + W-). W+ and W- are the rank sums of the positive and negative differences (Kerby, 2014). The interval is a
    percentile bootstrap of the mean difference over all tasks. Raises ValueError for scores that are not paired or not finite, and for
    fewer than 6 tasks: with 5, no result can be significant at 0.05.
    """
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
    differences = np.round(scores_a - scores_b, DECIMALS)
    difference, n = float(differences.mean()), len(differences)
    nonzero = differences[differences != 0]
    p, effect = _signed_rank(nonzero)
    dropped = n - len(nonzero)
    zeros = f", {dropped} zero difference{'s' if dropped > 1 else ''} dropped" if dropped else ""
    means = bootstrap(Items("mean", {"value": differences}), resamples)
    bounds = partial(difference_interval, means, difference, n)
    return PairedTest(
        test=f"Wilcoxon signed-rank (two-sided, exact{zeros})",
        n=n,
        unit="tasks",
        difference=difference,
        p=p,
        effect=effect,
        effect_name="matched rank-biserial correlation",
        interval=bounds(0.95),
        bounds=bounds,
        least=max(2 / (len(means) + 1), 2 / 2**n),
        changes=differences / n,
    )


def _signed_rank(nonzero: Scores) -> tuple[float, float]:
    """Two-sided p of the signed-rank test, and the matched rank-biserial correlation.

    There are 2^m ways to set the m signs. p is twice the share of those with a W+ at least as extreme as the observed one. scipy's exact
    count assumes the ranks 1..m, which is wrong with ties, so this is our own count. It uses doubled ranks: they are integers, also for
    ties. Above `_MOST_COUNTED` differences, W+ is taken as normal, with the variance of these ranks.
    """
    from scipy.stats import norm, rankdata

    if not len(nonzero):
        return 1.0, 0.0
    doubled = np.rint(2 * rankdata(np.abs(nonzero))).astype(np.int64)
    effect = float((doubled * np.sign(nonzero)).sum() / doubled.sum())
    if len(nonzero) > _MOST_COUNTED:
        z = (doubled * np.sign(nonzero)).sum() / np.sqrt((doubled.astype(np.float64) ** 2).sum())
        return float(2 * norm.sf(abs(z))), effect
    share = sums_under_chance(doubled)  # share[w]: the share of sign patterns in which twice W+ is w
    observed = doubled[nonzero > 0].sum()
    p = 2 * min(share[: observed + 1].sum(), share[observed:].sum())
    return float(min(1.0, p)), effect


def sums_under_chance(ranks: NDArray[np.int64]) -> Scores:
    """Distribution of the sum of the ranks with a plus sign, if both signs are equally likely: the share of each sum 0, 1, ...

    It is counted rank by rank: each rank is in the sum or not (Streitberg and Roehmel, 1986). Ranks are whole numbers.
    """
    share = np.ones(1)
    for rank in ranks:
        share = (np.pad(share, (0, rank)) + np.pad(share, (rank, 0))) / 2
    return share


@dataclass(frozen=True)
class SeedTest:
    """Comparison of two designs, at least one of them trained with several seeds."""

    test: PairedTest
    """With the larger of the two p."""
    p_tasks: float
    """For these embedders on other tasks."""
    p_both: float
    """For other trainings on other tasks."""


def seed_test(a: ArrayLike, b: ArrayLike, *, paired: bool = False) -> SeedTest:
    """Test of two trained designs on the same tasks: scores of shape (seed, task), or (task,) for a design that is not trained.

    A claim about designs needs two things: these embedders differ on tasks in general, and other trainings would differ in the same way.

    - p_tasks is `wilcoxon`'s, of the means over seeds. It takes these runs for the designs: where trainings differ as much as tasks do,
      it found a difference between equal designs in 35 to 48 % of simulations.
    - p_both is of t, the mean difference over its standard error. Its variance is var(difference over tasks) / T, plus for each trained
      design var(mean over tasks, over its n seeds) / n, with the degrees of freedom of Satterthwaite (1946). Each design has its own
      variance, since one may learn less steadily than another. The noise of single scores counts in both parts, so the error is rather
      too large. The interval is of the same t. `benchmarks/seeds.py` measures false findings.

    Seeds are not bootstrapped: the 4 ways to draw from 2 and 2 cannot hold a tail (a 95 % interval over tasks and seeds held the truth in
    71 % of simulations with 2 seeds and 87 % with 3, where nearly all variance was between runs).

    paired: both designs read the same trained models, seed by seed. A training then moves both, so the differences of each seed are tested.
    Raises ValueError for one seed, for seeds that all score the same, for two designs that are not trained, and as `wilcoxon`.
    """
    from scipy.stats import t

    sides = tables = [np.asarray(scores, dtype=np.float64) for scores in (a, b)]
    if paired:
        tables = [sides[0] - sides[1], np.zeros(sides[0].shape[-1])]
    trained = [table for table in tables if table.ndim == 2]
    if not trained:
        raise ValueError("Neither design has seeds: compare them with wilcoxon.")
    if any(len(table) < 2 or not _seeds_differ(table) for table in trained):
        raise ValueError(
            "With one seed, or with seeds that all score the same, the variance of training cannot be estimated. Train with more seeds, "
            "best 3 or more, or ask wilcoxon or paired_bootstrap about these two embedders, not their designs."
        )
    means = [np.atleast_2d(table).mean(axis=0) for table in tables]
    over_tasks = wilcoxon(*means, resamples=1)
    parts = [means[0] - means[1], *(table.mean(axis=1) for table in trained)]
    error, freedom = standard_error([(float(part.var(ddof=1)) / len(part), len(part) - 1) for part in parts])
    p_both, difference = _p_of_t(over_tasks.difference, error, freedom), over_tasks.difference

    def bounds(level: float) -> Bounds:
        half = float(error * t.ppf((1 + level) / 2, freedom))
        return difference - half, difference + half

    counts = " and ".join(f"{len(side)} seeds" if side.ndim == 2 else "no training" for side in sides)
    counts = f"the same {len(sides[0])} seeds" if paired else counts
    test = replace(
        over_tasks,
        test=f"{over_tasks.test} of means over {counts}, and t over tasks and seeds: the larger p",
        p=max(over_tasks.p, p_both),
        interval=bounds(0.95),
        bounds=bounds,
        least=0.0,
        changes=None,  # a training adds to the difference, too
    )
    return SeedTest(test, over_tasks.p, p_both)


def compare_on_tasks(a: Scores, b: Scores, *, same_trainings: bool = False) -> PairedTest:
    """The test over tasks: `seed_test` if one of the designs was trained with seeds that score differently, else `wilcoxon`.

    Scores have the shape (seed, task), or (task,). If all seeds score the same (a saturated task, or a training that changes nothing),
    training has no variance to test with. same_trainings: both read the same trained models, seed by seed.
    """
    if same_trainings and _seeds_differ(a - b):
        return seed_test(a, b, paired=True).test
    if not same_trainings and any(_seeds_differ(table) for table in (a, b)):
        return seed_test(*(table if _seeds_differ(table) else np.atleast_2d(table).mean(axis=0) for table in (a, b))).test
    test = wilcoxon(*(np.atleast_2d(table).mean(axis=0) for table in (a, b)))
    seeded = any(table.ndim == 2 for table in (a, b))
    return replace(test, test=f"{test.test} of means over seeds that score the same") if seeded else test


def _seeds_differ(table: Scores) -> bool:
    return table.ndim == 2 and bool(np.ptp(table, axis=0).round(DECIMALS).any())


@dataclass(frozen=True, eq=False)
class SampledScores:
    """A system on the items of several tasks: its scores, and its scores on bootstrap resamples.

    The draws of a task do not depend on the system or on other tasks, so any two systems on the same tasks are paired.
    """

    items: Sequence[Sequence[Items]]
    """By task, and by run of the system's training."""
    points: Scores
    """Of shape (run, task)."""
    samples: Scores
    """Of shape (task, resample): the mean over runs."""

    @classmethod
    def draw(
        cls,
        items: Sequence[Sequence[Items]],
        resamples: int = _RESAMPLES,
        seed: int = 0,
        *,
        points: Scores | None = None,
        weights: ArrayLike = 1.0,
    ) -> SampledScores:
        """Resample the items. points: scores on all items, if they are known. weights: of each task in the mean over tasks."""
        scale, runs = np.asarray(weights, dtype=np.float64), list(zip(*items, strict=True))
        if points is None:
            points = np.array([[score(of_task) for of_task in run] for run in runs])
        seeds = np.random.SeedSequence(seed).spawn(len(items))
        samples = [
            np.stack([bootstrap(of_task, resamples, child) for of_task, child in zip(run, seeds, strict=True)])
            * scale.reshape(-1, 1)
            for run in runs
        ]
        return cls(items, points * scale, np.mean(samples, axis=0))

    def on(self, tasks: Sequence[int]) -> SampledScores:
        """The same system on some of the tasks, by index."""
        return SampledScores([self.items[task] for task in tasks], self.points[:, tasks], self.samples[tasks])


def compare_on_items(
    a: SampledScores,
    b: SampledScores,
    *,
    normal: bool = False,
    same_trainings: bool = False,
    interaction: bool = False,
) -> PairedTest:
    """The test over the items of the same tasks. Its p comes from the first of these that is possible:

    - t over items and seeds, if a system has several runs. The variance of the mean difference is then the sum of each task's over
      resamples (times n / (n - 1), since a bootstrap of n items has too little), and of each system's mean over its seeds. A system with
      one run has no variance over seeds, so it counts as this embedder. Where few items differ, this t test is too liberal, so p is at
      least that of `sign_flip_p`.
    - `sign_flip_p`, if scores are sums over items and their sums can be counted.
    - the bootstrap: with d the differences on m resamples, shifted to have the observed mean, p = 2 min(#(d <= 0) + 1, #(d >= 0) + 1) /
      (m + 1), at most 1 (Davison and Hinkley, 1997, 4.2). If few items differ, this p is too small: for 4 items that differ, all in one
      direction, it is 0.04 instead of 0.125.

    The effect is the difference divided by its standard error. It is infinite if all resamples have the same difference, not zero. A
    resample is left out if the score of a task is undefined on it; the test's name says how many.

    normal: the bootstrap's p and interval are those of a normal distribution. Such a p can be as small as needed, for families of very many
    pairs, where a counted p would take a hundred thousand resamples. same_trainings: both read the same models, seed by seed, so the
    variance over seeds is taken from their differences. interaction: the difference of two differences. Its null hypothesis does not make
    the sign of an item a coin flip.
    """
    sizes = [runs[0].n for runs in a.items]
    changes = None if interaction else task_changes(a.items, b.items)
    exact = None if changes is None else sign_flip_p(changes)
    if max(len(a.points), len(b.points)) == 1:
        return _bootstrap_test(a, b, exact, changes, normal=normal)
    means = [side.points.mean(axis=1) for side in (a, b)]
    over_items = np.nanvar(a.samples - b.samples, axis=1, ddof=1)
    sources = [(float(variance) / len(sizes) ** 2 * n / (n - 1), n - 1) for variance, n in zip(over_items, sizes, strict=True)]
    trained = [means[0] - means[1]] if same_trainings else [side for side in means if len(side) > 1]
    sources += [(float(np.var(side, ddof=1)) / len(side), len(side) - 1) for side in trained]
    test = t_test(float(means[0].mean() - means[1].mean()), sources, sum(sizes), "items (bootstrap) and seeds")
    return test if exact is None else replace(test, p=max(test.p, exact), changes=changes)


def _bootstrap_test(
    a: SampledScores, b: SampledScores, exact: float | None, changes: Scores | None, *, normal: bool
) -> PairedTest:
    from scipy.stats import norm

    sizes = [runs[0].n for runs in a.items]
    differences = (a.samples - b.samples).mean(axis=0)
    skipped = int(np.isnan(differences).sum())
    differences = differences[~np.isnan(differences)]
    difference = float(np.round((a.points[0] - b.points[0]).mean(), DECIMALS))
    # The resamples are shifted so that their mean is the observed difference. For most metrics that is a hundredth of a standard error.
    # But repeated items raise a V-measure, and many clusters raise it more than few: unshifted, two equally good designs would differ
    # because of their numbers of clusters. A resample without a difference stays at zero, since the shift must not decide its sign.
    shifted = np.round(differences - differences.mean() + difference, DECIMALS)
    differences = np.where(np.abs(differences) < 10**-DECIMALS, 0.0, shifted)
    error = float(differences.std(ddof=1))
    effect = difference / error if error > 10**-DECIMALS else _effect_without_spread(difference)
    bounds = partial(normal_interval if normal else difference_interval, differences, difference, len(sizes) * min(sizes))
    bootstrap_p = float(2 * norm.sf(abs(effect))) if normal else counted_p(differences)
    resampling = f"{'normal with the error of ' * normal}{len(differences)} resamples"
    resampling += f", {skipped} more undefined" if skipped else ""
    return PairedTest(
        test=f"paired bootstrap over items (two-sided, {resampling})"
        if exact is None
        else f"exact sign-flip test over items (two-sided; interval: paired bootstrap, {resampling})",
        n=sum(sizes),
        unit="items",
        difference=difference,
        p=bootstrap_p if exact is None else exact,
        effect=effect,
        effect_name=_IN_STANDARD_ERRORS,
        interval=bounds(0.95),
        bounds=bounds,
        least=0.0 if normal else 2 / (len(differences) + 1),
        changes=None if exact is None else changes,
    )


def paired_bootstrap(a: Sequence[Items], b: Sequence[Items], resamples: int = _RESAMPLES, seed: int = 0) -> PairedTest:
    """Test of two designs on the items of their tasks; a[i] and b[i] are the items of task i.

    To compare many designs, call `SampledScores.draw` once for each design and `compare_on_items` for each pair. Raises ValueError if the
    tasks differ in number, metric, items or gold.
    """
    if len(a) != len(b) or not a:
        raise ValueError(f"Both designs need the same tasks, at least 1. One has {len(a)}, the other {len(b)}.")
    for index, (items_a, items_b) in enumerate(zip(a, b, strict=True)):
        gold = METRICS[items_a.metric].gold
        is_paired = (items_a.metric, items_a.n) == (items_b.metric, items_b.n)
        if not is_paired or (gold and not np.array_equal(items_a.columns[gold], items_b.columns[gold])):
            raise ValueError(f"Task {index} does not have the same items, metric and gold values for both designs.")
    sides = (SampledScores.draw([[items] for items in side], resamples, seed) for side in (a, b))
    return compare_on_items(*sides)


def task_changes(a: Sequence[Sequence[Items]], b: Sequence[Sequence[Items]]) -> Scores | None:
    """How much each item adds to the mean difference a - b. a[i] and b[i] are the items of task i, one set for each seed.

    None if a score is not a sum over items, as for rank correlation, average precision, V-measure and F1.
    """
    changes = []
    for runs_a, runs_b in zip(a, b, strict=True):
        first = runs_a[0]
        if first.metric == "mean":
            column, total = "value", float(first.n)
        elif first.metric == "ratio" and all(
            np.array_equal(items.columns["below"], first.columns["below"]) for items in (*runs_a, *runs_b)
        ):
            column, total = "above", float(first.columns["below"].sum())
        else:
            return None
        mean_a, mean_b = (np.mean([items.columns[column] for items in runs], axis=0) for runs in (runs_a, runs_b))
        changes.append(np.asarray((mean_a - mean_b) / total, dtype=np.float64) / len(a))
    return np.concatenate(changes)


def sign_flip_p(changes: ArrayLike) -> float | None:
    """Exact two-sided p of the sign-flip test.

    `changes` are the amounts that the items add to the difference. If the two designs are equal, the sign of each amount is a coin flip.
    p is the share of sign patterns whose sum is at least as far from 0 as the observed sum. If all amounts have the same size, as
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


def counted_p(differences: Scores) -> float:
    """Two-sided p of bootstrapped differences: twice the share on the smaller side of zero. One is added to both counts."""
    fewer = min(np.count_nonzero(differences <= 0), np.count_nonzero(differences >= 0))
    return min(1.0, 2 * (int(fewer) + 1) / (len(differences) + 1))


def t_test(difference: float, sources: Sequence[VarianceSource], n: int, units: str) -> PairedTest:
    """t of a difference whose variance is the sum of several. n: number of items. units: names the sources in the name of the test."""
    from scipy.stats import t

    difference, (error, freedom) = round(difference, DECIMALS), standard_error(sources)

    def bounds(level: float) -> Bounds:
        # without any variance: a bound on what this many items did not show
        half = float(error * t.ppf((1 + level) / 2, freedom)) if error else unseen(n, level) * (2 * abs(difference) or 1.0)
        return difference - half, difference + half

    return PairedTest(
        test=f"t over {units}",
        n=n,
        unit="items",
        difference=difference,
        p=_p_of_t(difference, error, freedom),
        effect=difference / error if error else _effect_without_spread(difference),
        effect_name=_IN_STANDARD_ERRORS,
        interval=bounds(0.95),
        bounds=bounds,
    )


def standard_error(sources: Sequence[VarianceSource]) -> tuple[float, float]:
    """The standard error of a difference whose variance is the sum of several, and its degrees of freedom (Satterthwaite, 1946).

    Without any variance the error is 0. Means of equal scores differ in their last bits, so this is not an exact 0.
    """
    variance = sum(part for part, _ in sources)
    if variance <= NO_WIDTH**2:
        return 0.0, 1.0
    return float(np.sqrt(variance)), variance**2 / sum(part**2 / freedom for part, freedom in sources)


def _p_of_t(difference: float, error: float, freedom: float) -> float:
    from scipy.stats import t

    return float(2 * t.sf(abs(difference) / error, freedom)) if error else float(difference == 0)


def _effect_without_spread(difference: float) -> float:
    return float(np.copysign(np.inf, difference)) if difference else 0.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction, in the given order: the k-th smallest of m p-values is multiplied by m - k + 1, at most 1.

    The order of the p-values stays: a corrected p is never below the corrected p of a smaller p-value (Holm, 1979). The correction
    limits the chance of any false positive, also if the tests depend on each other.
    """
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1)
    return [float(value) for value in corrected]


def with_holm(tests: Sequence[PairedTest], level: float = SIGNIFICANT) -> list[PairedTest]:
    """The same tests, corrected as one family: with `p_holm`, and with intervals of the same correction.

    Holm multiplies the k-th smallest of m p-values by m - k + 1, and stops at the first that is not significant. The interval of a
    significant test has the confidence 1 - level / (m - k + 1). The c other tests have 1 - level / c (Guilbaud, 2008, who gives no
    interval for significant tests: theirs do not hold all at once). The interval of a test that is not significant contains 0: if test
    and bootstrap disagree, the interval is widened.
    """
    p_values = [test.p for test in tests]
    corrected = holm(p_values)
    ranks = {int(index): rank for rank, index in enumerate(np.argsort(p_values, kind="stable"))}
    not_significant = sum(p >= level for p in corrected)
    family = []
    for index, (test, p) in enumerate(zip(tests, corrected, strict=True)):
        confidence = 1 - level / (not_significant if p >= level else len(tests) - ranks[index])
        low, high = test.bounds(confidence) if test.bounds else test.interval
        if p >= level:
            low, high = min(low, 0.0), max(high, 0.0)
        family.append(replace(test, p_holm=p, interval=(low, high), level=confidence if test.bounds else test.level))
    return family


def fewest_tasks(comparisons: int = 1, level: float = SIGNIFICANT) -> int:
    """The number of tasks from which a family of signed-rank tests can have a significant one. For a single test it is 6.

    It is the smallest n with comparisons x 2/2^n < level. The smallest p of n tasks is 2/2^n, and Holm's first step multiplies it by the
    number of comparisons.
    """
    return next(n for n in count(1) if comparisons * 2.0 ** (1 - n) < level)
