"""Training seeds: compare trained designs, where every seed of the training gives another embedder.

A design is more than one trained embedder. A claim about designs needs two things: these embedders differ on tasks in general, and other
trainings of the same designs would differ in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from unmask.statistics.bootstrap import Scores
from unmask.statistics.intervals import Bounds
from unmask.statistics.paired import DECIMALS, PairedTest, wilcoxon
from unmask.statistics.variance_sources import error_of_sources, p_of_t


@dataclass(frozen=True)
class SeedTest:
    """Comparison of two designs, at least one of them trained with several seeds.

    p_tasks: for these embedders on other tasks. p_both: for other trainings on other tasks. test: has the larger of the two.
    """

    test: PairedTest
    p_tasks: float
    p_both: float


def seed_test(a: ArrayLike, b: ArrayLike, *, paired: bool = False, level: float = 0.95) -> SeedTest:
    """Test of two designs on the same tasks: scores of shape (seed, task), or (task,) for a design that is not trained.

    paired: both designs read the same trained models, seed by seed. Then a training moves both, so the differences of each seed are
    tested.

    - The unit is the task: p_tasks is `wilcoxon`'s, of the means over seeds. It takes these runs for the designs: where
      trainings differ as much as tasks do, it found a difference between equal designs in 35 to 48 % of simulations.
    - p_both is of t, the mean difference over its standard error. Its variance is var(difference over tasks) / T, plus for each trained
      design var(mean over tasks, over its n seeds) / n, with the degrees of freedom of Satterthwaite (1946). The trainings of each
      design have a variance of their own, since one design may learn less steadily than another. The noise of single scores counts in
      both parts, so the error is rather too large. The interval is of the same t. `benchmarks/seeds.py` measures false findings.

    No bootstrap of the seeds: the 4 ways to draw from 2 and 2 cannot hold a tail (a 95 % interval over tasks and seeds held
    the truth in 71 % of simulations with 2 seeds and 87 % with 3, where nearly all variance was that of runs).

    Raises ValueError for one seed, for seeds that all score the same, for scores not finite or on other tasks, for two designs
    that are not trained (see `wilcoxon`), and for fewer than 6 tasks.
    """
    sides = tables = [np.asarray(scores, dtype=np.float64) for scores in (a, b)]
    if paired:
        tables = [sides[0] - sides[1], np.zeros(sides[0].shape[-1])]
    _check(tables)
    means = [np.atleast_2d(table).mean(axis=0) for table in tables]
    over_tasks = wilcoxon(*means, resamples=1, level=level)
    error, freedom = _error(means[0] - means[1], [table.mean(axis=1) for table in tables if table.ndim == 2])
    p_both, difference = p_of_t(over_tasks.difference, error, freedom), over_tasks.difference

    def bounds(level: float) -> Bounds:
        from scipy.stats import t

        half = float(error * t.ppf((1 + level) / 2, freedom))
        return difference - half, difference + half

    counts = " and ".join(f"{len(side)} seeds" if side.ndim == 2 else "no training" for side in sides)
    counts = f"the same {len(sides[0])} seeds" if paired else counts
    return SeedTest(
        test=replace(
            over_tasks,
            test=f"{over_tasks.test} of means over {counts}, and t over tasks and seeds: the larger p",
            p=max(over_tasks.p, p_both),
            interval=bounds(level),
            bounds=bounds,
            least=0.0,
            changes=None,  # a training adds to the difference, too
        ),
        p_tasks=over_tasks.p,
        p_both=p_both,
    )


def _error(of_tasks: Scores, of_seeds: Sequence[Scores]) -> tuple[float, float]:
    """Standard error of the mean difference, and its degrees of freedom.

    of_tasks: the difference on each task. of_seeds: for each trained design, the mean over tasks of each seed.
    """
    return error_of_sources([(float(part.var(ddof=1)) / len(part), len(part) - 1) for part in (of_tasks, *of_seeds)])


def differ(table: Scores) -> bool:
    """Whether scores are those of several seeds, (seed, task), and not the same for all of them."""
    return table.ndim == 2 and bool(np.ptp(table, axis=0).round(DECIMALS).any())


def _check(tables: Sequence[Scores]) -> None:
    """Raise ValueError where scores are not (seed, task) or (task,), on the same tasks, of seeds that differ."""
    shapes = " and ".join(str(table.shape) for table in tables)
    if any(table.ndim not in (1, 2) for table in tables) or tables[0].shape[-1] != tables[1].shape[-1]:
        raise ValueError(f"Designs need scores (seed, task), or (task,) untrained, on the same tasks, not shapes {shapes}.")
    if all(table.ndim == 1 for table in tables):
        raise ValueError("Neither design has seeds: compare them with wilcoxon.")
    if not all(np.isfinite(table).all() for table in tables):
        raise ValueError("A score is nan or infinite: leave that task out for both designs.")
    for table in (table for table in tables if table.ndim == 2):
        if len(table) < 2:
            raise ValueError(
                "One seed: the variance of training cannot be told apart from the difference of designs. Train with more "
                "seeds, best 3 or more, or ask wilcoxon or paired_bootstrap about these two embedders, not their designs."
            )
        if not differ(table):
            raise ValueError(
                f"The {len(table)} seeds score the same on every task: a seed that changes nothing is no replicate."
            )
