"""Recommending the best design for some tasks, without scoring every design on every item.

Forward passes cost time; one pass over a text serves all designs with its attention and prompt, at all layers. So designs race on growing
subsets of each task's items (`racing`). The winner is described in the words of `compare`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from unmask.designs.design import Design
from unmask.errors import UnmaskError
from unmask.evaluation.compare import ComparisonPlan
from unmask.evaluation.leader import Lead, lead, reasons
from unmask.evaluation.racing import Race, Round, pass_key
from unmask.evaluation.results import Result, ResultStore
from unmask.evaluation.verdict import ranked
from unmask.statistics.intervals import Bounds, mean_interval, score_interval
from unmask.statistics.paired import SIGNIFICANT
from unmask.tasks.kinds import KINDS, is_of_words
from unmask.tasks.task import LocalTask, Task


@dataclass(frozen=True)
class Recommendation:
    """The design to use, and why.

    score: its mean main score over the items of the last round. The same items chose the design among all candidates, so the interval is
    widened (Bonferroni over the candidates). all_items: whether the last round used all items of the tasks. reasons: how the design
    compares with the others of the last round, in the same sentences as in `compare`. ties: designs that are not told apart from it.
    failed: designs without a score, and why. tokens_a_text: the cost of the design. tokens: all tokens that were computed. grid_tokens:
    the tokens of all designs on all items.
    """

    design: Design
    label: str
    score: float
    interval: Bounds | None
    items: int
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
    race = Race(plan, store, layers)
    race.run()
    order = ranked(race.results)
    return _recommendation(race, lead(order, race.tests, race.results))


def _recommendation(race: Race, standing: Lead) -> Recommendation:
    labels = {result.system: result.label for result in race.results}
    label = labels[standing.leader]
    own = [result for result in race.results if result.label == label]
    whole = dict(zip((part.name for part in race.parts), zip(race.parts, race.plan.tasks, strict=True), strict=True))
    all_passes = sum(race.first.values()) / max(1, race.first[pass_key(race.known[label])])
    return Recommendation(
        design=race.known[label],
        label=label,
        score=standing.order[0][1],
        interval=_interval(own, race),
        items=race.rounds[-1].items,
        all_items=all(part is task for part, task in whole.values()),
        candidates=race.candidates,
        reasons=reasons(standing, race.results),
        ties=tuple(labels[system] for system in standing.tied),
        tokens_a_text=standing.tokens[standing.leader],
        tokens=sum(race.paid.values()),
        grid_tokens=round(all_passes * sum(_whole_tokens(result, *whole[result.task]) for result in own)),
        rounds=tuple(race.rounds),
        failed=dict(race.failed),
    )


def _interval(own: Sequence[Result], race: Race) -> Bounds | None:
    """The interval of the mean score, at a level that holds whichever candidate is chosen."""
    item_sets = [race.store.items(result) for result in own]
    level = 1 - SIGNIFICANT / race.candidates
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
