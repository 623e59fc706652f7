"""Ranks over tasks equal textbooks; a clique holds designs that Wilcoxon's test does not separate."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from unmask.statistics.paired import fewest_tasks, holm, wilcoxon
from unmask.statistics.ranks import critical_differences

# Rounding first base, 22 players, seconds: Hollander and Wolfe (1973, p. 140), as in R's ?friedman.test.
ROUNDING = np.array(
    [
        [5.40, 5.50, 5.55], [5.85, 5.70, 5.75], [5.20, 5.60, 5.50], [5.55, 5.50, 5.40], [5.90, 5.85, 5.70], [5.45, 5.55, 5.60],
        [5.40, 5.40, 5.35], [5.45, 5.50, 5.35], [5.25, 5.15, 5.00], [5.85, 5.80, 5.70], [5.25, 5.20, 5.10], [5.65, 5.55, 5.45],
        [5.60, 5.35, 5.45], [5.05, 5.00, 4.95], [5.50, 5.50, 5.40], [5.45, 5.55, 5.50], [5.55, 5.55, 5.35], [5.45, 5.50, 5.55],
        [5.50, 5.45, 5.25], [5.65, 5.60, 5.40], [5.70, 5.65, 5.55], [6.30, 6.30, 6.25],
    ]
)  # fmt: skip

# AUC of four variants of C4.5 on 14 data sets: Demsar (2006), Table 6. On voting, +cf and +m+cf are printed alike and ranked 2, 3.
VARIANTS = {
    "C4.5": [.763, .599, .954, .628, .882, .936, .661, .583, .775, 1, .940, .619, .972, .957],
    "+m": [.768, .591, .971, .661, .888, .931, .668, .583, .838, 1, .962, .666, .981, .978],
    "+cf": [.771, .590, .968, .654, .886, .916, .609, .563, .866, 1, .965, .614, .9751, .946],
    "+m+cf": [.798, .569, .967, .657, .898, .931, .685, .625, .875, 1, .962, .669, .975, .970],
}  # fmt: skip


def rounding(names: str = "round narrow wide") -> dict[str, list[float]]:
    """Times as scores: the fewest seconds are best."""
    return {name: list(-times) for name, times in zip(names.split(), ROUNDING.T, strict=True)}


def test_groups_may_come_from_other_tests() -> None:
    ranks = critical_differences(VARIANTS)
    order = list(ranks.mean_ranks)
    assert ranks.grouped_by(set()).cliques == (tuple(order),)
    assert ranks.grouped_by({frozenset((order[2], order[0]))}).cliques == (tuple(order[:2]), tuple(order[1:]))
    assert ranks.grouped_by({frozenset(pair) for pair in combinations(order, 2)}).cliques == ()


def test_friedmans_test_of_the_rounding_times_is_rs() -> None:
    # friedman.test(RoundingTimes): Friedman chi-squared = 11.143, df = 2, p-value = 0.003805.
    ranks = critical_differences(rounding())
    assert ranks.friedman == pytest.approx((11.143, 0.003805), rel=1e-4)
    assert ranks.n == 22
    assert list(ranks.mean_ranks) == ["wide", "narrow", "round"]


def test_demsars_variants_of_c45() -> None:
    # Average ranks and CD = 2.569 sqrt(4 * 5 / (6 * 14)) = 1.25 as printed. Rank sums 44, 28, 40.5, 27.5, squares 5116.5:
    # chi2 = 12 / (14 * 4 * 5) * 5116.5 - 3 * 14 * 5 = 9.28 as printed, without ties. Three pairs tie, and all four on mushroom:
    # over 1 - (3 * 6 + 60) / (14 * 60). F = 13 chi2 / (42 - chi2), for which the uncorrected 9.28 gives 3.69 as printed.
    ranks = critical_differences(VARIANTS)
    assert list(ranks.mean_ranks) == ["+m+cf", "+m", "+cf", "C4.5"]
    assert list(ranks.mean_ranks.values()) == pytest.approx([1.964, 2.000, 2.893, 3.143], abs=5e-4)
    assert ranks.nemenyi == pytest.approx(2.569 * np.sqrt(20 / 84), abs=1e-3)
    chi2 = 9.278571 / (1 - 78 / 840)
    assert ranks.friedman.statistic == pytest.approx(chi2, rel=1e-6)
    assert ranks.iman_davenport.statistic == pytest.approx(13 * chi2 / (42 - chi2), rel=1e-6)
    assert ranks.friedman_p == ranks.iman_davenport.p == pytest.approx(stats.f.sf(13 * chi2 / (42 - chi2), 3, 39))
    assert ranks.friedman_p < ranks.friedman.p


@given(st.integers(0, 2**32 - 1))
def test_friedman_is_scipys_with_ties_or_without(seed: int) -> None:
    table = np.random.default_rng(seed).integers(0, 6, (4, 9)) / 10 + np.arange(9)
    if (table == table[0]).all():
        return
    ranks = critical_differences({str(index): list(row) for index, row in enumerate(table)})
    assert ranks.friedman == pytest.approx(tuple(stats.friedmanchisquare(*table)))


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(6, 12), st.integers(3, 6))
def test_cliques_are_the_maximal_runs_without_a_pair_that_differs(seed: int, n: int, k: int) -> None:
    random = np.random.default_rng(seed)
    table = random.normal(size=n) + random.normal(size=(k, 1)) + random.normal(0, 0.3, (k, n))
    scores = {f"design{index}": list(row) for index, row in enumerate(table)}
    ranks = critical_differences(scores)
    order = list(ranks.mean_ranks)
    corrected = holm([wilcoxon(scores[a], scores[b], resamples=1).p for a, b in combinations(order, 2)])
    same = {pair for pair, p in zip(combinations(order, 2), corrected, strict=True) if p >= 0.05}
    runs = [tuple(order[i:j]) for i in range(k) for j in range(i + 2, k + 1)]
    alike = [run for run in runs if set(combinations(run, 2)) <= same]
    assert list(ranks.cliques) == [run for run in alike if not any(set(run) < set(other) for other in alike)]


def chain(n: int = 12) -> dict[str, list[float]]:
    """Four designs, each a little better than the next: neighbours are not told apart, the ends are."""
    noise = np.random.default_rng(2).normal(0, 1, (4, n))
    return {name: list(row + step) for name, row, step in zip("abcd", noise, (2.4, 1.6, 0.8, 0), strict=True)}


def test_the_tests_of_two_designs_do_not_depend_on_a_third_but_their_mean_ranks_do() -> None:
    # Benavoli, Corani and Mangili (2016): why no test here is of mean ranks. The third stands between a and b on some tasks.
    others = [list(np.random.default_rng(seed).normal(1.2, 1, 12)) for seed in (0, 1)]
    one, other = (critical_differences({**{name: chain()[name] for name in "ad"}, "x": scores}) for scores in others)
    assert (one.tests["a", "d"].p, one.tests["a", "d"].effect) == (other.tests["a", "d"].p, other.tests["a", "d"].effect)
    gaps = [found.mean_ranks["d"] - found.mean_ranks["a"] for found in (one, other)]
    assert gaps[0] != gaps[1]


def test_designs_that_always_rank_alike() -> None:
    # F is infinite. Each of 6 tasks repeats the ranks of the first by chance in 1 of 3! ways: p = 1/6^6 for tasks 2 to 7.
    scores = {name: list(np.arange(7) + value) for name, value in (("a", 0.3), ("b", 0.2), ("c", 0.1))}
    ranks = critical_differences(scores)
    assert ranks.iman_davenport == pytest.approx((np.inf, 6.0**-6))
    assert ranks.friedman.statistic == pytest.approx(7 * 2)
    tied = critical_differences({**scores, "b": scores["a"]})  # ranks 1.5 1.5 3: in 1 of 3 ways
    assert tied.iman_davenport.p == pytest.approx(3.0**-6)


def test_designs_that_never_differ() -> None:
    ranks = critical_differences({name: [0.5, 0.6, 0.7, 0.8, 0.9, 1.0] for name in "abc"})
    assert (ranks.friedman, ranks.iman_davenport) == ((0, 1), (0, 1))
    assert ranks.cliques == (("a", "b", "c"),)


@pytest.mark.parametrize(("pairs", "level", "tasks"), [(1, 0.05, 6), (2, 0.05, 7), (3, 0.05, 7), (28, 0.05, 11), (1, 0.01, 8)])
def test_fewest_tasks(pairs: int, level: float, tasks: int) -> None:
    assert fewest_tasks(pairs, level) == tasks
    assert pairs * 2 / 2**tasks < level <= pairs * 2 / 2 ** (tasks - 1)


@pytest.mark.parametrize(
    ("scores", "level", "message"),
    [
        ({"a": [1.0] * 6, "b": [2.0] * 6}, 0.05, "at least 3 designs, not 2. Compare 2 designs with wilcoxon"),
        (
            {"a": [1.0] * 5, "b": [2.0] * 5, "c": [3.0] * 5},
            0.05,
            "Ranks over tasks need at least 6 tasks, not 5: .* use paired_bootstrap",
        ),
        ({"a": [1.0] * 6, "b": [2.0] * 6, "c": [3.0] * 7}, 0.05, "'c': 7.* Use only tasks that all designs have"),
        ({"a": [1.0] * 6, "b": [2.0] * 6, "c": [np.nan] * 6}, 0.05, "score of c is nan or infinite"),
        ({"a": [1.0] * 6, "b": [2.0] * 6, "c": [[3.0, 1.0]] * 6}, 0.05, "inhomogeneous"),
        ({"a": [[1.0]] * 6, "b": [[2.0]] * 6, "c": [[3.0]] * 6}, 0.05, "one score for each task"),
        ({"a": [1.0] * 6, "b": [2.0] * 6, "c": [3.0] * 6}, 5, "between 0 and 1, not 5"),
    ],
)
def test_what_cannot_be_ranked_is_refused(scores: dict[str, list[float]], level: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        critical_differences(scores, level)
