"""Recommend: the best design for some tasks, without the whole grid.

What costs is a forward pass over a text, by attention and prompt: designs that share both come for nothing, and so do their layers. So
designs race on growing subsets of each task's items (`racing`), and what is said of the winner is what `compare` would say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from unmask.designs.design import Design
from unmask.errors import UnmaskError
from unmask.evaluation.compare import ComparisonPlan
from unmask.evaluation.leader import Lead, lead, reason
from unmask.evaluation.racing import Race, Round, pass_key
from unmask.evaluation.results import Result, ResultStore
from unmask.evaluation.verdict import ranked
from unmask.evaluation.word_level import WORD_LEVEL
from unmask.statistics.intervals import Bounds, mean_interval, score_interval
from unmask.statistics.paired import SIGNIFICANT
from unmask.tasks.task import LocalTask, Task


@dataclass(frozen=True)
class Recommendation:
    """What to use.

    score: mean main score over the items of the last round, which also chose the design from so many candidates; interval: widened for
    that choice (Bonferroni over the candidates). all_items: whether these are all items that the tasks have. reason: how the design
    stands to the others of the last round, in the words of `compare`; ties: those that cannot be told apart from it. failed: designs
    that left for want of a score, and why. tokens_a_text: what the design costs; tokens: computed in all; grid_tokens: what every
    design on every item would have computed.
    """

    design: Design
    label: str
    score: float
    interval: Bounds | None
    items: int
    all_items: bool
    candidates: int
    reason: str
    ties: tuple[str, ...]
    tokens_a_text: float
    tokens: int
    grid_tokens: int
    rounds: tuple[Round, ...]
    failed: Mapping[str, str]

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {**asdict(self), "design": self.design.name}


def recommend(
    plan: ComparisonPlan, store: ResultStore, say: Callable[[str], None] = lambda _: None, *, layers: bool = True
) -> Recommendation:
    """Race the designs of a plan on its tasks, and with `layers` some layers of those that lead.

    What the store holds already is not computed again, but counts as computed. Raises UnmaskError for word-level tasks, for fewer than
    two designs, and for a task on which no design can be scored.
    """
    if words := [task.name for task in plan.tasks if task.kind == WORD_LEVEL]:
        raise UnmaskError(
            f"'{words[0]}' is a word-level task, whose score depends on attention and layer alone: `unmask compare` scores designs on "
            "it, and `unmask probe words` all layers."
        )
    if len(plan.designs) < 2:
        raise UnmaskError("One design needs no recommendation: give two or more.")
    race = Race(plan, store, say, layers)
    race.run()
    order = ranked(race.results)
    return _recommendation(race, lead(order, race.tests, race.results))


def _recommendation(race: Race, found: Lead) -> Recommendation:
    labels = {result.system: result.label for result in race.results}
    label = labels[found.leader]
    own = [result for result in race.results if result.label == label]
    whole = dict(zip((part.name for part in race.parts), zip(race.parts, race.plan.tasks, strict=True), strict=True))
    beside = sum(race.first.values()) / max(1, race.first[pass_key(race.known[label])])
    return Recommendation(
        design=race.known[label],
        label=label,
        score=found.order[0][1],
        interval=_interval(own, race),
        items=race.rounds[-1].items,
        all_items=all(part is task for part, task in whole.values()),
        candidates=race.candidates,
        reason=reason(found, race.results),
        ties=tuple(labels[system] for system in found.tied),
        tokens_a_text=found.tokens[found.leader],
        tokens=sum(race.paid.values()),
        grid_tokens=round(beside * sum(_whole_tokens(result, *whole[result.task]) for result in own)),
        rounds=tuple(race.rounds),
        failed=dict(race.failed),
    )


def _interval(own: Sequence[Result], race: Race) -> Bounds | None:
    """Of the mean score, at a level that holds for whichever of the candidates is chosen."""
    items = [race.store.items(result) for result in own]
    level = 1 - SIGNIFICANT / race.candidates
    known = [bounds for one in items if one is not None and one.n > 1 and (bounds := score_interval(one, level))]
    return mean_interval([result.main_score for result in own], known) if len(known) == len(own) else None


def _whole_tokens(result: Result, part: Task, task: Task) -> float:
    """Tokens of a design on a whole task, from those on a part of it: as many a text."""
    if part is task:
        return result.tokens
    if not isinstance(task, LocalTask) or not isinstance(part, LocalTask):
        return result.tokens * _texts_in_mteb(task) / max(1, _texts_in_mteb(part))
    if task.kind == "retrieval":
        texts = len(task.data["queries"]) + len(task.data["corpus"])
    elif task.kind == "classification":  # its training texts are there from the first round on
        texts = result.texts + task.size - part.size
    else:
        texts = round(result.texts * task.size / part.size)
    return result.tokens * texts / result.texts


def _texts_in_mteb(task: Task) -> int:
    from unmask.tasks.mteb.evaluator import count_texts

    assert not isinstance(task, LocalTask)
    return count_texts(task)
