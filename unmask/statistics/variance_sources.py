"""Tests of a difference whose error has several sources: other items, and other trainings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from jaxtyping import Float

from unmask.io.array_types import NDArray
from unmask.statistics.intervals import NO_WIDTH, Bounds, unseen
from unmask.statistics.paired import DECIMALS, PairedTest, effect_without_spread, sign_flip_p

Source = tuple[float, int]
"""A variance, and its degrees of freedom."""


def error_of_sources(sources: Sequence[Source]) -> tuple[float, float]:
    """The standard error of a difference whose variance is the sum of several, and its degrees of freedom: Satterthwaite's (1946).

    Without any variance the error is 0. Means of equal scores differ in their last bits, so this is no exact 0.
    """
    variance = sum(part for part, _ in sources)
    if variance <= NO_WIDTH**2:
        return 0.0, 1.0
    return float(np.sqrt(variance)), variance**2 / sum(part**2 / count for part, count in sources)


def p_of_t(difference: float, error: float, freedom: float) -> float:
    """Two-sided p of a difference over its standard error. Without an error, p is 1 for no difference, and 0 for any other."""
    from scipy.stats import t

    return float(2 * t.sf(abs(difference) / error, freedom)) if error else float(difference == 0)


def t_of_sources(difference: float, sources: Sequence[Source], n: int, what: str) -> PairedTest:
    """t of a difference whose variance is the sum of several. n: number of items. what: names the sources, for the name of the test."""
    difference, (error, freedom) = round(difference, DECIMALS), error_of_sources(sources)
    bounds = partial(_bounds, difference, error, freedom, n)
    return PairedTest(
        test=f"t over {what}", n=n, unit="items", difference=difference, p=p_of_t(difference, error, freedom), p_holm=None,
        effect=difference / error if error else effect_without_spread(difference), effect_name="difference in standard errors",
        interval=bounds(0.95), level=0.95, bounds=bounds,
    )  # fmt: skip


def items_and_seeds_test(
    samples: tuple[Float[NDArray[np.float64], "run_a task resample"], Float[NDArray[np.float64], "run_b task resample"]],
    points: tuple[Float[NDArray[np.float64], "seed_a task"], Float[NDArray[np.float64], "seed_b task"]],
    sizes: Sequence[int],
    *,
    paired: bool = False,
    changes: Float[NDArray[np.float64], " item"] | None = None,
) -> PairedTest:
    """Test of two designs on the same items, at least one of them trained with several seeds: other items, and other trainings.

    samples: scores on bootstrapped items of each task, of each seed or their mean, the same draw for both designs. points: scores on all
    items. sizes: number of items of each task. The difference is the mean over tasks. Its variance is that of each task's difference over
    resamples (times n / (n - 1), since a bootstrap of n items has too little), plus that of each design's mean over its seeds. A design
    with one run has no variance over seeds here, so it counts as this embedder. paired: both read the same trained models, seed by seed. A
    training then moves both, so the variance over seeds is that of their differences. changes: how much each item adds to the mean
    difference over seeds (`task_changes`). With them p is at least that of `sign_flip_p`: where few items differ, the t finds too much.
    Raises ValueError if both have one run: then there is no training to test.
    """
    if max(len(side) for side in points) < 2:
        raise ValueError("Neither design has several seeds: test the items alone.")
    means = [side.mean(axis=1) for side in points]
    over_items = np.nanvar(samples[0].mean(axis=0) - samples[1].mean(axis=0), axis=1, ddof=1)
    sources = [(float(variance) / len(sizes) ** 2 * n / (n - 1), n - 1) for variance, n in zip(over_items, sizes, strict=True)]
    trained = [means[0] - means[1]] if paired else [side for side in means if len(side) > 1]
    sources += [(float(np.var(side, ddof=1)) / len(side), len(side) - 1) for side in trained]
    test = t_of_sources(float(means[0].mean() - means[1].mean()), sources, sum(sizes), "items (bootstrap) and seeds")
    exact = None if changes is None else sign_flip_p(changes)
    return test if exact is None else replace(test, p=max(test.p, exact), changes=changes)


def _bounds(difference: float, error: float, freedom: float, n: int, level: float) -> Bounds:
    from scipy.stats import t

    # without any variance: what so many items did not show
    half = float(error * t.ppf((1 + level) / 2, freedom)) if error else unseen(n, level) * (2 * abs(difference) or 1.0)
    return difference - half, difference + half
