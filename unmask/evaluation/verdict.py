"""Verdict: which design is better than which, and what to use for which kind of task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from unmask.errors import UnmaskError
from unmask.evaluation.resampling import Items, Scores, score
from unmask.evaluation.results import SENTENCE_TRANSFORMERS, Result, ResultStore
from unmask.evaluation.seeds import differ, seed_test
from unmask.evaluation.statistics import PairedTest, bootstrap_tasks, difference_test, fewest_tasks, wilcoxon, with_holm
from unmask.evaluation.trainings import runs_of, seed_scores

System = tuple[str, str]
SIGNIFICANT = 0.05
_RESAMPLES, _MOST_RESAMPLES = 2000, 20_000
_NAMED = 4  # designs in a sentence, before it becomes a list


@dataclass(frozen=True)
class Comparison:
    """A paired test of two systems (model, design) on the tasks that all the systems were scored on.

    family: what Holm's correction was made for, such as "3 pairs"; left_out: tasks that the test did without, and why.
    """

    a: System
    b: System
    tasks: tuple[str, ...]
    outcome: PairedTest
    family: str
    left_out: dict[str, str]

    def as_json(self) -> dict[str, Any]:
        """For `--json` and the saved file."""
        systems = {side: dict(zip(("model", "design"), system, strict=True)) for side, system in (("a", self.a), ("b", self.b))}
        outcome = asdict(self.outcome)
        if not isfinite(self.outcome.effect):
            outcome["effect"] = None  # JSON has no infinity: every resample showed one and the same difference
        return {**systems, "tasks": list(self.tasks), **outcome, "family": self.family, "left_out": self.left_out}


@dataclass(frozen=True)
class Recommendation:
    """What to use for a kind of task, and why."""

    kind: str
    system: System
    score: float
    reason: str


def comparisons(results: Sequence[Result], store: ResultStore, baseline: System | None = None) -> list[Comparison]:
    """A paired test for each pair of systems, or of each with the baseline (as b), Holm-corrected over all of these.

    Where there are tasks enough for one of them to be significant after the correction (`fewest_tasks`: 6 for one pair, 11 for 28),
    Wilcoxon's signed-rank test over tasks, and `seed_test` for means over seeds (`mean_over_seeds`). With fewer tasks it could
    find nothing, whatever the scores: then a paired bootstrap over the items within each task, which is about these tasks
    and, of trained designs, these embedders. A baseline that was chosen beforehand makes k - 1 comparisons of k (k - 1) / 2.

    Empty where there is nothing to test: one system, no task that all were scored on, or no items. Raises UnmaskError for a baseline
    that is not among the systems.
    """
    tasks = _common_tasks(results)
    by_cell = {(result.system, result.task): result for result in results}
    systems = list(dict.fromkeys(result.system for result in results))
    pairs = _pairs(systems, baseline)
    if not pairs or not tasks:
        return []
    left_out = _not_scored(results)
    if len(tasks) >= fewest_tasks(len(pairs), SIGNIFICANT):
        tests = _over_tasks(pairs, tasks, by_cell)
    else:
        used, tests = _over_items(pairs, tasks, by_cell, store)
        left_out |= {task: "no items behind its score" for task in tasks if task not in used}
        tasks = used
    if not tests:
        return []
    count, what = len(pairs), "pair" if baseline is None else "comparison"
    family = _count(count, what) + (f" with {display_name(baseline, results)}" if baseline else "")
    return [
        Comparison(a, b, tuple(tasks), outcome, family, left_out)
        for (a, b), outcome in zip(pairs, with_holm(tests), strict=True)
    ]


def recommendations(results: Sequence[Result], store: ResultStore) -> list[Recommendation]:
    """The best design of each kind of task, with its lead over the runner-up and what cannot be told apart from it.

    Reference rows (sentence-transformers models) are no candidates: the question is how to read the LLM. Each kind is tested for
    itself, over all pairs: the best design is known only from the scores, so that it is no baseline. Raises UnmaskError for a kind
    without a task that all the designs were scored on.
    """
    candidates = [result for result in results if result.design != SENTENCE_TRANSFORMERS]
    found = []
    for kind in dict.fromkeys(result.kind for result in candidates):
        of_kind = [result for result in candidates if result.kind == kind]
        order = ranked(of_kind)
        if not order:
            raise UnmaskError(f"No {kind} task was scored for every design: {_listed(_not_scored(of_kind))}. Score them too.")
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


Pair = tuple[System, System]
Cells = dict[tuple[System, str], Result]


def _not_scored(results: Sequence[Result]) -> dict[str, str]:
    """Tasks that some of the systems lack, and which these are."""
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
        raise UnmaskError(f"The baseline, {baseline[1]} of {baseline[0]}, is not among the systems compared: {known}.")
    return [(system, baseline) for system in systems if system != baseline]


def _over_tasks(pairs: Sequence[Pair], tasks: Sequence[str], cells: Cells) -> list[PairedTest]:
    systems = dict.fromkeys(system for pair in pairs for system in pair)
    scores = {system: seed_scores([cells[system, task] for task in tasks]) for system in systems}
    return [_of_seeds(scores[a], scores[b]) for a, b in pairs]


def _of_seeds(a: Scores, b: Scores) -> PairedTest:
    """The test of two designs over tasks: `seed_test` where one was trained with seeds that differ, else `wilcoxon`.

    Seeds that all score the same (a saturated task, a training that changes nothing) show no variance of training to test with.
    """
    if any(differ(table) for table in (a, b)):
        return seed_test(*(table if differ(table) else np.atleast_2d(table).mean(axis=0) for table in (a, b))).test
    test = wilcoxon(*(np.atleast_2d(table).mean(axis=0) for table in (a, b)))
    seeded = any(table.ndim == 2 for table in (a, b))
    return replace(test, test=f"{test.test} of means over seeds that score the same") if seeded else test


def _over_items(
    pairs: Sequence[Pair], tasks: Sequence[str], cells: Cells, store: ResultStore
) -> tuple[list[str], list[PairedTest]]:
    """The tasks that have items for all the systems, and a test of each pair on these; of several seeds, their mean score."""
    systems = dict.fromkeys(system for pair in pairs for system in pair)
    found = {(system, task): _items(cells[system, task], store) for system in systems for task in tasks}
    used = [task for task in tasks if all(found[system, task] for system in systems)]
    if not used:
        return [], []
    # the smallest p of m resamples is 2 / (m + 1), and Holm multiplies it by the number of pairs: 0.02 can be reached
    resamples = max(_RESAMPLES, 100 * len(pairs))
    if normal := resamples > _MOST_RESAMPLES:
        resamples = _RESAMPLES
    samples, points = {}, {}
    for system in systems:
        runs = list(zip(*(found[system, task] for task in used), strict=True))  # of each seed, its items on every task
        samples[system] = np.mean([bootstrap_tasks(run, resamples) for run in runs], axis=0)
        points[system] = np.mean([[score(one) for one in run] for run in runs], axis=0)
    kept = _defined(list(samples.values()))
    if not kept:
        return [], []
    used = [used[place] for place in kept]
    samples, points = ({system: table[kept] for system, table in of.items()} for of in (samples, points))
    n = sum(found[pairs[0][0], task][0].n for task in used)
    seeded = {system for system in systems if len(found[system, used[0]]) > 1}
    tests = []
    for a, b in pairs:
        test = difference_test(samples[a], samples[b], points[a], points[b], n, normal=normal)
        tests.append(replace(test, test=f"{test.test} of means over seeds") if seeded & {a, b} else test)
    return used, tests


def _defined(samples: Sequence[Scores]) -> list[int]:
    """Places of the tasks that have a score on resamples enough: of all, or of none where too few resamples have one on each."""
    has_score = np.logical_and.reduce([~np.isnan(table) for table in samples])
    kept = [place for place, row in enumerate(has_score) if row.sum() > 1]
    return kept if kept and has_score[kept].all(axis=0).sum() > 1 else []


def _items(result: Result, store: ResultStore) -> list[Items]:
    """The items of each seed of a result, or none where one of them has no set that can be resampled."""
    items = [one for run in runs_of(result) if (one := store.items(run)) is not None and one.n > 1]
    return items if len(items) == len(runs_of(result)) else []


def _reason(order: Sequence[tuple[System, float]], results: Sequence[Result], tests: Sequence[Comparison]) -> str:
    (best, top), rest = order[0], order[1:]
    if not rest:
        return f"the only design that was compared, {_points(top)}"
    against = {_other(test, best): test for test in tests if best in (test.a, test.b)}
    runner_up, second = rest[0]
    text = f"{_points(top)}, {_points(top - second)} ahead of {display_name(runner_up, results)}"
    if not tests:
        return f"{text}; not tested: no task has the items behind its score"
    lead = against[runner_up]
    text += _evidence(lead, 1 if lead.a == best else -1)
    left_out = f"; left out: {_listed(lead.left_out)}" if lead.left_out else ""
    ties = [system for system, _ in rest if (against[system].outcome.p_holm or 0) >= SIGNIFICANT]
    if not ties:
        return f"{text}; better than every other design (p < {SIGNIFICANT}, Holm over {lead.family}){left_out}"
    told = f"cannot be told apart from {_names(ties, results)} (p >= {SIGNIFICANT}, Holm over {lead.family})"
    return f"{text}; {told}{_cheaper(best, ties, results)}{left_out}"


def _names(systems: Sequence[System], results: Sequence[Result]) -> str:
    """The first few by name; the tables have all."""
    names = [display_name(system, results) for system in systems]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _evidence(test: Comparison, sign: int) -> str:
    """Interval, amount of data and size of an effect, seen from a (sign 1) or from b (sign -1)."""
    outcome = test.outcome
    low, high = sorted(sign * bound for bound in outcome.interval)
    amount = _count(len(test.tasks), "task") + (f" of {outcome.n} items" if outcome.unit == "items" else "")
    return f" [{_points(low)}, {_points(high)}] on {amount}, {outcome.effect_name} {sign * outcome.effect + 0.0:.2f}"


def _listed(left_out: dict[str, str]) -> str:
    return ", ".join(f"{task} ({why})" for task, why in left_out.items())


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


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
