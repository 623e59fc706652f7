"""Ranks: the numbers of a critical-difference diagram, which ranks designs over tasks and groups those without a significant difference."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import factorial

import numpy as np

from unmask.statistics.bootstrap import Scores
from unmask.statistics.paired import DECIMALS, FEWEST_TASKS, SIGNIFICANT, PairedTest, fewest_tasks, wilcoxon, with_holm


@dataclass(frozen=True)
class Ranks:
    """The mean ranks of designs over tasks, and which designs differ significantly."""

    mean_ranks: dict[str, float]
    """Best first; 1 is best."""
    friedman_p: float
    """p of Friedman's test that all designs rank alike, by Iman and Davenport's F."""
    tests: dict[tuple[str, str], PairedTest]
    """Wilcoxon's test of each pair, the better mean rank first, Holm-corrected over all pairs."""
    cliques: tuple[tuple[str, ...], ...]
    """Groups of two or more designs that do not differ."""
    n: int
    """Number of tasks."""
    fewest: int
    """The fewest tasks with which a pair can be significant after the correction. With fewer, a clique says nothing."""

    def grouped_by(self, significant: Collection[frozenset[str]]) -> Ranks:
        """The same ranks, grouped by other tests, such as seed tests. significant: pairs that differ significantly in them."""
        order = list(self.mean_ranks)
        return replace(
            self, cliques=_cliques(order, {pair for pair in combinations(order, 2) if frozenset(pair) in significant})
        )


def critical_differences(scores: Mapping[str, Sequence[float]]) -> Ranks:
    """Rank designs on each task, and test which of them differ. scores[design][task]: higher is better.

    - Mean ranks: 1 is the best on a task. Equal scores share their average rank.
    - Does any design differ? Friedman's chi-squared (corrected for ties) with N tasks and k designs, and from it Iman and Davenport's F =
      (N - 1) chi2 / (N (k - 1) - chi2) with k - 1 and (k - 1)(N - 1) degrees of freedom (1980). The p of the chi-squared itself is too
      large (Demsar, 2006, 3.2.2).
    - Which designs differ? Wilcoxon's signed-rank test of every pair, with Holm's correction over all pairs. A clique is a run of
      designs that are neighbours in mean rank, as long as possible, in which no pair differs. Tests that compare mean ranks, such as
      Nemenyi's, depend on all designs: whether two differ could depend on a third (Benavoli, Corani and Mangili, 2016).

    A pair that does not differ may share no clique, if a design between the two differs from one of them. `tests` has every pair.
    Raises ValueError for fewer than 3 designs or 6 tasks, and for scores that are not paired or not finite.
    """
    from scipy.stats import rankdata

    table = np.round(np.array(list(scores.values()), dtype=np.float64), DECIMALS).T  # (task, design); equal scores tie
    if len(scores) < 3 or len(table) < FEWEST_TASKS:
        raise ValueError(f"Ranks need at least 3 designs and {FEWEST_TASKS} tasks, not {len(scores)} and {len(table)}.")
    ranks = rankdata(-table, axis=1)
    means = dict(zip(scores, ranks.mean(axis=0), strict=True))
    order = sorted(means, key=lambda design: means[design])
    pairs = list(combinations(order, 2))
    tests = dict(zip(pairs, with_holm([wilcoxon(scores[a], scores[b]) for a, b in pairs]), strict=True))
    return Ranks(
        mean_ranks={design: float(means[design]) for design in order},
        friedman_p=_friedman_p(ranks),
        tests=tests,
        cliques=_cliques(order, {pair for pair, test in tests.items() if test.is_significant()}),
        n=len(table),
        fewest=fewest_tasks(len(pairs), SIGNIFICANT),
    )


def _friedman_p(ranks: Scores) -> float:
    """p of Iman and Davenport's F of ranks (task, design)."""
    from scipy.stats import f

    n, k = ranks.shape
    between = float(n * np.square(ranks.mean(axis=0) - (k + 1) / 2).sum())
    total = float(np.square(ranks - (k + 1) / 2).sum())
    if not total:  # all designs tie on all tasks
        return 1.0
    chi_squared = (k - 1) * n * between / total
    if (ranks == ranks[0]).all():
        # F is infinite, and its p would be 0. So p is counted: the chance that every later task repeats the ranks of the first
        p_identical = np.prod([factorial(ties) for ties in np.unique(ranks[0], return_counts=True)[1]]) / factorial(k)
        return float(p_identical ** (n - 1))
    return float(f.sf((n - 1) * chi_squared / (n * (k - 1) - chi_squared), k - 1, (k - 1) * (n - 1)))


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
