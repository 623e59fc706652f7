"""Ranks: the numbers of a critical-difference diagram, which ranks designs over tasks and groups those without a significant difference."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import factorial, sqrt
from typing import NamedTuple

import numpy as np

from unmask.statistics.bootstrap import Scores
from unmask.statistics.paired import (
    DECIMALS,
    FEWEST_TASKS,
    PairedTest,
    fewest_tasks,
    wilcoxon,
    with_holm,
)


class Omnibus(NamedTuple):
    """An omnibus test: its statistic, and p, the chance of one at least as large if the designs are equal."""

    statistic: float
    p: float


@dataclass(frozen=True)
class Ranks:
    """The mean ranks of designs over n tasks, and which designs differ significantly at `level`.

    mean_ranks: best first; 1 is best. friedman: chi-squared, corrected for ties, and its p. iman_davenport: F, and its p. tests:
    Wilcoxon's test of each pair, the better mean rank first, Holm-corrected over all pairs. cliques: groups of two or more designs that
    do not differ. nemenyi: the critical difference of Nemenyi's test. fewest: the minimum number of tasks for a pair to be significant
    after the correction; if n is smaller, a clique says nothing.
    """

    mean_ranks: dict[str, float]
    friedman: Omnibus
    iman_davenport: Omnibus
    tests: dict[tuple[str, str], PairedTest]
    cliques: tuple[tuple[str, ...], ...]
    nemenyi: float
    n: int
    fewest: int
    level: float

    def grouped_by(self, significant: Collection[frozenset[str]]) -> Ranks:
        """The same ranks, grouped by other tests, such as seed tests. significant: pairs that differ significantly in them."""
        order = list(self.mean_ranks)
        return replace(
            self, cliques=_cliques(order, {pair for pair in combinations(order, 2) if frozenset(pair) in significant})
        )

    @property
    def friedman_p(self) -> float:
        """p of Iman and Davenport's F. Report this one: the p of the chi-squared is too large (Demsar, 2006, 3.2.2)."""
        return self.iman_davenport.p


def critical_differences(scores: Mapping[str, Sequence[float]], level: float = 0.05) -> Ranks:
    """Rank designs on each task, and test which of them differ. scores[design][task]: higher is better.

    - Mean ranks: 1 is the best on a task. Equal scores share their average rank.
    - Does any design differ? Friedman's chi-squared with N tasks and k designs, and from it Iman and Davenport's F =
      (N - 1) chi2 / (N (k - 1) - chi2) with k - 1 and (k - 1)(N - 1) degrees of freedom (1980).
    - Which designs differ? Wilcoxon's signed-rank test of every pair, with Holm's correction over all pairs. A clique is a run of
      designs that are neighbours in mean rank, as long as possible, in which no pair differs at `level`.
    - Nemenyi's test is not used: it compares mean ranks, and these depend on all designs. Whether two designs differ could then depend on
      a third (Benavoli, Corani and Mangili, 2016). Its critical difference q sqrt(k (k + 1) / (6 N)) is given for comparison (Demsar,
      2006, 3.2.2).

    A pair that does not differ may share no clique, if a design between the two differs from one of them. `tests` has every pair.
    Raises ValueError for fewer than 3 designs or 6 tasks, and for scores that are not paired or not finite.
    """
    from scipy.stats import rankdata, studentized_range

    table = _table(scores)  # (task, design)
    n, k = table.shape
    if not 0 < level < 1:
        raise ValueError(f"The level of a test must be between 0 and 1, not {level}. 0.05 is usual.")
    ranks = rankdata(-table, axis=1)
    means = dict(zip(scores, ranks.mean(axis=0), strict=True))
    order = sorted(means, key=lambda design: means[design])
    pairs = list(combinations(order, 2))
    outcomes = with_holm([wilcoxon(scores[a], scores[b]) for a, b in pairs], level)
    tests = dict(zip(pairs, outcomes, strict=True))
    friedman, iman_davenport = _omnibus(ranks)
    return Ranks(
        mean_ranks={design: float(means[design]) for design in order},
        friedman=friedman,
        iman_davenport=iman_davenport,
        tests=tests,
        cliques=_cliques(order, {pair for pair, test in tests.items() if test.is_significant(level)}),
        nemenyi=float(studentized_range.ppf(1 - level, k, np.inf) / sqrt(2) * sqrt(k * (k + 1) / (6 * n))),
        n=n,
        fewest=fewest_tasks(len(pairs), level),
        level=level,
    )


def _table(scores: Mapping[str, Sequence[float]]) -> Scores:
    """Scores of shape (task, design), rounded so that equal scores tie. Raises ValueError if they cannot be ranked."""
    if len(scores) < 3:
        raise ValueError(f"Ranks over tasks need at least 3 designs, not {len(scores)}. Compare 2 designs with wilcoxon.")
    lengths = {design: len(values) for design, values in scores.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(
            f"Every design needs a score on every task, but their numbers of scores are {lengths}. Use only tasks that all designs have."
        )
    table = np.asarray(np.round(np.array(list(scores.values()), dtype=np.float64), DECIMALS).T, dtype=np.float64)
    if table.ndim != 2:
        raise ValueError(f"Every design needs one score for each task, not an array of shape {table.T.shape[1:]}.")
    if len(table) < FEWEST_TASKS:
        raise ValueError(
            f"Ranks over tasks need at least {FEWEST_TASKS} tasks, not {len(table)}: with fewer, no pair can be told apart. Add tasks, or "
            "use paired_bootstrap on the items of these tasks."
        )
    if not np.isfinite(table).all():
        bad = ", ".join(design for design, values in zip(scores, table.T, strict=True) if not np.isfinite(values).all())
        raise ValueError(f"A score of {bad} is nan or infinite: leave that task out for all designs.")
    return table


def _omnibus(ranks: Scores) -> tuple[Omnibus, Omnibus]:
    """Friedman's chi-squared and Iman and Davenport's F of ranks (task, design)."""
    from scipy.stats import chi2, f

    n, k = ranks.shape
    between = float(n * np.square(ranks.mean(axis=0) - (k + 1) / 2).sum())
    total = float(np.square(ranks - (k + 1) / 2).sum())
    if not total:  # all designs tie on all tasks
        return Omnibus(0.0, 1.0), Omnibus(0.0, 1.0)
    statistic = (k - 1) * n * between / total
    friedman = Omnibus(statistic, float(chi2.sf(statistic, k - 1)))
    if (ranks == ranks[0]).all():
        # F is infinite, and its p would be 0. So p is counted: the chance that every later task repeats the ranks of the first
        p_identical = np.prod([factorial(ties) for ties in np.unique(ranks[0], return_counts=True)[1]]) / factorial(k)
        return friedman, Omnibus(float("inf"), float(p_identical ** (n - 1)))
    ratio = (n - 1) * statistic / (n * (k - 1) - statistic)
    return friedman, Omnibus(ratio, float(f.sf(ratio, k - 1, (k - 1) * (n - 1))))


def _cliques(order: Sequence[str], differ: set[tuple[str, str]]) -> tuple[tuple[str, ...], ...]:
    """Maximal runs of `order`, of at least two, within which no pair is in `differ`."""
    cliques: list[tuple[str, ...]] = []
    reach = 0  # the end of the last clique: one that begins later and ends no later is part of it
    for start in range(len(order)):
        end = start + 1
        while end < len(order) and not any((order[index], order[end]) in differ for index in range(start, end)):
            end += 1
        if end > max(reach, start + 1):
            cliques.append(tuple(order[start:end]))
            reach = end
    return tuple(cliques)
