"""Which design is better than which: a paired test for each pair of designs, corrected over all pairs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from unmask.errors import UnmaskError
from unmask.evaluation.results import SENTENCE_TRANSFORMERS, Result, ResultStore
from unmask.evaluation.seed_means import runs_of, seed_scores
from unmask.io.terminal import counted
from unmask.statistics.bootstrap import Items, Scores, score
from unmask.statistics.paired import (
    DECIMALS,
    SIGNIFICANT,
    PairedTest,
    better_side,
    bootstrap_tasks,
    difference_test,
    fewest_tasks,
    task_changes,
    wilcoxon,
    with_holm,
)
from unmask.statistics.training_seeds import differ, seed_test
from unmask.statistics.variance_sources import items_and_seeds_test

System = tuple[str, str]
Pair = tuple[System, System]
_RESAMPLES, _MOST_RESAMPLES = 2000, 20_000


@dataclass(frozen=True)
class Comparison:
    """A paired test of two systems (model, design) on the tasks that all systems were scored on.

    family: the tests that Holm's correction covers, such as "3 pairs"; left_out: tasks that the test does not use, and why. level: of
    these tests together.
    """

    a: System
    b: System
    tasks: tuple[str, ...]
    outcome: PairedTest
    family: str
    left_out: dict[str, str]
    level: float = SIGNIFICANT

    @property
    def better(self) -> System | None:
        """The better system; None if the test shows neither to be better (`better_side`)."""
        return {1: self.a, -1: self.b, 0: None}[better_side(self.outcome)]

    def seen_from(self, system: System) -> PairedTest:
        """The outcome with `system` as a."""
        if system == self.a:
            return self.outcome
        low, high = self.outcome.interval
        mirrored = {"difference": -self.outcome.difference, "effect": -self.outcome.effect, "interval": (-high, -low)}
        return replace(self.outcome, **mirrored, bounds=None, changes=None)  # type: ignore[arg-type]

    def as_json(self) -> dict[str, Any]:
        """For `--json` and the saved file."""
        systems = {side: dict(zip(("model", "design"), system, strict=True)) for side, system in (("a", self.a), ("b", self.b))}
        outcome = {name: value for name, value in vars(self.outcome).items() if name not in ("bounds", "changes")}
        if not isfinite(self.outcome.effect):
            outcome["effect"] = None  # JSON has no infinity, the effect of one and the same difference on every resample
        verdict = {"told_apart": self.better is not None, "family": self.family, "left_out": self.left_out}
        return {**systems, "tasks": list(self.tasks), **outcome, **verdict}


def comparisons(
    results: Sequence[Result],
    store: ResultStore,
    baseline: System | None = None,
    *,
    over_items: bool = False,
    level: float = SIGNIFICANT,
) -> list[Comparison]:
    """A paired test for each pair of systems, or of each system with the baseline (as b). Holm's correction is over all of these.

    - With tasks enough for one of them to be significant after the correction (`fewest_tasks`: 6 for one pair, 11 for 28), the test is
      Wilcoxon's signed-rank test over tasks, and `seed_test` for means over seeds (`mean_over_seeds`).
    - With fewer tasks that test could find nothing, whatever the scores. Then the items of the tasks are tested (`difference_test`):
      the answer is about these tasks. For means over seeds it is `items_and_seeds_test`; a design with one run counts as this embedder.
    - `over_items` tests the items in any case, with a p that has no smallest value: somebody who tests several times has to correct for
      that too, by a lower `level`.

    A baseline that was chosen beforehand makes k - 1 comparisons and not k (k - 1) / 2. Pairs with a reference row (a
    sentence-transformers model) are a family of their own, so a reference row costs two designs no correction. All pairs have one test:
    with few tasks, a reference row can make it the one over items.

    Empty if there is nothing to test: one system, no task that all were scored on, or no items. Raises UnmaskError for a baseline that
    is not among the systems.
    """
    tasks = _common_tasks(results)
    by_cell = {(result.system, result.task): result for result in results}
    pairs = _pairs(list(dict.fromkeys(result.system for result in results)), baseline)
    if not pairs or not tasks:
        return []
    families = [[pair for pair in pairs if _has_reference(pair) is with_reference] for with_reference in (False, True)]
    left_out = not_scored(results)
    if not over_items and len(tasks) >= max(fewest_tasks(len(family), SIGNIFICANT) for family in families if family):
        tests = _over_tasks(pairs, tasks, by_cell)
    else:
        used, tests = _over_items(pairs, tasks, by_cell, store, normal=over_items)
        left_out |= {task: "no items behind its score" for task in tasks if task not in used}
        tasks = used
    if not tests:
        return []
    outcomes = dict(zip(pairs, tests, strict=True))
    corrected = {pair: test for family in families for pair, test in _corrected(family, outcomes, level)}
    names = {pair: _family(family, baseline, results) for family in families for pair in family}
    return [Comparison(a, b, tuple(tasks), corrected[a, b], names[a, b], left_out, level) for a, b in pairs]


def _has_reference(pair: Pair) -> bool:
    return SENTENCE_TRANSFORMERS in (pair[0][1], pair[1][1])


def _corrected(family: Sequence[Pair], outcomes: Mapping[Pair, PairedTest], level: float) -> Iterator[tuple[Pair, PairedTest]]:
    return zip(family, with_holm([outcomes[pair] for pair in family], level), strict=True)


def _family(family: Sequence[Pair], baseline: System | None, results: Sequence[Result]) -> str:
    if baseline:
        return f"{counted(len(family), 'comparison')} with {display_name(baseline, results)}"
    return counted(len(family), "pair") + " with a reference" * _has_reference(family[0])


def ranked(results: Sequence[Result]) -> list[tuple[System, float]]:
    """Systems by their mean main score over the tasks that all were scored on, best first; equal scores: the cheapest first."""
    tasks = set(_common_tasks(results))
    scores: dict[System, list[float]] = {}
    for result in results:
        if result.task in tasks:
            scores.setdefault(result.system, []).append(result.main_score)
    means = [(system, float(np.mean(values))) for system, values in scores.items()]
    return sorted(means, key=lambda item: (-round(item[1], DECIMALS), tokens_per_text(results, item[0])))


def tests_used(comparisons: Sequence[Comparison]) -> str:
    """The names of the tests, without what differs from pair to pair. Few items that differ have an exact test, more have a bootstrap."""
    return " or ".join(dict.fromkeys(re.sub(r"[;,] \d+ zero [^)]*", "", one.outcome.test) for one in comparisons))


def tokens_per_text(results: Sequence[Result], system: System) -> float:
    """The mean number of tokens that a system computes for a text."""
    own = [result for result in results if result.system == system]
    return sum(result.tokens for result in own) / max(1, sum(result.texts for result in own))


def display_name(system: System, results: Sequence[Result]) -> str:
    """The name of a system in tables: the label of its design, after the model's name if several LLMs are compared."""
    label = next(result.label for result in results if result.system == system)
    several = len({result.model for result in results if result.design != SENTENCE_TRANSFORMERS}) > 1
    return f"{model_name(system[0])} {label}" if several and system[1] != SENTENCE_TRANSFORMERS else label


def model_name(model: str) -> str:
    """The last part of a path or hub id. For a trained embedder, whose folder is always called `model`, the name of its run."""
    path = Path(model)
    return path.parent.name if path.name == "model" and path.parent.name else path.name


def _common_tasks(results: Sequence[Result]) -> list[str]:
    systems = {result.system for result in results}
    scored: dict[str, set[System]] = {}
    for result in results:
        scored.setdefault(result.task, set()).add(result.system)
    return [task for task, scored_systems in scored.items() if scored_systems == systems]


Cells = dict[tuple[System, str], Result]


def not_scored(results: Sequence[Result]) -> dict[str, str]:
    """Tasks on which some systems have no score, and which systems these are."""
    systems = dict.fromkeys(result.system for result in results)
    cells = {(result.system, result.task) for result in results}
    lacking = {
        task: [display_name(system, results) for system in systems if (system, task) not in cells]
        for task in dict.fromkeys(result.task for result in results)
    }
    return {task: f"not scored for {', '.join(names)}" for task, names in lacking.items() if names}


def _pairs(systems: Sequence[System], baseline: System | None) -> list[Pair]:
    if baseline is None:
        return list(combinations(systems, 2))
    if baseline not in systems:
        known = ", ".join(f"{design} of {model}" for model, design in systems)
        raise UnmaskError(f"The baseline, {baseline[1]} of {baseline[0]}, is not among the compared systems: {known}.")
    return [(system, baseline) for system in systems if system != baseline]


def _over_tasks(pairs: Sequence[Pair], tasks: Sequence[str], cells: Cells) -> list[PairedTest]:
    systems = dict.fromkeys(system for pair in pairs for system in pair)
    scores = {system: seed_scores([cells[system, task] for task in tasks]) for system in systems}
    models = {system: _models(cells[system, tasks[0]]) for system in systems}
    return [over_tasks(scores[a], scores[b], paired=scores[a].ndim == 2 and models[a] == models[b]) for a, b in pairs]


def over_tasks(a: Scores, b: Scores, *, paired: bool = False) -> PairedTest:
    """The test of two designs on the same tasks: `seed_test` if one was trained with seeds that differ, else `wilcoxon`.

    Scores have the shape (seed, task), or (task,). If all seeds score the same (a saturated task, or a training that changes nothing),
    there is no variance of training to test with. paired: both read the same trained models, seed by seed.
    """
    if paired and differ(a - b):
        return seed_test(a, b, paired=True).test
    if not paired and any(differ(table) for table in (a, b)):
        return seed_test(*(table if differ(table) else np.atleast_2d(table).mean(axis=0) for table in (a, b))).test
    test = wilcoxon(*(np.atleast_2d(table).mean(axis=0) for table in (a, b)))
    seeded = any(table.ndim == 2 for table in (a, b))
    return replace(test, test=f"{test.test} of means over seeds that score the same") if seeded else test


def _over_items(
    pairs: Sequence[Pair], tasks: Sequence[str], cells: Cells, store: ResultStore, normal: bool = False
) -> tuple[list[str], list[PairedTest]]:
    """The tasks that have items for all systems, and a test of each pair on them: over items, and over seeds where there are several."""
    systems = dict.fromkeys(system for pair in pairs for system in pair)
    items = {(system, task): _items(cells[system, task], store) for system in systems for task in tasks}
    used = [task for task in tasks if all(items[system, task] for system in systems)]
    if not used:
        return [], []
    # the smallest p of m resamples is 2 / (m + 1), and Holm multiplies it by the size of a family: enough for a p of 0.02
    with_reference = sum(map(_has_reference, pairs))
    resamples = max(_RESAMPLES, 100 * max(with_reference, len(pairs) - with_reference))
    if normal := normal or resamples > _MOST_RESAMPLES:
        resamples = _RESAMPLES
    samples, points = {}, {}
    for system in systems:
        runs = list(zip(*(items[system, task] for task in used), strict=True))  # for each seed, its items on every task
        samples[system] = np.mean([bootstrap_tasks(run, resamples) for run in runs], axis=0)
        points[system] = np.array([[score(task_items) for task_items in run] for run in runs])
    kept = _defined(list(samples.values()))
    if not kept:
        return [], []
    used = [used[place] for place in kept]
    samples = {system: table[kept] for system, table in samples.items()}
    points = {system: table[:, kept] for system, table in points.items()}  # (seed, task)
    sizes = [items[pairs[0][0], task][0].n for task in used]
    tests = []
    for a, b in pairs:
        changes = task_changes([items[a, task] for task in used], [items[b, task] for task in used])
        if max(len(points[a]), len(points[b])) > 1:
            together = _models(cells[a, used[0]]) == _models(cells[b, used[0]])
            drawn = samples[a][None], samples[b][None]
            tests.append(items_and_seeds_test(drawn, (points[a], points[b]), sizes, paired=together, changes=changes))
            continue
        one, other = points[a][0], points[b][0]
        test = difference_test(
            samples[a], samples[b], one, other, sum(sizes), normal=normal, smallest=min(sizes), changes=changes
        )
        tests.append(test)
    return used, tests


def _models(result: Result) -> list[str]:
    """The models behind a result, seed by seed. Two designs may read the same trained models."""
    return [run.model for run in runs_of(result)]


def _defined(samples: Sequence[Scores]) -> list[int]:
    """Indices of the tasks with a score on enough resamples; none if too few resamples have a score on all of these tasks."""
    has_score = np.logical_and.reduce([~np.isnan(table) for table in samples])
    kept = [place for place, row in enumerate(has_score) if row.sum() > 1]
    return kept if kept and has_score[kept].all(axis=0).sum() > 1 else []


def _items(result: Result, store: ResultStore) -> list[Items]:
    """The items of each seed of a result; empty if a seed has no items that can be resampled."""
    sets = [items for run in runs_of(result) if (items := store.items(run)) is not None and items.n > 1]
    return sets if len(sets) == len(runs_of(result)) else []


def listed(left_out: Mapping[str, str]) -> str:
    """Tasks that were left out, each with its reason."""
    return ", ".join(f"{task} ({why})" for task, why in left_out.items())
