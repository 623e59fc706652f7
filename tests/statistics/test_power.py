"""A difference that is called detectable is found in four of five studies."""

from __future__ import annotations

import numpy as np
import pytest

from unmask.statistics.bootstrap import Items
from unmask.statistics.paired import PairedTest, paired_bootstrap, t_test, wilcoxon, with_holm
from unmask.statistics.power import detectable


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
