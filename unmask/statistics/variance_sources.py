"""Tests of a difference whose error has several sources: other items, and other trainings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from unmask.statistics.intervals import Bounds
from unmask.statistics.paired import PairedTest


def t_of_sources(difference: float, sources: Sequence[tuple[float, int]], n: int, what: str) -> PairedTest:
    """t of a difference whose variance is the sum of several, each with its degrees of freedom.

    The degrees of freedom of the sum are Satterthwaite's (1946). n: number of items. what: names the sources, for the name of the test.
    """
    from scipy.stats import t

    variance = sum(part for part, _ in sources)
    freedom = variance**2 / sum(part**2 / count for part, count in sources) if variance else 1.0
    error = float(np.sqrt(variance))
    p = float(2 * t.sf(abs(difference) / error, freedom)) if error else float(difference == 0)
    bounds = partial(_bounds, difference, error, freedom)
    return PairedTest(
        test=f"t over {what}", n=n, unit="items", difference=difference, p=p, p_holm=None,
        effect=difference / error if error else 0.0, effect_name="difference in standard errors", interval=bounds(0.95), level=0.95,
        bounds=bounds,
    )  # fmt: skip


def items_and_seeds_test(
    samples: tuple[Float[NDArray[np.float64], "seed_a resample"], Float[NDArray[np.float64], "seed_b resample"]],
    points: tuple[Float[NDArray[np.float64], " seed_a"], Float[NDArray[np.float64], " seed_b"]],
    n: int,
) -> PairedTest:
    """Test of two designs on the same items, at least one of them trained with several seeds: other items, and other trainings.

    samples: scores on bootstrapped items, the same draw for both designs. points: scores on all items. n: number of items. The variance
    is that of the difference over resamples, plus that of each design's mean over its seeds. A design with one run has no variance over
    seeds here, so it counts as this embedder. Raises ValueError if both have one run: then there is no training to test.
    """
    if max(len(side) for side in points) < 2:
        raise ValueError("Neither design has several seeds: test the items alone.")
    difference = float(points[0].mean() - points[1].mean())
    over_items = float(np.var(samples[0].mean(axis=0) - samples[1].mean(axis=0), ddof=1))
    sources = [(over_items, n - 1)]
    sources += [(float(np.var(side, ddof=1)) / len(side), len(side) - 1) for side in points if len(side) > 1]
    return t_of_sources(difference, sources, n, "items (bootstrap) and seeds")


def _bounds(difference: float, error: float, freedom: float, level: float) -> Bounds:
    from scipy.stats import t

    half = float(error * t.ppf((1 + level) / 2, freedom))
    return difference - half, difference + half
