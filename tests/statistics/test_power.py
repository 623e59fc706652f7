"""Power follows published approximations and the test itself."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import stats

from tests.proofs import ALL
from unmask.statistics.bootstrap import Items
from unmask.statistics.paired import PairedTest, paired_bootstrap, t_test, wilcoxon, with_holm
from unmask.statistics.power import detectable, power_statement


def scores(effect: float, n: int = 12, deviation: float = 0.02) -> tuple[np.ndarray, np.ndarray]:
    """Two designs whose difference has exactly this mean (in deviations) and deviation."""
    shape = np.random.default_rng(n).normal(size=n)
    shape = (shape - shape.mean()) / shape.std(ddof=1)
    second = np.linspace(0.3, 0.8, n)
    return second + deviation * (shape + effect), second


def noether(effect: float, power: float, level: float) -> float:
    """Sample size by Noether (1987): (z_a/2 + z_b)^2 / (3 (p - 1/2)^2), p = P(X + X' > 0) = Phi(sqrt 2 effect) for a normal X."""
    return float(stats.norm.ppf([1 - level / 2, power]).sum() ** 2 / (3 * (stats.norm.cdf(np.sqrt(2) * effect) - 0.5) ** 2))


def power_of_t_test(effect: float, n: int, level: float = 0.05) -> float:
    """Power of the two-sided t test of n normal differences: the noncentral t."""
    edge, shift = stats.t.ppf(1 - level / 2, n - 1), effect * np.sqrt(n)
    return float(stats.nct.sf(edge, n - 1, shift) + stats.nct.cdf(-edge, n - 1, shift))


EFFECTS, POWERS = (0.2, 0.3, 0.5), (0.5, 0.8, 0.9)


# the diagonal has each effect and each power once, and a wrong factor moves all of them
@pytest.mark.parametrize(("effect", "power"), product(EFFECTS, POWERS) if ALL else zip(EFFECTS, POWERS, strict=True))
def test_tasks_needed_are_noethers_for_small_effects(effect: float, power: float) -> None:
    # whose formula takes the variance of no effect, and so asks for a little more
    needed = power_statement(*scores(effect), power=power).tasks_needed
    assert needed is not None
    assert 0.87 * noether(effect, power, 0.05) < needed < 1.06 * noether(effect, power, 0.05)


@pytest.mark.sample(2)
@pytest.mark.parametrize(("n", "level"), [(6, 0.05), (9, 0.05), (12, 0.01), (20, 0.05), (100, 0.05)])
def test_power_is_the_share_of_studies_in_which_wilcoxon_finds_it(n: int, level: float) -> None:
    # the same counted with the test itself, on other studies: 600, whose standard error is at most 0.02
    random = np.random.default_rng(5)
    found = [wilcoxon(random.normal(0.6, 1, n), np.zeros(n), resamples=1).p < level for _ in range(600)]
    assert power_statement(*scores(0.6, n), level=level).power_now == pytest.approx(np.mean(found), abs=0.065)


def test_six_tasks_are_the_fewest_and_more_comparisons_need_more() -> None:
    assert power_statement(*scores(9.0)).tasks_needed == 6
    assert power_statement(*scores(9.0), comparisons=28).tasks_needed == 11
    assert power_statement(*scores(9.0, 5)).power_now == 0
    assert power_statement(*scores(9.0, 6)).power_now == 1
    assert power_statement(*scores(9.0, 6), comparisons=3).power_now == 0


def test_the_sentence_says_what_was_found() -> None:
    found = power_statement(*scores(0.5, 12, 0.024))
    assert found.effect == pytest.approx(0.5)
    assert found.text == (
        f"A difference like this (+1.2 points, deviation 2.4) needs about {found.tasks_needed} tasks: then 80 % of studies find it. "
        "Here are 12 tasks."
    )
    assert " tasks: then 90 % of studies find it. " in power_statement(*scores(2.0), power=0.9).text
    corrected = power_statement(*scores(-0.5, 12, 0.024), comparisons=3).text
    assert "(-1.2 points" in corrected and "studies find it, corrected for 3 comparisons. " in corrected


@pytest.mark.parametrize(
    ("a", "b", "options", "message"),
    [
        ([0.5], [0.4], {}, "at least 2 tasks, not 1"),
        ([0.5, 0.6], [0.4], {}, "one score for each task"),
        ([0.5, np.nan], [0.4, 0.4], {}, "nan or infinite"),
        ([0.3, 0.2], [0.2, 0.1], {}, r"differ by \+0.1 on every task, so .* paired_bootstrap"),
        ([0.3, 0.2], [0.3, 0.2], {}, r"differ by \+0 on every task"),
        ([0.3, 0.2], [0.3, 0.1], {"power": 80}, "not 80"),
        ([0.3, 0.2], [0.3, 0.1], {"power": 0.04}, "not 0.04"),
        (np.arange(1001) % 2, np.zeros(1001), {}, "At most 1000 tasks can be simulated, not 1001"),
    ],
)
def test_what_cannot_be_planned_with_is_refused(a: object, b: object, options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        power_statement(a, b, **options)  # type: ignore[arg-type]


@pytest.mark.sample(1)
@pytest.mark.parametrize(("tasks", "family"), [(9, 1), (9, 8), (13, 20), (40, 5)])
def test_a_detectable_difference_is_found_in_four_studies_of_five(tasks: int, family: int) -> None:
    """By the rule of the verdict: corrected ranks, and a corrected interval. With 9 tasks and 8 tests, all ranks have to agree."""
    random = np.random.default_rng(1)
    values = random.normal(size=tasks)
    now = wilcoxon((values - values.mean()) / values.std(ddof=1), np.zeros(tasks))
    size = detectable(with_holm([now] * family)[0])
    studies = [wilcoxon(random.normal(size, 1, tasks), np.zeros(tasks)) for _ in range(300)]
    found = np.mean([with_holm([study] * family)[0].winner == "a" for study in studies])
    assert 0.7 < found < 0.9


def test_what_is_detectable_grows_with_the_correction_until_nothing_is() -> None:
    values = np.random.default_rng(0).normal(size=9)
    test = wilcoxon(values - values.mean(), np.zeros(9))
    sizes = [detectable(with_holm([test] * family)[0]) for family in (1, 4, 12, 13)]
    assert sizes[0] < sizes[1] < sizes[2] < np.inf == sizes[3], "13 x 2 / 2^9 is above 0.05"
    assert detectable(with_holm([test] * 13)[0], by_interval=True) < np.inf
    assert detectable(test) == detectable(test) < detectable(test, 0.95)


def test_a_test_over_items_detects_what_its_normal_interval_says() -> None:
    values = np.random.default_rng(0).normal(size=(2, 400))
    first, second = ([Items("mean", {"value": side})] for side in values)
    test = paired_bootstrap(first, second)
    error = np.sqrt(np.var(values[0] - values[1]) / 400)
    assert detectable(test) == pytest.approx((1.96 + 0.842) * error, rel=0.1) == detectable(test, by_interval=True)


def of_items(changes: np.ndarray, family: int = 1) -> PairedTest:
    """The corrected test of two designs whose scores differ by these changes, item by item."""
    first, second = ([Items("mean", {"value": side})] for side in (np.maximum(changes, 0), np.maximum(-changes, 0)))
    return with_holm([paired_bootstrap(first, second, 300)] * family)[0]


@pytest.mark.sample(1)
@pytest.mark.parametrize(("items", "differ", "family"), [(48, 3, 1), (48, 0, 1), (48, 20, 1), (48, 8, 5)])
def test_what_the_sign_flips_of_few_items_detect_is_found_in_four_studies_of_five(items: int, differ: int, family: int) -> None:
    """Of 48 items that are right or wrong, three differ. A normal interval promised 9 points; the exact test finds 28 % of these."""
    now = np.repeat([1.0, -1.0, 0.0], [differ - differ // 2, differ // 2, items - differ])
    size = detectable(of_items(now, family))
    share, random = max(differ / items, size), np.random.default_rng(0)
    studies = [(random.random(items) < share) * np.sign((1 + size / share) / 2 - random.random(items)) for _ in range(250)]
    assert 0.72 < np.mean([of_items(study, family).winner == "a" for study in studies]) < 0.88


def test_items_of_all_sizes_are_detected_as_by_a_t_test() -> None:
    values = np.random.default_rng(0).normal(size=12)
    now = (values - values.mean()) / values.std(ddof=1)
    assert power_of_t_test(detectable(of_items(now)), 12) == pytest.approx(0.8, abs=0.04)


def test_five_items_detect_nothing() -> None:
    """The smallest p of five items is 0.0625."""
    assert detectable(of_items(np.ones(5))) == np.inf > detectable(of_items(np.ones(6)))
    assert detectable(of_items(np.ones(6), family=2)) == np.inf, "twice 0.03125 is above 0.05"
    assert detectable(of_items(np.ones(5)), by_interval=True) < np.inf


@pytest.mark.sample(1)
@pytest.mark.parametrize("family", [1, 3, 8])
def test_where_few_seeds_decide_a_detectable_difference_is_found_as_often(family: int) -> None:
    """t of two degrees of freedom is far from normal: at the level of eight tests, 10.4 standard errors are needed and not 2.7."""
    random = np.random.default_rng(0)

    def corrected(by_seed: np.ndarray) -> PairedTest:
        test = t_test(by_seed.mean(), [(1e-6, 79), (by_seed.var(ddof=1) / 3, 2)], 80, "texts and 3 paired seeds")
        return with_holm([test] * family)[0]

    size = detectable(corrected(np.array([-1.0, 0.0, 1.0])))
    found = np.mean([corrected(random.normal(size, 1, 3)).winner == "a" for _ in range(1000)])
    assert 0.65 < found < 0.9
