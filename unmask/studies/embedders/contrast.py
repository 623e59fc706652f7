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
from unmask.statistics.paired import FEWEST_TASKS, PairedTest, bootstrap_tasks, difference_test
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

    def items(self, tasks: Sequence[str], store: ResultStore) -> list[list[Items]] | None:
        """For each run, the items of each task; None if one of them has none."""
        known = [[store.items(run[task]) for task in tasks] for run in self.runs]
        if any(items is None or items.n < 2 for run in known for items in run):
            return None
        return [[items for items in run if items is not None] for run in known]


def contrast(a: Scored, b: Scored, kinds: Sequence[str], store: ResultStore) -> PairedTest | None:
    """The difference of a and b in points, the mean over the tasks of these kinds that both were scored on.

    With six tasks or more, the test is over tasks, and over seeds where there are several (`over_tasks`). With fewer, it is over the
    items of the tasks, and over seeds. None if there is no common task, or no items.
    """
    tasks = [task for task in a.tasks(kinds) if task in b.tasks(kinds)]
    if len(tasks) >= FEWEST_TASKS:
        return _in_points(over_tasks(*(_run_or_runs(side.points(tasks)) for side in (a, b))))
    items = [side.items(tasks, store) for side in (a, b)]
    if not tasks or items[0] is None or items[1] is None:
        return None
    return _in_points(_over_items(a.points(tasks), b.points(tasks), items[0], items[1]))


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
    points_a: NDArray[np.float64], points_b: NDArray[np.float64], a: list[list[Items]], b: list[list[Items]]
) -> PairedTest:
    samples = [np.array([bootstrap_tasks(run, _RESAMPLES) for run in side]) for side in (a, b)]  # (seed, task, resample)
    sizes = [items.n for items in a[0]]
    if max(len(a), len(b)) > 1:
        means = [np.nanmean(side, axis=1) for side in samples]
        return items_and_seeds_test((means[0], means[1]), (points_a.mean(axis=1), points_b.mean(axis=1)), sum(sizes))
    test = difference_test(samples[0][0], samples[1][0], points_a[0], points_b[0], sum(sizes), smallest=min(sizes))
    return replace(test, test="paired bootstrap over items")
