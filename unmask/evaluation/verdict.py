"""Verdict: which design is better than which, and what to use for which kind of task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from unmask.evaluation.resampling import Items, score
from unmask.evaluation.results import SENTENCE_TRANSFORMERS, Result, ResultStore
from unmask.evaluation.statistics import FEWEST_TASKS, PairedTest, bootstrap_tasks, difference_test, wilcoxon, with_holm

System = tuple[str, str]
SIGNIFICANT = 0.05
_RESAMPLES = 2000


@dataclass(frozen=True)
class Comparison:
    """A paired test of two systems (model, design) on the tasks that both were scored on."""

    a: System
    b: System
    tasks: tuple[str, ...]
    outcome: PairedTest

    def as_json(self) -> dict[str, Any]:
        """For `--json` and the saved file."""
        systems = {side: dict(zip(("model", "design"), system, strict=True)) for side, system in (("a", self.a), ("b", self.b))}
        outcome = asdict(self.outcome)
        if not isfinite(self.outcome.effect):
            outcome["effect"] = None  # JSON has no infinity: every resample showed one and the same difference
        return {**systems, "tasks": list(self.tasks), **outcome}


@dataclass(frozen=True)
class Recommendation:
    """What to use for a kind of task, and why."""

    kind: str
    system: System
    score: float
    reason: str


def comparisons(results: Sequence[Result], store: ResultStore) -> list[Comparison]:
    """A paired test for each pair of systems, Holm-corrected over all pairs.

    With at least six tasks: Wilcoxon's signed-rank test over tasks. With fewer: a paired bootstrap over the items within each task,
    since no signed-rank test of fewer than six can be significant. Tasks without a single set of items are left out of the latter.
    """
    tasks = _common_tasks(results)
    by_cell = {(result.system, result.task): result for result in results}
    systems = list(dict.fromkeys(result.system for result in results))
    if len(systems) < 2 or not tasks:
        return []
    tests = _over_tasks(systems, tasks, by_cell) if len(tasks) >= FEWEST_TASKS else _over_items(systems, tasks, by_cell, store)
    corrected = with_holm([outcome for _, _, _, outcome in tests])
    return [Comparison(a, b, used, outcome) for (a, b, used, _), outcome in zip(tests, corrected, strict=True)]


def recommendations(results: Sequence[Result], store: ResultStore) -> list[Recommendation]:
    """The best design of each kind of task, with its lead over the runner-up and what cannot be told apart from it.

    Reference rows (sentence-transformers models) are no candidates: the question is how to read the LLM.
    """
    candidates = [result for result in results if result.design != SENTENCE_TRANSFORMERS]
    found = []
    for kind in dict.fromkeys(result.kind for result in candidates):
        of_kind = [result for result in candidates if result.kind == kind]
        order = ranked(of_kind)
        best, best_score = order[0]
        reason = _reason(order, of_kind, comparisons(of_kind, store))
        found.append(Recommendation(kind, best, best_score, reason))
    return found


def ranked(results: Sequence[Result]) -> list[tuple[System, float]]:
    """Systems by their mean main score over the tasks that all of them were scored on, best first."""
    tasks = set(_common_tasks(results))
    scores: dict[System, list[float]] = {}
    for result in results:
        if result.task in tasks:
            scores.setdefault(result.system, []).append(result.main_score)
    means = [(system, float(np.mean(values))) for system, values in scores.items()]
    return sorted(means, key=lambda item: -item[1])


def display_name(system: System, results: Sequence[Result]) -> str:
    """A system as a reader knows it: the label of its design, with the model's name where several LLMs are compared."""
    label = next(result.label for result in results if result.system == system)
    several = len({result.model for result in results if result.design != SENTENCE_TRANSFORMERS}) > 1
    return f"{_model_name(system[0])} {label}" if several and system[1] != SENTENCE_TRANSFORMERS else label


def _model_name(model: str) -> str:
    """The last part of a path or hub id; of a trained embedder the run that it lies in, since all are called `model`."""
    path = Path(model)
    return path.parent.name if path.name == "model" and path.parent.name else path.name


def _common_tasks(results: Sequence[Result]) -> list[str]:
    systems = {result.system for result in results}
    scored: dict[str, set[System]] = {}
    for result in results:
        scored.setdefault(result.task, set()).add(result.system)
    return [task for task, those in scored.items() if those == systems]


Test = tuple[System, System, tuple[str, ...], PairedTest]
Cells = dict[tuple[System, str], Result]


def _over_tasks(systems: Sequence[System], tasks: Sequence[str], cells: Cells) -> list[Test]:
    scores = {system: [cells[system, task].main_score for task in tasks] for system in systems}
    return [(a, b, tuple(tasks), wilcoxon(scores[a], scores[b])) for a, b in combinations(systems, 2)]


def _over_items(systems: Sequence[System], tasks: Sequence[str], cells: Cells, store: ResultStore) -> list[Test]:
    items: dict[tuple[System, str], Items] = {}
    for cell in ((system, task) for system in systems for task in tasks):
        one = store.items(cells[cell])
        if one is not None and one.n > 1:
            items[cell] = one
    used = [task for task in tasks if all((system, task) in items for system in systems)]
    if not used:
        return []
    # the smallest p of m resamples is 2 / (m + 1), and Holm multiplies it by the number of pairs: 0.02 can be reached
    resamples = max(_RESAMPLES, 100 * len(systems) * (len(systems) - 1) // 2)
    samples = {system: bootstrap_tasks([items[system, task] for task in used], resamples) for system in systems}
    points = {system: [score(items[system, task]) for task in used] for system in systems}
    n = sum(items[systems[0], task].n for task in used)
    return [
        (a, b, tuple(used), difference_test(samples[a], samples[b], points[a], points[b], n))
        for a, b in combinations(systems, 2)
    ]


def _reason(order: Sequence[tuple[System, float]], results: Sequence[Result], tests: Sequence[Comparison]) -> str:
    (best, top), rest = order[0], order[1:]
    if not rest:
        return f"the only design that was compared, {_points(top)}"
    against = {_other(test, best): test for test in tests if best in (test.a, test.b)}
    runner_up, second = rest[0]
    lead = against.get(runner_up)
    text = f"{_points(top)}, {_points(top - second)} ahead of {display_name(runner_up, results)}"
    if lead is not None:
        sign = 1 if lead.a == best else -1
        low, high = sorted(sign * bound for bound in lead.outcome.interval)
        text += f" [{_points(low)}, {_points(high)}]"
    ties = [system for system, _ in rest if system in against and (against[system].outcome.p_holm or 0) >= SIGNIFICANT]
    if not ties:
        return f"{text}; better than every other design (p < {SIGNIFICANT}, Holm)"
    names = ", ".join(display_name(system, results) for system in ties)
    return f"{text}; cannot be told apart from {names} on {_amount(results, tests)}{_cheaper(best, ties, results)}"


def _amount(results: Sequence[Result], tests: Sequence[Comparison]) -> str:
    outcome = tests[0].outcome
    tasks = len({result.task for result in results})
    return f"{tasks} task{'s' if tasks > 1 else ''}" + (f" of {outcome.n} items" if outcome.unit == "items" else "")


def _cheaper(best: System, ties: Sequence[System], results: Sequence[Result]) -> str:
    """Name the cheapest of the designs that are not told apart, if it computes clearly fewer tokens a text."""
    cost = {system: _tokens_per_text(results, system) for system in (best, *ties)}
    cheapest = min(ties, key=lambda system: cost[system])
    if not cost[best] or cost[cheapest] > 0.8 * cost[best]:
        return ""
    return f"; {display_name(cheapest, results)} computes {cost[cheapest] / cost[best]:.0%} of its tokens"


def _tokens_per_text(results: Sequence[Result], system: System) -> float:
    own = [result for result in results if result.system == system]
    return sum(result.tokens for result in own) / max(1, sum(result.texts for result in own))


def _other(test: Comparison, system: System) -> System:
    return test.b if test.a == system else test.a


def _points(value: float) -> str:
    return f"{100 * value:.1f}"
