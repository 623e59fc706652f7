"""Training seeds: compare trained designs, where every seed of the training gives another embedder.

A design is more than one trained embedder. A claim about designs needs two things: these embedders differ on tasks in general, and other
trainings of the same designs would differ in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np
from numpy.typing import ArrayLike

from unmask.statistics.bootstrap import Scores
from unmask.statistics.intervals import Bounds
from unmask.statistics.paired import DECIMALS, PairedTest, wilcoxon


@dataclass(frozen=True)
class Spread:
    """One trained design over its seeds: mean over seeds and tasks, and standard deviations over the seeds.

    deviation: of the mean over the tasks; per_task: of each task's score.
    """

    seeds: int
    mean: float
    deviation: float
    per_task: tuple[float, ...]


@dataclass(frozen=True)
class Components:
    """The sources of differences between scores, as variances.

    run: between trainings, equal on all tasks. task: of the difference of the designs, between tasks. rest: of one embedder on one task,
    measurement included.
    """

    run: float
    task: float
    rest: float


@dataclass(frozen=True)
class SeedTest:
    """Comparison of two designs, at least one of them trained with several seeds.

    p_tasks: for these embedders on other tasks. p_both: for other trainings on other tasks. test: has the larger of the two. a, b: None
    for a design that was not trained.
    """

    test: PairedTest
    p_tasks: float
    p_both: float
    a: Spread | None
    b: Spread | None
    components: Components


def seed_test(a: ArrayLike, b: ArrayLike, *, paired: bool = False, level: float = 0.95) -> SeedTest:
    """Test of two designs on the same tasks: scores of shape (seed, task), or (task,) for a design that is not trained.

    paired: both designs read the same trained models, seed by seed. Then a training moves both, so the differences of each seed are
    tested, and `components` are those of the differences.

    - The unit is the task: p_tasks is `wilcoxon`'s, of the means over seeds. It takes these runs for the designs: where
      trainings differ as much as tasks do, it found a difference between equal designs in 35 to 48 % of simulations.
    - p_both is of t, the mean difference over its standard error from tasks and runs: var(difference over tasks) / T +
      run (1/n + 1/n'), degrees of freedom after Satterthwaite (1946). False findings at 0.05 in the same simulations, with 2
      to 5 seeds and 12 tasks: 5 to 8 % (`benchmarks/seeds.py`). The interval is of the same t.
    - Components by analysis of variance, runs nested in designs and crossed with tasks: unbiased for any number of seeds, where
      a likelihood has its maximum at the border or does not converge for 2 or 3. Runs of both designs have one variance; an
      estimate below zero is told as 0.

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
    squares = _squares([table for table in tables if table.ndim == 2], means[0] - means[1])
    p_both, difference = squares.p(over_tasks.difference), over_tasks.difference

    def bounds(level: float) -> Bounds:
        half = squares.half_interval(level)
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
        a=_spread(sides[0]),
        b=_spread(sides[1]),
        components=squares.components,
    )


@dataclass(frozen=True)
class _Squares:
    """Mean squares of runs, of runs x tasks, and of the designs' difference over the tasks.

    With T tasks and n runs of a design, among the trained ones: E[runs] = rest + T run; E[crossed] = rest; E[difference] = task
    + rest (1/n + 1/n'), run cancelling (Searle, Casella and McCulloch, 1992). freedom: of runs; shares: that 1/n + 1/n'.
    """

    runs: float
    crossed: float
    difference: float
    freedom: int
    tasks: int
    shares: float

    @property
    def components(self) -> Components:
        run, task = (self.runs - self.crossed) / self.tasks, self.difference - self.crossed * self.shares
        return Components(run=max(0.0, run), task=max(0.0, task), rest=self.crossed)

    def error(self) -> tuple[float, float]:
        """Standard error of the mean difference, and its degrees of freedom."""
        parts = [(self.difference / self.tasks, self.tasks - 1)]
        if self.runs > self.crossed:
            share = self.shares / self.tasks
            parts += [(self.runs * share, self.freedom), (-self.crossed * share, self.freedom * (self.tasks - 1))]
        variance = sum(part for part, _ in parts)
        if variance < 10 ** (-2 * DECIMALS):
            return 0.0, 1.0  # one and the same difference on every task and in every run
        return sqrt(variance), variance**2 / sum(part**2 / freedom for part, freedom in parts)

    def p(self, difference: float) -> float:
        from scipy.stats import t

        error, freedom = self.error()
        if not error:
            return 0.0 if difference else 1.0
        return float(2 * t.sf(abs(difference) / error, freedom))

    def half_interval(self, level: float) -> float:
        from scipy.stats import t

        error, freedom = self.error()
        return float(error * t.ppf((1 + level) / 2, freedom))


def _squares(trained: Sequence[Scores], difference: Scores) -> _Squares:
    """Mean squares of trained designs (seed, task) and of the difference (task,) of the designs' means over seeds."""
    tasks, freedom = len(difference), sum(len(table) - 1 for table in trained)
    runs = sum(tasks * float(np.square(table.mean(axis=1) - table.mean()).sum()) for table in trained)
    residuals = [table - table.mean(axis=0) - table.mean(axis=1, keepdims=True) + table.mean() for table in trained]
    crossed = sum(float(np.square(residual).sum()) for residual in residuals)
    return _Squares(
        runs=runs / freedom,
        crossed=crossed / (freedom * (tasks - 1)),
        difference=float(difference.var(ddof=1)),
        freedom=freedom,
        tasks=tasks,
        shares=sum(1 / len(table) for table in trained),
    )


def _spread(table: Scores) -> Spread | None:
    if table.ndim == 1:
        return None
    means = table.mean(axis=1)
    return Spread(
        seeds=len(table),
        mean=float(means.mean()),
        deviation=float(means.std(ddof=1)),
        per_task=tuple(float(deviation) for deviation in table.std(axis=0, ddof=1)),
    )


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
