"""Ranks over tasks equal textbooks; a clique holds designs that Wilcoxon's test does not separate."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from unmask.statistics.paired import holm, wilcoxon
from unmask.statistics.ranks import critical_differences

# AUC of four variants of C4.5 on 14 data sets: Demsar (2006), Table 6. On voting, +cf and +m+cf are printed alike and ranked 2, 3.
VARIANTS = {
    "C4.5": [.763, .599, .954, .628, .882, .936, .661, .583, .775, 1, .940, .619, .972, .957],
    "+m": [.768, .591, .971, .661, .888, .931, .668, .583, .838, 1, .962, .666, .981, .978],
    "+cf": [.771, .590, .968, .654, .886, .916, .609, .563, .866, 1, .965, .614, .9751, .946],
    "+m+cf": [.798, .569, .967, .657, .898, .931, .685, .625, .875, 1, .962, .669, .975, .970],
}  # fmt: skip


def test_demsars_variants_of_c45() -> None:
    # Average ranks as printed. Rank sums 44, 28, 40.5, 27.5, squares 5116.5: chi2 = 12 / (14 * 4 * 5) * 5116.5 - 3 * 14 * 5 = 9.28 as
    # printed, without ties. Three pairs tie, and all four on mushroom: over 1 - (3 * 6 + 60) / (14 * 60). F = 13 chi2 / (42 - chi2).
    ranks = critical_differences(VARIANTS)
    assert list(ranks.mean_ranks) == ["+m+cf", "+m", "+cf", "C4.5"]
    assert list(ranks.mean_ranks.values()) == pytest.approx([1.964, 2.000, 2.893, 3.143], abs=5e-4)
    chi2 = stats.friedmanchisquare(*VARIANTS.values()).statistic
    assert chi2 == pytest.approx(9.278571 / (1 - 78 / 840), rel=1e-6)
    assert ranks.friedman_p == pytest.approx(stats.f.sf(13 * chi2 / (42 - chi2), 3, 39))


def test_groups_may_come_from_other_tests() -> None:
    ranks = critical_differences(VARIANTS)
    order = list(ranks.mean_ranks)
    assert ranks.grouped_by(set()).cliques == (tuple(order),)
    assert ranks.grouped_by({frozenset((order[2], order[0]))}).cliques == (tuple(order[:2]), tuple(order[1:]))


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


def test_designs_that_always_or_never_differ() -> None:
    # F is infinite. Each of 6 tasks repeats the ranks of the first by chance in 1 of 3! ways: p = 1/6^6 for tasks 2 to 7.
    scores = {name: list(np.arange(7) + value) for name, value in (("a", 0.3), ("b", 0.2), ("c", 0.1))}
    assert critical_differences(scores).friedman_p == pytest.approx(6.0**-6)
    tied = critical_differences(dict.fromkeys("abc", scores["a"]))
    assert (tied.friedman_p, tied.cliques) == (1, (("a", "b", "c"),))


@pytest.mark.parametrize(
    "scores",
    [
        {"a": [1.0] * 6, "b": [2.0] * 6},
        {"a": [1.0] * 5, "b": [2.0] * 5, "c": [3.0] * 5},
        {"a": [1.0] * 6, "b": [2.0] * 6, "c": [3.0] * 7},
        {"a": [1.0] * 6, "b": [2.0] * 6, "c": [np.nan] * 6},
    ],
)
def test_what_cannot_be_ranked_is_refused(scores: dict[str, list[float]]) -> None:
    with pytest.raises(ValueError, match=r"at least 3 designs and 6 tasks|inhomogeneous|nan or infinite"):
        critical_differences(scores)
