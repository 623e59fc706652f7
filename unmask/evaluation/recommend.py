"""Recommending the best design for some tasks, without scoring every design on every item.

Forward passes cost time; one pass over a text serves all designs with its attention and prompt, at all layers. So designs race on growing
subsets of each task's items (`racing`). The winner is described in the words of `compare`.

The best of many scores is too high: it was chosen for being high. So the designs race on one half of the items, and the winner's score is
measured on the other half.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import mean
from typing import Any

from unmask.designs.design import Design
from unmask.errors import UnmaskError
from unmask.evaluation.compare import ComparisonPlan, compare, unscored
from unmask.evaluation.leader import Lead, lead, reasons
from unmask.evaluation.racing import FIRST, Race, Round, pass_keys
from unmask.evaluation.results import Result, ResultStore
from unmask.evaluation.verdict import ranked
from unmask.statistics.intervals import Bounds, mean_interval, score_interval
from unmask.statistics.paired import SIGNIFICANT
from unmask.tasks.kinds import KINDS, is_of_words
from unmask.tasks.subsets import halves
from unmask.tasks.task import LocalTask, Task

LEAST = 2 * FIRST
"""Items that every task needs, so that half of them are held out."""


@dataclass(frozen=True)
class Recommendation:
    """The design to use, and why.

    score: its mean main score over the tasks. items: what it is measured on. held_out: whether these items had no part in the choice. If
    they had, the interval is widened (Bonferroni over the candidates), and the score may be too high. chosen_on: items of the last round.
    all_items: whether the last round used all items that there were to choose on. reasons: how the design compares with the others of the
    last round, in the same sentences as in `compare`. ties: designs that are not told apart from it. failed: designs without a score, and
    why. tokens_a_text: the cost of the design. tokens: all tokens that were computed. grid_tokens: the tokens of all designs on all items.
    """

    design: Design
    label: str
    score: float
    interval: Bounds | None
    items: int
    held_out: bool
    chosen_on: int
    all_items: bool
    candidates: int
    reasons: tuple[str, ...]
    ties: tuple[str, ...]
    tokens_a_text: float
    tokens: int
    grid_tokens: int
    rounds: tuple[Round, ...]
    failed: Mapping[str, str]

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {**asdict(self), "design": self.design.name}


def recommend(plan: ComparisonPlan, store: ResultStore, *, layers: bool = True) -> Recommendation:
    """Race the designs of a plan on its tasks and, with `layers`, some earlier layers of the leading designs.

    What the store already holds is not computed again, but its tokens count. Raises UnmaskError for word-level tasks, for fewer than two
    designs, and for a task on which no design has a score.
    """
    if words := [task.name for task in plan.tasks if is_of_words(task.kind)]:
        raise UnmaskError(
            f"'{words[0]}' is a word-level task: its score depends on attention and layer alone. Use `unmask compare` to score designs on "
            "it, or `unmask probe words` to score all layers."
        )
    if len(plan.designs) < 2:
        raise UnmaskError("A recommendation chooses among designs: give two or more.")
    parts = _halves(plan.tasks)
    race = Race(replace(plan, tasks=parts[0]) if parts else plan, store, layers)
    race.run()
    order = ranked(race.results)
    found = _recommendation(plan.tasks, race, lead(order, race.tests, race.results), parts[1] if parts else None)
    race.cache.forget()
    return found


def _halves(tasks: Sequence[Task]) -> tuple[list[Task], list[Task]] | None:
    """The tasks on the items to choose on, and on held-out items; None if a task is too small for that, or a task of mteb."""
    local = [task for task in tasks if isinstance(task, LocalTask) and task.size >= LEAST]
    parts = [halves(task) for task in local]
    told = not any(KINDS[half.kind].nothing_to_tell(half.data) for part in parts for half in part)
    return ([first for first, _ in parts], [second for _, second in parts]) if told and len(local) == len(tasks) else None


def _recommendation(tasks: Sequence[Task], race: Race, standing: Lead, held_out: Sequence[Task] | None) -> Recommendation:
    labels = {result.system: result.label for result in race.results}
    label = labels[standing.leader]
    own = [result for result in race.results if result.label == label]
    whole = dict(zip((part.name for part in race.parts), zip(race.parts, tasks, strict=True), strict=True))
    all_passes = sum(race.first.values()) / max(1, sum(race.first[key] for key in pass_keys(race.known[label])))
    judged = _held_out_results(race, label, held_out) if held_out else []
    level = 1 - SIGNIFICANT / (1 if judged else race.candidates)
    return Recommendation(
        design=race.known[label],
        label=label,
        score=mean(result.main_score for result in judged or own),
        interval=_interval(judged or own, race.store, level),
        items=sum(result.n for result in judged or own),
        held_out=bool(judged),
        chosen_on=race.rounds[-1].items,
        all_items=all(part is task for part, task in zip(race.parts, race.plan.tasks, strict=True)),
        candidates=race.candidates,
        reasons=reasons(standing, race.results),
        ties=tuple(labels[system] for system in standing.tied),
        tokens_a_text=standing.tokens[standing.leader],
        tokens=sum(race.paid.values()) + sum(result.tokens for result in judged),
        grid_tokens=round(all_passes * sum(_whole_tokens(result, *whole[result.task]) for result in own)),
        rounds=tuple(race.rounds),
        failed=dict(race.failed),
    )


def _held_out_results(race: Race, label: str, tasks: Sequence[Task]) -> list[Result]:
    """The chosen design on items that had no part in the choice. Raises UnmaskError for a task without a score."""
    plan = replace(race.plan, designs={label: race.known[label]}, tasks=tasks)
    results = compare(plan, race.store, cache=race.cache, load=race.load, fits=race.fits)
    if len(results) < len(tasks):
        failure = unscored(plan, race.store)[0]
        raise UnmaskError(f"{label} has no score on {failure.task}: {failure.error}")
    return results


def _interval(own: Sequence[Result], store: ResultStore, level: float) -> Bounds | None:
    """The interval of the mean score at a level."""
    item_sets = [store.items(result) for result in own]
    known = [bounds for items in item_sets if items and items.n > 1 and (bounds := score_interval(items, level))]
    return mean_interval([result.main_score for result in own], known) if len(known) == len(own) else None


def _whole_tokens(result: Result, part: Task, task: Task) -> float:
    """Tokens of a design on a whole task, estimated from its tokens on a part: the same number for each text."""
    if part is task:
        return result.tokens
    if not isinstance(task, LocalTask) or not isinstance(part, LocalTask):
        return result.tokens * _texts_in_mteb(task) / max(1, _texts_in_mteb(part))
    texts = KINDS[task.kind].whole_texts(result.texts, part.data, task.data)
    return result.tokens * texts / result.texts


def _texts_in_mteb(task: Task) -> int:
    from unmask.tasks.mteb.evaluator import count_texts

    assert not isinstance(task, LocalTask)
    return count_texts(task)
