"""Summary: which designs lead, on each task and over all, and which are not significantly worse than the best."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from unmask.evaluation.leader import KindLeader, Lead, ReferenceComparison, compare_references, kind_leaders, lead
from unmask.evaluation.results import SENTENCE_TRANSFORMERS, Result
from unmask.evaluation.verdict import System, SystemTest, comparisons, rank_systems
from unmask.io.terminal import progress_bar
from unmask.reporting.grid import Grid
from unmask.statistics.intervals import Bounds, mean_interval
from unmask.statistics.paired import PairedTest

if TYPE_CHECKING:
    from unmask.statistics.ranks import Ranks

Mark = Literal["best", "tied"]


@dataclass(frozen=True)
class Summary:
    """What the results say.

    order: systems with their mean over `common` tasks, best first. unranked: systems that lack too many tasks to leave a common one.
    intervals: 95 % of each mean. marks: the best of each task, and its statistical ties. against: every other system of the
    order against the leader. lead: what may be said of the designs, reference rows apart. untested: tasks on which no pair was tested,
    so that only the best is marked.
    advice: for each kind of task, with the interval of its score.
    """

    order: list[tuple[System, float]]
    common: list[str]
    unranked: list[System]
    intervals: dict[System, Bounds]
    marks: dict[tuple[System, str], Mark]
    tests: list[SystemTest]
    against: dict[System, PairedTest]
    """The test of the leader minus each other system, corrected."""
    lead: Lead
    advice: list[KindLeader]
    advice_intervals: dict[str, Bounds]
    ranks: Ranks | None = None
    untested: Sequence[str] = ()
    references: Sequence[ReferenceComparison] = ()
    """The leader compared with each ranked reference."""

    @property
    def level(self) -> set[System]:
        """The leader and all that the tests do not tell apart from it, references included."""
        return {self.leader, *(system for system, test in self.against.items() if test.winner is None)}

    @property
    def leader(self) -> System:
        """The best design; a reference row may stand above it."""
        return self.lead.leader


def summarise(grid: Grid) -> Summary:
    """Test and rank what a grid holds."""
    from unmask.statistics.ranks import critical_differences

    results = comparable(grid.results)
    order = rank_systems(results)
    systems = {system for system, _ in order}
    common = common_tasks(grid, systems)
    marks, untested = _marks(grid)
    tests = comparisons(results, grid.store)
    first = lead(candidates(order), tests, results)
    advice, advice_intervals = [], {}
    for kind in grid.kinds:
        of_kind = [result for result in grid.results if result.kind == kind]
        references = [result for result in of_kind if result.design == SENTENCE_TRANSFORMERS]
        designs = comparable([result for result in of_kind if result.design != SENTENCE_TRANSFORMERS])
        tasks = [task for task in common_tasks(grid, {result.system for result in designs}) if grid.tasks[task].kind == kind]
        for leader in kind_leaders([*designs, *references], grid.store):
            advice.append(leader)
            if bounds := _interval(grid, leader.system, tasks):
                advice_intervals[kind] = bounds
    try:
        scores = {grid.names[system]: [grid.cells[system, task].main_score for task in common] for system in dict(order)}
        ranks: Ranks | None = critical_differences(scores)
        if tests and ranks:  # the groups are those of the page's tests
            ranks = ranks.grouped_by({frozenset((grid.names[test.a], grid.names[test.b])) for test in tests if test.winner})
    except ValueError:  # too few tasks or designs
        ranks = None
    return Summary(
        order=order,
        common=common,
        unranked=[system for system in grid.systems if system not in systems],
        intervals={system: bounds for system, _ in order if (bounds := _interval(grid, system, common))},
        marks=marks,
        tests=tests,
        against={
            (test.b if test.a == first.leader else test.a): test.seen_from(first.leader)
            for test in tests
            if first.leader in (test.a, test.b)
        },
        lead=first,
        advice=advice,
        advice_intervals=advice_intervals,
        ranks=ranks,
        untested=untested,
        references=compare_references(first, order, tests),
    )


def candidates(order: Sequence[tuple[System, float]]) -> list[tuple[System, float]]:
    """Those that can be recommended: all but the reference rows, or these if there is nothing else."""
    return [entry for entry in order if entry[0][1] != SENTENCE_TRANSFORMERS] or list(order)


def comparable(results: Sequence[Result]) -> list[Result]:
    """The results of the systems that have the task which most of them have: all of them, where a task is common to all."""
    systems: dict[str, set[System]] = {}
    for result in results:
        systems.setdefault(result.task, set()).add(result.system)
    widest = max(systems.values(), key=len, default=set())
    return [result for result in results if result.system in widest]


def common_tasks(grid: Grid, systems: Collection[System]) -> list[str]:
    """The tasks that all of these systems have a score on."""
    return [task for task in grid.tasks if all((system, task) in grid.cells for system in systems)]


def _interval(grid: Grid, system: System, tasks: Sequence[str]) -> Bounds | None:
    """95 % of a mean, from the interval of each task's score; None if a task has none."""
    results = [grid.cells[system, task] for task in tasks]
    intervals = [result.interval for result in results if result.interval]
    if not results or len(intervals) < len(results):
        return None
    return mean_interval([result.main_score for result in results], intervals)


def _marks(grid: Grid) -> tuple[dict[tuple[System, str], Mark], list[str]]:
    """The best system of each task, and those that its tests do not tell apart from it; and the tasks that could not be tested.

    All pairs of a task are corrected as one family, so that the system that is best in truth is among the marked with 95 %
    confidence, although the best was picked from the same scores.
    """
    marks: dict[tuple[System, str], Mark] = {}
    untested = []
    with progress_bar("resampling", len(grid.cells)) as advance:
        for task in grid.tasks:
            of_task = [result for result in grid.results if result.task == task]
            best = lead(rank_systems(of_task), comparisons(of_task, grid.store), of_task)
            marks[best.leader, task] = "best"
            for system in best.tied:
                marks[system, task] = "tied"
            if len(best.order) > 1 and not best.tests:
                untested.append(task)
            advance(len(of_task))
    return marks, untested
