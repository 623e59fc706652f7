"""Trained designs are compared with the variance of their training, which a single seed hides."""

import numpy as np
import pytest
from scipy import stats
from unmask.statistics.training_seeds import seed_test

from tests.proofs import ALL
from unmask.statistics.paired import wilcoxon

Scores = np.ndarray


def simulated(
    random: np.random.Generator, seeds: tuple[int, int], tasks: int, runs: tuple[float, float], task: float, rest: float
) -> tuple[Scores, Scores]:
    """Scores (seed, task) of two designs that are equal on average, with deviations of runs, of designs by task, and the rest."""
    shared, own = random.normal(0, 5, tasks), random.normal(0, task, tasks)
    a, b = (random.normal(0, run, (n, 1)) + random.normal(0, rest, (n, tasks)) for n, run in zip(seeds, runs, strict=True))
    return a + shared + own, b + shared


def example() -> tuple[Scores, Scores]:
    return simulated(np.random.default_rng(1), (3, 4), 8, (0.5, 0.5), 1, 0.3)


def test_the_error_by_hand() -> None:
    # Runs 0 and 2 off on every task alike, and tasks that differ by +1 and -1 between the designs: the variance of runs is 2, of either
    # design, and that of the differences 6 / 5.
    own = np.array([1.0, -1, 1, -1, 1, -1])
    a, b = np.array([own, own + 2]), np.array([np.zeros(6), np.full(6, 2.0)])
    found = seed_test(a, b)
    # error^2 = 6/5/6 with 5 degrees of freedom + 2/2 with 1 + 2/2 with 1: 2.2, and 2.2^2 / (0.04 / 5 + 1 + 1)
    half = np.sqrt(2.2) * stats.t.ppf(0.975, 2.2**2 / (0.04 / 5 + 2))
    assert found.test.interval == pytest.approx((-half, half))
    assert (found.test.difference, found.p_both) == pytest.approx((0, 1))


def test_the_error_is_that_of_tasks_and_of_the_runs_of_each_design() -> None:
    a, b = example()
    found, difference = seed_test(a, b), a.mean(axis=0) - b.mean(axis=0)
    parts = [(difference.var(ddof=1) / 8, 7), (a.mean(axis=1).var(ddof=1) / 3, 2), (b.mean(axis=1).var(ddof=1) / 4, 3)]
    variance = sum(part for part, _ in parts)
    freedom = variance**2 / sum(part**2 / count for part, count in parts)
    assert found.p_both == pytest.approx(2 * stats.t.sf(abs(difference.mean()) / np.sqrt(variance), freedom))


def test_without_a_run_effect_the_error_is_that_of_the_tasks() -> None:
    """Then p is that of the paired t test."""
    random = np.random.default_rng(3)
    a, b = (random.normal(0, 1, (3, 9)) for _ in range(2))
    a, b = (table - table.mean(axis=1, keepdims=True) for table in (a, b + np.linspace(-1, 1, 9)))
    found = seed_test(a + 0.3, b)
    expected = stats.ttest_rel(a.mean(axis=0) + 0.3, b.mean(axis=0))
    assert found.p_both == pytest.approx(expected.pvalue)
    assert found.test.interval == pytest.approx(tuple(expected.confidence_interval()))


VARYING = [
    (seeds, *deviations)
    for one, seeds in enumerate(((2, 2), (3, 3), (5, 5)))
    for other, deviations in enumerate((((1, 1), 0.1, 0.1), ((1, 1), 1, 0.5), ((0, 0), 1, 0.3), ((0, 0), 0, 1)))
    if ALL or (one + other) % 2 == 0
] + [((3, 5), (1, 0.2), 0.3, 0.3), ((5, 3), (0.2, 1), 0.3, 0.3), ((5, 5), (1, 0.2), 1, 0.3)]
"""Seeds of both designs, the deviations of their runs, of designs by task, and of the rest. `make test` tries every second pair of the
first three, and so each of both. A test with one variance for the runs of both designs finds 17 % of the last but two and of the last
but one."""


@pytest.mark.sample(3)
@pytest.mark.parametrize(("seeds", "runs", "task", "rest"), VARYING)
def test_false_findings_and_intervals_are_as_told_whatever_varies(
    seeds: tuple[int, int], runs: tuple[float, float], task: float, rest: float
) -> None:
    random = np.random.default_rng(seeds[0])
    found = [seed_test(*simulated(random, seeds, 12, runs, task, rest)) for _ in range(300)]
    assert np.mean([one.test.p < 0.05 for one in found]) <= 0.095  # 0.05 and 3.5 standard errors
    assert np.mean([one.p_both < 0.05 for one in found]) >= 0.003
    held = np.mean([one.test.interval[0] <= 0 <= one.test.interval[1] for one in found])
    assert 0.905 <= held <= 0.997
    if min(runs):  # why p_tasks does not do
        assert np.mean([one.p_tasks < 0.05 for one in found]) > 0.2


def test_a_real_difference_is_found() -> None:
    random = np.random.default_rng(0)
    found = []
    for _ in range(50):
        a, b = simulated(random, (3, 3), 12, (0.3, 0.3), 0.5, 0.3)
        found.append(seed_test(a + 1.5, b).test.p < 0.05)
    assert np.mean(found) > 0.9


def test_p_tasks_is_wilcoxons_of_the_means_and_the_larger_p_counts() -> None:
    a, b = example()
    found, expected = seed_test(a, b), wilcoxon(a.mean(axis=0), b.mean(axis=0))
    assert (found.p_tasks, found.test.effect, found.test.difference) == (expected.p, expected.effect, expected.difference)
    assert found.test.p == max(found.p_tasks, found.p_both)
    assert found.test.test == (
        "Wilcoxon signed-rank (two-sided, exact) of means over 3 seeds and 4 seeds, and t over tasks and seeds: the larger p"
    )
    # either of them may be the larger: runs that jump as one, and tasks of which one has all the difference
    jump = np.array([[0.0], [4], [8]])
    shifted = seed_test(np.linspace(1, 2, 8) + jump, np.zeros(8))
    assert shifted.test.p == shifted.p_both > shifted.p_tasks
    steady = np.outer([1, 1.01], [1, 1, 1, 1, 1, 1, -1e-3, -2e-3])
    assert (
        seed_test(steady, np.zeros(8)).test.p == seed_test(steady, np.zeros(8)).p_tasks > seed_test(steady, np.zeros(8)).p_both
    )


def test_swapping_the_designs_swaps_the_signs_and_the_order_of_seeds_is_none() -> None:
    a, b = example()
    there, back, shuffled = seed_test(a, b), seed_test(b, a), seed_test(a[::-1], b[[2, 0, 1, 3]])
    assert there.test.p == pytest.approx(back.test.p)
    assert there.test.interval == pytest.approx((-back.test.interval[1], -back.test.interval[0]))
    assert shuffled.test.interval == pytest.approx(there.test.interval)


def test_what_all_designs_share_does_not_matter() -> None:
    a, b = example()
    harder = np.linspace(-9, 9, 8)
    assert seed_test(a + harder, b + harder).test.p == pytest.approx(seed_test(a, b).test.p)


def test_a_design_that_is_not_trained_has_no_variance_of_training() -> None:
    a, b = example()
    found = seed_test(a, b[0])
    assert "over 3 seeds and no training," in found.test.test
    difference = a.mean(axis=0) - b[0]
    variance = difference.var(ddof=1) / 8 + a.mean(axis=1).var(ddof=1) / 3
    assert found.test.interval[1] - found.test.interval[0] > 2 * np.sqrt(variance) * stats.t.ppf(0.975, 9)


def test_the_level_is_that_of_the_interval() -> None:
    a, b = example()
    wide, narrow = (seed_test(a, b, level=level).test for level in (0.99, 0.5))
    assert wide.interval[0] < narrow.interval[0] < narrow.interval[1] < wide.interval[1]
    assert (wide.level, narrow.level) == (0.99, 0.5)


def test_designs_that_differ_by_one_amount_everywhere() -> None:
    shared, wobble = np.linspace(0, 1, 8), np.outer([1, -1], [1, -1] * 4) / 10  # cancels within runs and over them
    assert seed_test(shared + wobble + 1, shared).p_both == 0
    assert seed_test(shared + wobble, shared).p_both == seed_test(shared + wobble, shared).test.p == 1


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (np.ones((1, 8)), np.ones((3, 8)), "One seed: .* cannot be told apart .* ask wilcoxon or paired_bootstrap"),
        (example()[0], np.ones((1, 8)), "One seed"),
        (np.ones(8), np.ones(8), "compare them with wilcoxon"),
        (np.tile(np.arange(8.0), (3, 1)), np.ones(8), "3 seeds score the same on every task"),
        (example()[0], np.ones((3, 7)), r"same tasks, not shapes \(3, 8\) and \(3, 7\)"),
        (np.ones((2, 2, 8)), np.ones(8), r"\(seed, task\)"),
        (np.where(np.eye(3, 8), np.nan, 1.0), np.ones(8), "nan or infinite"),
        (example()[0][:, :5], np.ones(5), "at least 6 tasks, not 5"),
    ],
)
def test_what_cannot_be_compared_is_refused(a: Scores, b: Scores, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        seed_test(a, b)


def read_twice(random: np.random.Generator, shift: float) -> tuple[Scores, Scores]:
    """Two readings of the same four trained models: a training moves both alike."""
    run, own = random.normal(0, 3, (4, 1)), random.normal(0, 1, 10)
    a, b = (run + random.normal(0, 0.2, (4, 1)) + random.normal(0, 0.3, (4, 10)) for _ in range(2))
    return a + own + shift, b


def test_two_readings_of_the_same_trainings_are_paired() -> None:
    """A training that is worse for both says nothing of their difference."""
    random = np.random.default_rng(11)
    equal = [seed_test(*read_twice(random, 0), paired=True).test.p < 0.05 for _ in range(400)]
    assert np.mean(equal) < 0.09
    apart = [read_twice(random, 1.5) for _ in range(50)]
    found, alone = (np.mean([seed_test(*pair, paired=paired).test.p < 0.05 for pair in apart]) for paired in (True, False))
    assert found > 0.8 > 0.2 > alone
    paired = seed_test(*apart[0], paired=True)
    assert "of means over the same 4 seeds" in paired.test.test
