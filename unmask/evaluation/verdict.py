"""Which design is better than which: a paired test for each pair of designs, corrected over all pairs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from unmask.designs.design import Design
from unmask.errors import UnmaskError
from unmask.evaluation.results import SENTENCE_TRANSFORMERS, Result, ResultStore
from unmask.evaluation.seed_means import runs_of, seed_scores
from unmask.io.terminal import counted
from unmask.statistics.bootstrap import Items
from unmask.statistics.paired import (
    DECIMALS,
    SIGNIFICANT,
    PairedTest,
    SampledScores,
    compare_on_items,
    compare_on_tasks,
    fewest_tasks,
    with_holm,
)
from unmask.tasks.kinds import is_of_words

System = tuple[str, str]
Pair = tuple[System, System]
_RESAMPLES, _MOST_RESAMPLES = 2000, 20_000


@dataclass(frozen=True)
class SystemTest:
    """A paired test of two systems (model, design) on the tasks that all systems were scored on."""

    a: System
    b: System
    tasks: tuple[str, ...]
    outcome: PairedTest
    family: str
    """The tests that Holm's correction covers, such as "3 pairs"."""
    left_out: dict[str, str]
    """Tasks that the test does not use, and why."""
    level: float = SIGNIFICANT
    """Of the tests of the family together."""

    @property
    def winner(self) -> System | None:
        """The better system; None if the test shows neither to be better (`PairedTest.winner`)."""
        return {"a": self.a, "b": self.b, None: None}[self.outcome.winner]

    def seen_from(self, system: System) -> PairedTest:
        """The outcome with `system` as a."""
        return self.outcome if system == self.a else self.outcome.mirrored()

    def as_json(self) -> dict[str, Any]:
        """For `--json` and the saved file."""
        systems = {side: dict(zip(("model", "design"), system, strict=True)) for side, system in (("a", self.a), ("b", self.b))}
        outcome = {name: value for name, value in vars(self.outcome).items() if name not in ("bounds", "changes")}
        if not isfinite(self.outcome.effect):
            outcome["effect"] = None  # JSON has no infinity, the effect of one and the same difference on every resample
        verdict = {"is_significant": self.winner is not None, "family": self.family, "left_out": self.left_out}
        return {**systems, "tasks": list(self.tasks), **outcome, **verdict}


def comparisons(
    results: Sequence[Result],
    store: ResultStore,
    baseline: System | None = None,
    *,
    over_items: bool = False,
    level: float = SIGNIFICANT,
) -> list[SystemTest]:
    """A paired test for each pair of systems, or of each system with the baseline (as b). Holm's correction is over all of these.

    - With enough tasks for one of them to be significant after the correction (`fewest_tasks`: 6 for one pair, 11 for 28), the test is
      over tasks (`compare_on_tasks`).
    - With fewer tasks that test could find nothing, whatever the scores. Then the items of the tasks are tested (`compare_on_items`):
      the answer is about these tasks.
    - `over_items` always tests the items, with a p that has no smallest value: a caller that tests several times must correct for that
      too, by a lower `level`.

    A baseline that was chosen beforehand makes k - 1 comparisons and not k (k - 1) / 2. Pairs with a reference model (of
    sentence-transformers) form a separate family, so a reference model costs two designs no correction. All pairs have one test: with
    few tasks, a reference model can make it the one over items.

    Empty if there is nothing to test: one system, no task that all were scored on, or no items. Raises UnmaskError for a baseline that
    is not among the systems.
    """
    tasks = _common_tasks(results)
    cells = {(result.system, result.task): result for result in results}
    systems = list(dict.fromkeys(result.system for result in results))
    if baseline is not None and baseline not in systems:
        available = ", ".join(f"{design} of {model}" for model, design in systems)
        raise UnmaskError(f"The baseline, {baseline[1]} of {baseline[0]}, is not among the compared systems: {available}.")
    pairs = [(system, baseline) for system in systems if system != baseline] if baseline else list(combinations(systems, 2))
    if not pairs or not tasks:
        return []
    left_out = unscored_tasks(results)
    with_reference = [SENTENCE_TRANSFORMERS in (a[1], b[1]) for a, b in pairs]
    families = [
        [pair for pair, has in zip(pairs, with_reference, strict=True) if has is is_reference] for is_reference in (False, True)
    ]
    largest = max(map(len, families))
    if not over_items and len(tasks) >= fewest_tasks(largest):
        scores = {system: seed_scores([cells[system, task] for task in tasks]) for system in systems}
        tests = {
            (a, b): compare_on_tasks(
                scores[a], scores[b], same_trainings=scores[a].ndim == 2 and _same_trainings(cells, a, b, tasks[0])
            )
            for a, b in pairs
        }
    else:
        # the smallest p of m resamples is 2 / (m + 1), and Holm multiplies it by the size of a family: enough for a p of 0.02
        resamples = max(_RESAMPLES, 100 * largest)
        normal = over_items or resamples > _MOST_RESAMPLES
        sampled, used = _sampled_scores(systems, tasks, cells, store, _RESAMPLES if normal else resamples)
        tests = {
            (a, b): compare_on_items(
                sampled[a], sampled[b], normal=normal, same_trainings=_same_trainings(cells, a, b, used[0])
            )
            for a, b in pairs
            if used
        }
        left_out |= {task: "no items behind its score" for task in tasks if task not in used}
        tasks = used
    compared: dict[Pair, SystemTest] = {}
    for family, has_reference in zip(families, (False, True), strict=True) if tests else ():
        name = counted(len(family), "pair") + " with a reference" * has_reference
        if baseline:
            name = f"{counted(len(family), 'comparison')} with {display_name(baseline, results)}"
        for (a, b), test in zip(family, with_holm([tests[pair] for pair in family], level), strict=True):
            compared[a, b] = SystemTest(a, b=b, tasks=tuple(tasks), outcome=test, family=name, left_out=left_out, level=level)
    return [compared[pair] for pair in pairs if compared]


def rank_systems(results: Sequence[Result]) -> list[tuple[System, float]]:
    """Systems by their mean main score over the tasks that all were scored on, best first; equal scores: the cheapest first."""
    tasks = set(_common_tasks(results))
    scores: dict[System, list[float]] = {}
    for result in results:
        if result.task in tasks:
            scores.setdefault(result.system, []).append(result.main_score)
    means = [(system, float(np.mean(values))) for system, values in scores.items()]
    return sorted(means, key=lambda item: (-round(item[1], DECIMALS), tokens_per_text(results, item[0])))


def tests_used(tests: Sequence[SystemTest]) -> str:
    """The names of the tests, without what differs from pair to pair. Few items that differ have an exact test, more have a bootstrap."""
    return " or ".join(dict.fromkeys(re.sub(r"[;,] \d+ zero [^)]*", "", test.outcome.test) for test in tests))


def tokens_per_text(results: Sequence[Result], system: System) -> float:
    """The mean number of tokens that a system computes for a text."""
    system_results = [result for result in results if result.system == system]
    return sum(result.tokens for result in system_results) / max(1, sum(result.texts for result in system_results))


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


def unscored_tasks(results: Sequence[Result]) -> dict[str, str]:
    """Tasks on which some systems have no score, and which systems these are."""
    systems = dict.fromkeys(result.system for result in results)
    cells = {(result.system, result.task) for result in results}
    lacking = {
        task: [display_name(system, results) for system in systems if (system, task) not in cells]
        for task in dict.fromkeys(result.task for result in results)
    }
    return {task: f"not scored for {', '.join(names)}" for task, names in lacking.items() if names}


def _same_trainings(cells: Cells, a: System, b: System, task: str) -> bool:
    """Whether two designs read the same trained models, seed by seed."""
    return [run.model for run in runs_of(cells[a, task])] == [run.model for run in runs_of(cells[b, task])]


def _sampled_scores(
    systems: Sequence[System], tasks: Sequence[str], cells: Cells, store: ResultStore, resamples: int
) -> tuple[dict[System, SampledScores], list[str]]:
    """Each system on the tasks that have items for all systems, and these tasks; none if too few resamples have a score on all of them."""

    def items_of(result: Result) -> list[Items]:
        """The items of each seed of a result; empty if a seed has no items that can be resampled."""
        runs = runs_of(result)
        sets = [items for run in runs if (items := store.items(run)) is not None and items.n > 1]
        return sets if len(sets) == len(runs) else []

    items = {(system, task): items_of(cells[system, task]) for system in systems for task in tasks}
    used = [task for task in tasks if all(items[system, task] for system in systems)]
    if not used:
        return {}, []
    sampled = {system: SampledScores.draw([items[system, task] for task in used], resamples) for system in systems}
    has_score = np.logical_and.reduce([~np.isnan(scores.samples) for scores in sampled.values()])
    retained = [index for index, row in enumerate(has_score) if row.sum() > 1]
    if not retained or has_score[retained].all(axis=0).sum() < 2:
        return {}, []
    return {system: scores.on(retained) for system, scores in sampled.items()}, [used[index] for index in retained]


def join_reasons(left_out: Mapping[str, str]) -> str:
    """Tasks that were left out, each with its reason."""
    return ", ".join(f"{task} ({why})" for task, why in left_out.items())


def split_word_level(results: Sequence[Result]) -> tuple[list[Result], list[Result]]:
    """Results on texts, and results on word-level tasks with one row for all designs that share attention and layer.

    A score on words depends on these two alone, and a design that a word-level task cannot score has no such result. So a mean over texts
    and words would say nothing, and a task that some designs cannot have would be left out for all.

    A row on words is named after these two, such as `causal@12`: the name replaces design and label, so that rows on words are ranked
    and tested among themselves as designs are.
    """
    texts = [result for result in results if not is_of_words(result.kind)]
    words: dict[tuple[str, str, str], Result] = {}
    for result in results:
        if is_of_words(result.kind):
            name = _attention_and_layer(result)
            words.setdefault((result.model, name, result.task), result.model_copy(update={"design": name, "label": name}))
    return texts, list(words.values())


def labels_by_layer(results: Sequence[Result]) -> dict[str, list[str]]:
    """The labels of the designs that share attention and layer, by the name of these two."""
    labels: dict[str, dict[str, None]] = {}
    for result in results:
        if is_of_words(result.kind):
            labels.setdefault(_attention_and_layer(result), {})[result.label] = None
    return {name: list(shared) for name, shared in labels.items()}


def _attention_and_layer(result: Result) -> str:
    """What a score on words depends on, such as `causal@12`."""
    return f"{Design.parse(result.conditions.design).attention}@{result.provenance['probe']['layer']}"
