"""The test of one embedder against another, on tasks of some kinds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from unmask.evaluation.results import Result, ResultStore
from unmask.evaluation.verdict import over_tasks
from unmask.statistics.bootstrap import Items
from unmask.statistics.intervals import Bounds
from unmask.statistics.paired import PairedTest, bootstrap_tasks, difference_test, fewest_tasks, task_changes
from unmask.statistics.variance_sources import items_and_seeds_test
from unmask.tasks.kinds import is_of_words

_RESAMPLES = 2000


@dataclass(frozen=True)
class Scored:
    """An embedder on the tasks of a study. runs: for each seed of its training, its results by task."""

    runs: tuple[dict[str, Result], ...]

    def tasks(self, kinds: Sequence[str] = ()) -> list[str]:
        """The tasks of these kinds on which every run has a score. No kinds: all tasks on texts."""
        return [
            task
            for task, result in self.runs[0].items()
            if (result.kind in kinds if kinds else not is_of_words(result.kind))
            if all(task in run for run in self.runs)
        ]

    def points(self, tasks: Sequence[str]) -> Float[NDArray[np.float64], "seed task"]:
        """Main scores, 0 to 1."""
        return np.array([[run[task].main_score for task in tasks] for run in self.runs])

    def items(self, task: str, store: ResultStore) -> list[Items] | None:
        """For each run, the items of a task; None if it has none that can be resampled."""
        known = [items for run in self.runs if (items := store.items(run[task])) is not None and items.n > 1]
        return known if len(known) == len(self.runs) else None


def contrast(a: Scored, b: Scored, kinds: Sequence[str], store: ResultStore, family: int) -> PairedTest | None:
    """The difference of a and b in points, the mean over the tasks of these kinds that both were scored on.

    With tasks enough for one of `family` tests to be significant after Holm's correction, the test is over tasks, and over seeds where
    there are several (`over_tasks`). With fewer, it is over the items of those tasks that have some, and over seeds. None if there is no
    such task.
    """
    tasks = [task for task in a.tasks(kinds) if task in b.tasks(kinds)]
    if len(tasks) >= fewest_tasks(family):
        return _in_points(over_tasks(*(_run_or_runs(side.points(tasks)) for side in (a, b))))
    items = {task: (a.items(task, store), b.items(task, store)) for task in tasks}
    known = {task: (own, other) for task, (own, other) in items.items() if own is not None and other is not None}
    return (
        _in_points(_over_items(a.points(list(known)), b.points(list(known)), list(known.values()), family)) if known else None
    )


def _in_points(test: PairedTest) -> PairedTest:
    """A test of scores from 0 to 1, in percent."""
    bounds = test.bounds

    def scaled(level: float) -> Bounds:
        low, high = bounds(level) if bounds else test.interval
        return 100 * low, 100 * high

    low, high = test.interval
    return replace(test, difference=100 * test.difference, interval=(100 * low, 100 * high), bounds=scaled if bounds else None)


def _run_or_runs(points: NDArray[np.float64]) -> NDArray[np.float64]:
    return points[0] if len(points) == 1 else points


def _over_items(
    points_a: NDArray[np.float64],
    points_b: NDArray[np.float64],
    items: Sequence[tuple[list[Items], list[Items]]],
    family: int,
) -> PairedTest:
    """items: for each task, those of each run of a, and of each run of b."""
    resamples = max(_RESAMPLES, 100 * family)
    runs = [list(zip(*(sides[side] for sides in items), strict=True)) for side in (0, 1)]
    samples = [np.array([bootstrap_tasks(run, resamples) for run in side]) for side in runs]  # (seed, task, resample)
    sizes = [own[0].n for own, _ in items]
    if max(map(len, runs)) > 1:
        return items_and_seeds_test((samples[0], samples[1]), (points_a, points_b), sizes)
    changes = task_changes([own for own, _ in items], [other for _, other in items])
    return difference_test(
        samples[0][0], samples[1][0], points_a[0], points_b[0], sum(sizes), smallest=min(sizes), changes=changes
    )
