"""Standing: which designs lead, on each task and over all, and which of them cannot be told apart from the best."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from unmask.evaluation.resampling import Scores, bootstrap, interval
from unmask.evaluation.results import SENTENCE_TRANSFORMERS, Result
from unmask.evaluation.statistics import difference_test
from unmask.evaluation.verdict import (
    SIGNIFICANT,
    Comparison,
    Recommendation,
    System,
    comparisons,
    ranked,
    recommendations,
)
from unmask.reporting.grid import Grid

Mark = Literal["best", "tied"]
Bounds = tuple[float, float]
_RESAMPLES = 2000


class Ranks(Protocol):
    """Mean ranks of designs over tasks (1 = best), Friedman's test of them, and the groups that are not told apart."""

    @property
    def mean_ranks(self) -> dict[str, float]:
        """Mean rank by name."""

    @property
    def friedman_p(self) -> float:
        """p of Friedman's test that all designs rank alike."""

    @property
    def cliques(self) -> tuple[tuple[str, ...], ...]:
        """Maximal groups of designs that are not told apart."""

    @property
    def n(self) -> int:
        """Number of tasks."""

    @property
    def fewest(self) -> int:
        """Tasks below which no pair could differ after the correction, whatever its scores."""


@dataclass(frozen=True)
class Against:
    """A design against the best one: best minus design, with the interval and corrected p of the overall test."""

    difference: float
    interval: Bounds
    p_holm: float

    @property
    def tied(self) -> bool:
        """Whether the two cannot be told apart."""
        return self.p_holm >= SIGNIFICANT


@dataclass(frozen=True)
class Standing:
    """What the results say.

    order: systems with their mean over `common` tasks, best first. unranked: systems that miss so many tasks that none would be common.
    intervals: 95 % of each mean, by bootstrap of the items within each task. marks: the best of each task, and what is not told apart
    from it. against: every other system of the order against the leader. advice: for each kind of task, with the interval of its score.
    """

    order: list[tuple[System, float]]
    common: list[str]
    unranked: list[System]
    intervals: dict[System, Bounds]
    marks: dict[tuple[System, str], Mark]
    tests: list[Comparison]
    against: dict[System, Against]
    advice: list[Recommendation]
    advice_intervals: dict[str, Bounds]
    ranks: Ranks | None = None
    power: str | None = None

    @property
    def tied(self) -> set[System]:
        """Designs that cannot be told apart from the leader over all tasks."""
        return {system for system, _ in candidates(self.order) if system in self.against and self.against[system].tied}

    @property
    def leader(self) -> System:
        """The best design; a reference row may stand above it."""
        return candidates(self.order)[0][0]


@dataclass
class _Samples:
    """Bootstrap scores of every cell that has items, drawn alike for every system, independently for every task."""

    grid: Grid
    resamples: int
    advance: Callable[[int], None] | None
    by_cell: dict[tuple[System, str], Scores] = field(default_factory=dict)

    def draw(self) -> None:
        tasks = list(self.grid.tasks)
        seeds = dict(zip(tasks, np.random.SeedSequence(0).spawn(len(tasks)), strict=True))
        for (system, task), result in self.grid.cells.items():
            items = self.grid.store.items(result)
            if items is not None and items.n > 1:
                drawn = bootstrap(items, self.resamples, seeds[task])
                # repeated items inflate V-measure (see resampling.v_measure): its samples are moved to its score
                shift = result.main_score - np.nanmean(drawn) if items.metric == "v-measure" else 0.0
                self.by_cell[system, task] = drawn + shift
            if self.advance:
                self.advance(1)


def standing(grid: Grid, advance: Callable[[int], None] | None = None) -> Standing:
    """Test and rank what a grid holds; `advance` is told of every cell that has been resampled."""
    kept = comparable(grid.results)
    order = ranked(kept)
    systems = {system for system, _ in order}
    common = [task for task in grid.tasks if all((system, task) in grid.cells for system in systems)]
    # the smallest p of m resamples is 2 / (m + 1), and is multiplied by the number of others: 0.02 can be reached
    samples = _Samples(grid, max(_RESAMPLES, 100 * len(grid.systems)), advance)
    samples.draw()
    tests = comparisons(kept, grid.store)
    advice = [one for kind in grid.kinds for one in _advice(grid, kind)]
    return Standing(
        order=order,
        common=common,
        unranked=[system for system in grid.systems if system not in systems],
        intervals=_intervals(order, common, samples),
        marks={cell: mark for task in grid.tasks for cell, mark in _marks(grid, task, samples).items()},
        tests=tests,
        against=_against(candidates(order)[0][0], tests),
        advice=advice,
        advice_intervals=dict(_advice_intervals(grid, advice, samples)),
        ranks=_ranks({grid.names[system]: _scores(grid, system, common) for system, _ in order}),
        power=_power(grid, candidates(order), common),
    )


def candidates(order: Sequence[tuple[System, float]]) -> list[tuple[System, float]]:
    """Those that can be recommended: all but the reference rows, or these if there is nothing else."""
    return [one for one in order if one[0][1] != SENTENCE_TRANSFORMERS] or list(order)


def comparable(results: Sequence[Result]) -> list[Result]:
    """The results of the systems that have the task which most of them have: all of them, where a task is common to all."""
    systems: dict[str, set[System]] = {}
    for result in results:
        systems.setdefault(result.task, set()).add(result.system)
    widest = max(systems.values(), key=len, default=set())
    return [result for result in results if result.system in widest]


def _scores(grid: Grid, system: System, tasks: Sequence[str]) -> list[float]:
    return [grid.cells[system, task].main_score for task in tasks]


def _intervals(order: Sequence[tuple[System, float]], common: Sequence[str], samples: _Samples) -> dict[System, Bounds]:
    found = {}
    for system, _ in order:
        if len(common) == 1 and (known := samples.grid.cells[system, common[0]].interval):
            found[system] = known
            continue
        drawn = [samples.by_cell.get((system, task)) for task in common]
        whole = [one for one in drawn if one is not None]
        if len(whole) == len(drawn):
            mean = np.mean(whole, axis=0)
            if not np.isnan(mean).all():
                found[system] = interval(mean)
    return found


def _marks(grid: Grid, task: str, samples: _Samples) -> dict[tuple[System, str], Mark]:
    """The best system of a task, and those that a paired bootstrap over its items cannot tell from it.

    Each of the k - 1 others is tested against the best at 0.05 / (k - 1). The system that is best in truth is then among the marked with
    95 % confidence, although the best was picked from the same scores: to be left out, it must lose one of its k - 1 comparisons
    by chance (multiple comparisons with the best, Hsu, 1984, with Bonferroni's constant).
    """
    scored = {system: grid.cells[system, task] for system in grid.systems if (system, task) in grid.cells}
    best = max(scored, key=lambda system: scored[system].main_score)
    marks: dict[tuple[System, str], Mark] = {(best, task): "best"}
    lead = samples.by_cell.get((best, task))
    if lead is None:
        return marks
    for system, result in scored.items():
        drawn = samples.by_cell.get((system, task))
        if system == best or drawn is None or drawn.shape != lead.shape:
            continue
        try:
            test = difference_test([lead], [drawn], [scored[best].main_score], [result.main_score], result.n)
        except ValueError:  # no resample on which both have a score
            continue
        if test.p * (len(scored) - 1) >= SIGNIFICANT:
            marks[system, task] = "tied"
    return marks


def _against(best: System, tests: Sequence[Comparison]) -> dict[System, Against]:
    found = {}
    for test in tests:
        if best in (test.a, test.b):
            sign = 1 if test.a == best else -1
            low, high = sorted(sign * bound for bound in test.outcome.interval)
            other = test.b if test.a == best else test.a
            p = test.outcome.p if test.outcome.p_holm is None else test.outcome.p_holm
            found[other] = Against(sign * test.outcome.difference, (low, high), p)
    return found


def _advice(grid: Grid, kind: str) -> list[Recommendation]:
    return recommendations(_candidates(grid, kind), grid.store)


def _candidates(grid: Grid, kind: str) -> list[Result]:
    """Results of a kind of task that can be recommended: those of the LLM, on tasks that they share; none is a reference row."""
    return comparable([one for one in grid.results if one.kind == kind and one.design != SENTENCE_TRANSFORMERS])


def _advice_intervals(grid: Grid, advice: Sequence[Recommendation], samples: _Samples) -> Iterator[tuple[str, Bounds]]:
    for one in advice:
        systems = {result.system for result in _candidates(grid, one.kind)}
        common = [task for task in grid.tasks if all((system, task) in grid.cells for system in systems)]
        tasks = [task for task in common if grid.tasks[task].kind == one.kind]
        for bounds in _intervals([(one.system, one.score)], tasks, samples).values():
            yield one.kind, bounds


def _ranks(scores: Mapping[str, Sequence[float]]) -> Ranks | None:
    """Critical differences between the designs, or None where there are too few tasks or designs for them."""
    from unmask.evaluation.ranks import critical_differences

    try:
        return critical_differences(scores)
    except ValueError:
        return None


def _power(grid: Grid, order: Sequence[tuple[System, float]], common: Sequence[str]) -> str | None:
    """How many tasks it would take to tell the best from the runner-up, in words; None where that cannot be said."""
    from unmask.evaluation.power import power_statement

    if len(order) < 2:
        return None
    best, second = (_scores(grid, system, common) for system, _ in order[:2])
    try:
        return power_statement(best, second).text
    except ValueError:
        return None
