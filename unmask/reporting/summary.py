"""Summary: which designs lead, on each task and over all, and which are not significantly worse than the best."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from unmask.evaluation.leader import KindLeader, Lead, ReferenceComparison, compare_references, kind_leaders, lead
from unmask.evaluation.results import SENTENCE_TRANSFORMERS, Result
from unmask.evaluation.verdict import Comparison, System, comparisons, ranked
from unmask.io.terminal import progress_bar
from unmask.reporting.grid import Grid
from unmask.statistics.intervals import Bounds, mean_interval
from unmask.statistics.paired import PairedTest

Mark = Literal["best", "tied"]


class MeanRanks(Protocol):
    """Mean ranks of designs over tasks (1 = best), Friedman's test of them, and the groups without significant differences."""

    @property
    def mean_ranks(self) -> dict[str, float]:
        """Mean rank by name."""

    @property
    def friedman_p(self) -> float:
        """p of Friedman's test (null hypothesis: all designs have equal mean ranks)."""

    @property
    def cliques(self) -> tuple[tuple[str, ...], ...]:
        """Maximal groups of designs without significant differences."""

    @property
    def n(self) -> int:
        """Number of tasks."""


@dataclass(frozen=True)
class Against:
    """A design against the best one: the overall test of best minus design, its p and interval corrected."""

    outcome: PairedTest

    @property
    def difference(self) -> float:
        """Best minus design."""
        return self.outcome.difference

    @property
    def interval(self) -> Bounds:
        """Of the difference, corrected."""
        return self.outcome.interval

    @property
    def p_holm(self) -> float:
        """The p, corrected."""
        return self.outcome.p if self.outcome.p_holm is None else self.outcome.p_holm

    @property
    def tied(self) -> bool:
        """Whether neither is shown to be better."""
        return self.outcome.winner is None


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
    tests: list[Comparison]
    against: dict[System, Against]
    lead: Lead
    advice: list[KindLeader]
    advice_intervals: dict[str, Bounds]
    ranks: MeanRanks | None = None
    untested: Sequence[str] = ()
    references: Sequence[ReferenceComparison] = ()
    """The leader compared with each ranked reference."""

    @property
    def tied(self) -> set[System]:
        """Designs that do not differ significantly from the leader over all tasks."""
        return set(self.lead.tied)

    @property
    def level(self) -> set[System]:
        """The leader and all that the tests do not tell apart from it, references included."""
        return {self.leader, *(system for system, test in self.against.items() if test.tied)}

    @property
    def leader(self) -> System:
        """The best design; a reference row may stand above it."""
        return self.lead.leader


def summarise(grid: Grid) -> Summary:
    """Test and rank what a grid holds."""
    results = comparable(grid.results)
    order = ranked(results)
    systems = {system for system, _ in order}
    common = [task for task in grid.tasks if all((system, task) in grid.cells for system in systems)]
    marks, untested = _marks(grid)
    tests = comparisons(results, grid.store)
    first = lead(candidates(order), tests, results)
    advice = [leader for kind in grid.kinds for leader in _advice(grid, kind)]
    return Summary(
        order=order,
        common=common,
        unranked=[system for system in grid.systems if system not in systems],
        intervals=_intervals(grid, order, common),
        marks=marks,
        tests=tests,
        against={
            (test.b if test.a == first.leader else test.a): Against(test.seen_from(first.leader))
            for test in tests
            if first.leader in (test.a, test.b)
        },
        lead=first,
        advice=advice,
        advice_intervals=dict(_advice_intervals(grid, advice)),
        ranks=_ranks(
            {grid.names[system]: _scores(grid, system, common) for system, _ in order},
            {frozenset((grid.names[test.a], grid.names[test.b])) for test in tests if test.winner} if tests else None,
        ),
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


def _scores(grid: Grid, system: System, tasks: Sequence[str]) -> list[float]:
    return [grid.cells[system, task].main_score for task in tasks]


def _intervals(grid: Grid, order: Sequence[tuple[System, float]], common: Sequence[str]) -> dict[System, Bounds]:
    """95 % of each mean, from the interval of each task's score."""
    intervals = {}
    for system, _ in order:
        results = [grid.cells[system, task] for task in common]
        task_intervals = [result.interval for result in results if result.interval]
        if results and len(task_intervals) == len(results):
            intervals[system] = mean_interval([result.main_score for result in results], task_intervals)
    return intervals


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
            best = lead(ranked(of_task), comparisons(of_task, grid.store), of_task)
            marks[best.leader, task] = "best"
            for system in best.tied:
                marks[system, task] = "tied"
            if len(best.order) > 1 and not best.tests:
                untested.append(task)
            advance(len(of_task))
    return marks, untested


def _advice(grid: Grid, kind: str) -> list[KindLeader]:
    references = [result for result in grid.results if result.kind == kind and result.design == SENTENCE_TRANSFORMERS]
    return kind_leaders([*_candidates(grid, kind), *references], grid.store)


def _candidates(grid: Grid, kind: str) -> list[Result]:
    """Results of one kind of task that can be recommended: designs of the LLM (no reference rows) on their common tasks."""
    return comparable([result for result in grid.results if result.kind == kind and result.design != SENTENCE_TRANSFORMERS])


def _advice_intervals(grid: Grid, advice: Sequence[KindLeader]) -> Iterator[tuple[str, Bounds]]:
    for leader in advice:
        systems = {result.system for result in _candidates(grid, leader.kind)}
        common = [task for task in grid.tasks if all((system, task) in grid.cells for system in systems)]
        tasks = [task for task in common if grid.tasks[task].kind == leader.kind]
        for bounds in _intervals(grid, [(leader.system, leader.score)], tasks).values():
            yield leader.kind, bounds


def _ranks(scores: Mapping[str, Sequence[float]], significant_pairs: Collection[frozenset[str]] | None) -> MeanRanks | None:
    """Mean ranks, or None where there are too few tasks or designs.

    significant_pairs: pairs that differ in the page's tests; they define the groups. None: groups follow from the tests of the ranks.
    """
    from unmask.statistics.ranks import critical_differences

    try:
        ranks = critical_differences(scores)
        return ranks if significant_pairs is None else ranks.grouped_by(significant_pairs)
    except ValueError:
        return None
