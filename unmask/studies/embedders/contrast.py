"""The test of one embedder against another, on tasks of some kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from unmask.evaluation.results import Result, ResultStore
from unmask.evaluation.verdict import over_tasks
from unmask.io.array_types import NDArray
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

    @property
    def models(self) -> tuple[str, ...]:
        """The model of each run."""
        return tuple(next(iter(run.values())).model for run in self.runs)

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


def contrasts(
    a: Scored, b: Scored, kinds: Sequence[str], store: ResultStore, family: int, less_on: Sequence[str] = ()
) -> tuple[PairedTest | None, PairedTest | None]:
    """The difference of a and b in points, on tasks of these kinds in general, and on these tasks alone.

    It is the mean over the tasks that both were scored on. In general, the test is over tasks, and over seeds where there are several
    (`over_tasks`). If the tasks are too few for one of `family` tests to be significant after Holm's correction, it is the second test:
    over the items of these tasks, and over seeds. That one leaves tasks without items out. None if there is no task to test.

    less_on: kinds whose mean difference is taken off. That is the interaction of designs and kinds of task, and is tested over items.
    """
    here = _here(a, b, kinds, store, family, less_on)
    tasks = _common(a, b, kinds)
    if less_on or len(tasks) < fewest_tasks(family):
        return here, here
    own, other = (_run_or_runs(side.points(tasks)) for side in (a, b))
    return in_points(over_tasks(own, other, paired=_share_trainings(a, b))), here


def _here(
    a: Scored, b: Scored, kinds: Sequence[str], store: ResultStore, family: int, less_on: Sequence[str]
) -> PairedTest | None:
    items, less = _items(a, b, kinds, store), _items(a, b, less_on, store) if less_on else {}
    if not items or (less_on and not less):
        return None
    both = len(items) + len(less)
    weights = [both / len(items)] * len(items) + [-both / len(less)] * len(less) if less else [1.0] * len(items)
    return in_points(_over_items(a, b, items | less, weights, family))


def _share_trainings(a: Scored, b: Scored) -> bool:
    """Whether both read the same trained models, seed by seed: two poolings of one model, for example."""
    return len(a.runs) > 1 and a.models == b.models


def _common(a: Scored, b: Scored, kinds: Sequence[str]) -> list[str]:
    known = b.tasks(kinds)
    return [task for task in a.tasks(kinds) if task in known]


Pair = tuple[list[Items], list[Items]]
"""The items of a task, of each run of both sides."""


def _items(a: Scored, b: Scored, kinds: Sequence[str], store: ResultStore) -> dict[str, Pair]:
    """The items of each task of these kinds that has some."""
    found = {task: (a.items(task, store), b.items(task, store)) for task in _common(a, b, kinds)}
    return {task: (own, other) for task, (own, other) in found.items() if own and other}


def in_points(test: PairedTest) -> PairedTest:
    """A test of scores from 0 to 1, in percent."""
    bounds = test.bounds

    def scaled(level: float) -> Bounds:
        low, high = bounds(level) if bounds else test.interval
        return 100 * low, 100 * high

    low, high = test.interval
    return replace(
        test,
        difference=100 * test.difference,
        interval=(100 * low, 100 * high),
        bounds=scaled if bounds else None,
        changes=None if test.changes is None else 100 * test.changes,
    )


def _run_or_runs(points: NDArray[np.float64]) -> NDArray[np.float64]:
    return points[0] if len(points) == 1 else points


def _over_items(a: Scored, b: Scored, items: Mapping[str, Pair], weights: Sequence[float], family: int) -> PairedTest:
    """weights: of each task in the mean difference. They differ from 1 for an interaction only."""
    resamples, scale = max(_RESAMPLES, 100 * family), np.array(weights)
    sides = [list(side) for side in zip(*items.values(), strict=True)]
    runs = [list(zip(*side, strict=True)) for side in sides]
    samples = [  # (seed, task, resample)
        np.array([bootstrap_tasks(run, resamples) for run in side]) * scale[:, None] for side in runs
    ]
    points = [side.points(list(items)) * scale for side in (a, b)]
    sizes = [own[0].n for own in sides[0]]
    # in an interaction, the null hypothesis does not make the sign of an item's change a coin flip
    changes = task_changes(*sides) if (scale == 1).all() else None
    if max(map(len, runs)) > 1:
        together = _share_trainings(a, b)
        return items_and_seeds_test((samples[0], samples[1]), (points[0], points[1]), sizes, paired=together, changes=changes)
    return difference_test(
        samples[0][0], samples[1][0], points[0][0], points[1][0], sum(sizes), smallest=min(sizes), changes=changes
    )
