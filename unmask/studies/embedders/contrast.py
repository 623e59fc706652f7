"""The test of one embedder against another, on tasks of some kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def contrast(
    a: Scored, b: Scored, kinds: Sequence[str], store: ResultStore, family: int, less_on: Sequence[str] = ()
) -> PairedTest | None:
    """The difference of a and b in points, the mean over the tasks of these kinds that both were scored on.

    With tasks enough for one of `family` tests to be significant after Holm's correction, the test is over tasks, and over seeds where
    there are several (`over_tasks`). With fewer, it is that of `contrast_here`. None if there is no such task.

    less_on: kinds whose mean difference is taken off. That is the interaction of designs and kinds of task, and is tested over items.
    """
    tasks = _common(a, b, kinds)
    if less_on or len(tasks) < fewest_tasks(family):
        return contrast_here(a, b, kinds, store, family, less_on)
    return _in_points(over_tasks(*(_run_or_runs(side.points(tasks)) for side in (a, b))))


def contrast_here(
    a: Scored, b: Scored, kinds: Sequence[str], store: ResultStore, family: int, less_on: Sequence[str] = ()
) -> PairedTest | None:
    """The same difference, tested over the items of these tasks, and over seeds where there are several.

    It says nothing of other tasks. Tasks without items are left out. None if no task is left, or none of the kinds of `less_on`.
    """
    weights = dict.fromkeys(_with_items(a, b, _common(a, b, kinds), store), 1.0)
    if less_on:
        less = _with_items(a, b, _common(a, b, less_on), store)
        if not less:
            return None
        both = len(weights) + len(less)
        weights = {task: both / len(weights) for task in weights} | {task: -both / len(less) for task in less}
    return _in_points(_over_items(a, b, weights, store, family)) if weights else None


def _common(a: Scored, b: Scored, kinds: Sequence[str]) -> list[str]:
    known = b.tasks(kinds)
    return [task for task in a.tasks(kinds) if task in known]


def _with_items(a: Scored, b: Scored, tasks: Sequence[str], store: ResultStore) -> list[str]:
    return [task for task in tasks if a.items(task, store) and b.items(task, store)]


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


def _over_items(a: Scored, b: Scored, weights: Mapping[str, float], store: ResultStore, family: int) -> PairedTest:
    """weights: of each task in the mean difference. They differ from 1 for an interaction only."""
    resamples = max(_RESAMPLES, 100 * family)
    tasks, scale = list(weights), np.array(list(weights.values()))
    items = [[of for task in tasks if (of := side.items(task, store)) is not None] for side in (a, b)]
    runs = [list(zip(*of_side, strict=True)) for of_side in items]
    samples = [
        np.array([bootstrap_tasks(run, resamples) for run in side]) * scale[:, None] for side in runs
    ]  # (seed, task, resample)
    points = [side.points(tasks) * scale for side in (a, b)]
    sizes = [of_task[0].n for of_task in items[0]]
    if max(map(len, runs)) > 1:
        return items_and_seeds_test((samples[0], samples[1]), (points[0], points[1]), sizes)
    plain = bool(
        (scale == 1).all()
    )  # in an interaction, the null hypothesis does not make the sign of an item's change a coin flip
    return difference_test(
        samples[0][0], samples[1][0], points[0][0], points[1][0], sum(sizes), smallest=min(sizes),
        changes=task_changes(*items) if plain else None,
    )  # fmt: skip
