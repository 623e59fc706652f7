"""Recommending the best design for some tasks, without scoring every design on every item.

Forward passes cost time; one pass over a text serves all designs with its attention and prompt, at all layers. So designs race in rounds,
each on four times as many items as the round before. All designs start on the first items of each task. After each round, designs that a
paired test on all tasks finds worse than the leader are dropped; no design is dropped for any other reason. The race ends when one design
is left or all items are used. The items of a round contain those of the round before, so a round computes only what is new. Layers of the
leading designs join after the first round: their vectors were computed in the same forward passes. (The field's name: Maron and Moore,
Hoeffding races, 1994.)

The best of many scores is too high: it was chosen for being high. So the designs race on one half of the items, and the winner's score is
measured on the other half.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from functools import cache as cache_once
from functools import partial
from statistics import mean
from typing import Any

from unmask.designs.design import Design
from unmask.encoding.encoder import Encoder
from unmask.encoding.features import Fit
from unmask.encoding.vector_store import VectorStore
from unmask.errors import UnmaskError
from unmask.evaluation.compare import ComparisonPlan, compare, load_checked, unscored
from unmask.evaluation.leader import Lead, lead, reasons
from unmask.evaluation.results import Result, ResultStore
from unmask.evaluation.verdict import Comparison, comparisons, ranked
from unmask.io.terminal import say
from unmask.statistics.intervals import Bounds, mean_interval, score_interval
from unmask.statistics.paired import SIGNIFICANT
from unmask.tasks.kinds import KINDS, is_of_words
from unmask.tasks.subsets import halves, subset
from unmask.tasks.task import LocalTask, Task

FIRST = 40
"""Items of each task in the first round."""

FACTOR = 4
"""By how much the number of items grows from round to round."""

DEPTHS = (0.5, 0.75, 0.9)
"""The layers of the leading designs that are tried, as shares of the model's depth."""

LEADERS = 3
"""The number of designs whose layers are tried."""

_WHOLE = 1.5  # a task with at most this many times the items of a round is used whole

PassKey = tuple[str, str]
"""Attention and prompt of a forward pass."""

LEAST = 2 * FIRST
"""Items that every task needs, so that half of them are held out."""


@dataclass(frozen=True)
class RoundScore:
    """A design after a round.

    score: its mean main score over the tasks; behind: the leader's score minus its own, with interval and p, corrected over all pairs of
    the round (None without items to test); worse: whether the test found it worse than the leader. The last round tests at the level
    0.05, every other round at 0.05 divided by the number of rounds.
    """

    label: str
    score: float
    behind: float
    interval: Bounds | None = None
    p: float | None = None
    worse: bool = False


@dataclass(frozen=True)
class Round:
    """One round: number of items over the tasks, tokens that it computed, and the designs, best first. kept: the surviving designs."""

    items: int
    tokens: int
    standings: tuple[RoundScore, ...]
    kept: tuple[str, ...]


def pass_keys(design: Design) -> list[PassKey]:
    """The forward passes of a design, one for each of its prompts. Designs share those that they have in common."""
    return [(design.attention, prompt) for prompt in design.prompts]


@dataclass
class Race:
    """The designs that are still in the race, and the findings of the rounds so far.

    alive: designs that are left; known: all that were scored; failed: designs that left because they have no score, and why; results,
    tests, parts: from the last round with scores (parts: the part of each task that it used); paid: tokens of each forward pass;
    first: the same for the first round alone.
    """

    plan: ComparisonPlan
    store: ResultStore
    layers: bool = True
    rounds: list[Round] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    tests: list[Comparison] = field(default_factory=list)
    parts: list[Task] = field(default_factory=list)
    paid: dict[PassKey, int] = field(default_factory=dict)
    first: dict[PassKey, int] = field(default_factory=dict)
    over: bool = False

    def __post_init__(self) -> None:
        """Count the items of the tasks, and list the layers that could be tried."""
        self.alive, self.known = dict(self.plan.designs), dict(self.plan.designs)
        self.cache, self.fits = VectorStore.beside(self.store.folder), dict[Design, Fit]()
        self.sizes = [_size(task) for task in self.plan.tasks]
        self.load: Callable[[], Encoder] = cache_once(partial(load_checked, self.plan))
        self.tried = self._layers_of(self.alive)

    @property
    def candidates(self) -> int:
        """The number of designs that could have won: those requested, and each layer that could have been tried."""
        return len(self.plan.designs) + len(self.tried)

    def run(self) -> None:
        """Run all rounds. The vectors stay in `cache`."""
        size = FIRST
        while not self.over:
            self._run(size)
            size *= FACTOR

    def _run(self, size: int) -> None:
        parts = [_part(task, full_size, size) for task, full_size in zip(self.plan.tasks, self.sizes, strict=True)]
        last = all(part is task for part, task in zip(parts, self.plan.tasks, strict=True))
        opening = not self.rounds
        results = self._scored(parts, self.alive, self.tried if opening else {})
        if not self.alive:
            reasons = "; ".join(f"{label} has {why}" for label, why in self.failed.items())
            raise UnmaskError(f"No design has a score on every task: {reasons}")
        if last and len(_tasks_of(results)) < len(parts):
            self._refuse([part for part in parts if part.name not in _tasks_of(results)])
        if not results:
            say(f"{size} items of each task: no design has a score on them, so this round decides nothing")
            return
        if opening:
            results += self._scored(parts, self._chosen_layers(results), {}, _tasks_of(results))
        self._close(parts, results, last)

    def _close(self, parts: list[Task], results: list[Result], last: bool) -> None:
        """Test the designs of a round. If another round follows, drop those that are worse than the leader."""
        before = sum(self.paid.values())
        self.paid |= _tokens(results)
        self.first = self.first or dict(self.paid)
        # before the last round: items are tested, and the rounds share the level; in the last round: the test of `compare`
        level = SIGNIFICANT if last else SIGNIFICANT / self._most_rounds()
        tests = comparisons(results, self.store, over_items=not last, level=level)
        standings = _standings(results, tests)
        # a design is not dropped before all tasks had a say: a task without a score, or without items to test, has none
        everywhere = all(len(tasks) == len(parts) for tasks in (_tasks_of(results), *(set(test.tasks) for test in tests)))
        if not everywhere and not last:
            say("a task has no score, or no items to test, so this round drops no design")
        survivors = [ranked.label for ranked in standings if last or not everywhere or not ranked.worse]
        items = sum(result.n for result in results if result.label == standings[0].label)
        self.rounds.append(Round(items, sum(self.paid.values()) - before, tuple(standings), tuple(survivors)))
        outcome = "all items are used" if last else f"{len(survivors)} of {len(standings)} designs go on"
        say(f"{items} items: {standings[0].label} leads; {outcome}")
        self.alive = {label: self.alive[label] for label in survivors}
        self.parts, self.results, self.tests = parts, results, tests
        self.over = last or (everywhere and len(survivors) == 1)

    def _scored(
        self, parts: Sequence[Task], designs: Mapping[str, Design], linked: Mapping[str, Design], scored: Set[str] = frozenset()
    ) -> list[Result]:
        """Results of the designs. One that lacks a score that others have leaves the race. scored: tasks that others have scores on."""
        if not designs:
            return []
        plan = replace(self.plan, designs=dict(designs), tasks=parts, beside=list(linked.values()))
        results = compare(plan, self.store, cache=self.cache, load=self.load, fits=self.fits)
        scored_tasks = _tasks_of(results) | scored
        by_label = {label: [result for result in results if result.label == label] for label in designs}
        for label in [label for label, scored_results in by_label.items() if len(scored_results) < len(scored_tasks)]:
            lacking = scored_tasks - _tasks_of(by_label.pop(label))
            self._leave(label, [part for part in parts if part.name in lacking])
        return [result for of_design in by_label.values() for result in of_design]

    def _refuse(self, tasks: Sequence[Task]) -> None:
        failure = unscored(replace(self.plan, designs=self.known, tasks=tasks), self.store)[0]
        raise UnmaskError(f"{failure.label} has no score on {failure.task}: {failure.error}")

    def _leave(self, label: str, tasks: Sequence[Task]) -> None:
        failures = iter(unscored(replace(self.plan, designs={label: self.known[label]}, tasks=tasks), self.store))
        self.failed[label] = next((f"no score on {failure.task}: {failure.error}" for failure in failures), "no score")
        self.alive = {name: design for name, design in self.alive.items() if name != label}
        say(f"{label} leaves the race: {self.failed[label]}")

    def _chosen_layers(self, results: Sequence[Result]) -> dict[str, Design]:
        """Let layers of the leading designs join the race; these new designs."""
        labels = {result.system: result.label for result in results}
        order = [self.alive[labels[system]] for system, _ in ranked(results)]
        leading = [design for design in order if self._layers_of({"": design})][:LEADERS]
        designs = self._layers_of({design.name: design for design in leading})
        self.alive |= designs
        self.known |= designs
        return designs

    def _layers_of(self, designs: Mapping[str, Design]) -> dict[str, Design]:
        """These designs at earlier layers than the last, by name; none if no layers should be tried."""
        requested, earlier = {design.name for design in self.plan.designs.values()}, dict[str, Design]()
        for design in designs.values():
            if self.layers and design.layer is None and design.features == "hidden" and not design.needs_head:
                depth = self.load().backbone.depth
                for layer in dict.fromkeys(round(share * depth) for share in DEPTHS):
                    candidate = replace(design, layer=max(1, layer))
                    if layer < depth and candidate.name not in requested:
                        earlier[candidate.name] = candidate
        return earlier

    def _most_rounds(self) -> int:
        largest, count, size = max((size or 0 for size in self.sizes), default=0), 1, FIRST
        while largest > _WHOLE * size:
            count, size = count + 1, size * FACTOR
        return count


def _tasks_of(results: Sequence[Result]) -> set[str]:
    return {result.task for result in results}


def _size(task: Task) -> int | None:
    """The number of items of a task; None for a task that cannot be cut, and so is used whole in every round."""
    if isinstance(task, LocalTask):
        return task.size
    from unmask.tasks.mteb.evaluator import count_items

    return count_items(task)


def _part(task: Task, full_size: int | None, size: int) -> Task:
    """The first `size` items of a task, or the whole task if it has hardly more."""
    if full_size is None or full_size <= _WHOLE * size:
        return task
    return subset(task, size) if isinstance(task, LocalTask) else task.limited(size)


def _tokens(results: Sequence[Result]) -> dict[PassKey, int]:
    """Tokens of each forward pass over all tasks."""
    by_task: dict[tuple[PassKey, str], int] = {}
    for result in results:
        design = Design.parse(result.design)
        by_prompt = result.tokens_by_prompt or dict.fromkeys(design.prompts, result.tokens)
        by_task |= {((design.attention, prompt), result.task): tokens for prompt, tokens in by_prompt.items()}
    totals: dict[PassKey, int] = {}
    for (key, _), tokens in by_task.items():
        totals[key] = totals.get(key, 0) + tokens
    return totals


def _standings(results: Sequence[Result], tests: Sequence[Comparison]) -> list[RoundScore]:
    """Designs by their mean score, best first, each with its test against the leader."""
    labels = {result.system: result.label for result in results}
    (leader, best), *rest = ranked(results)
    standings = [RoundScore(labels[leader], best, 0.0)]
    for system, score in rest:
        test = next((test for test in tests if {test.a, test.b} == {leader, system}), None)
        if test is None:
            standings.append(RoundScore(labels[system], score, best - score))
            continue
        outcome = test.seen_from(leader)
        standings.append(
            RoundScore(labels[system], score, best - score, outcome.interval, outcome.corrected_p, worse=test.winner == leader)
        )
    return standings


@dataclass(frozen=True)
class Recommendation:
    """The design to use, and why.

    score: its mean main score over the tasks. items: what it is measured on. held_out: whether these items had no part in the choice. If
    they had, the interval is widened (Bonferroni over the candidates), and the score may be too high. chosen_on: items of the last round.
    all_items: whether the last round used all items that there were to choose on. reasons: how the design compares with the others of the
    last round, in the same sentences as in `compare`. ties: designs not significantly worse. failed: designs without a score, and
    why. tokens_a_text: the cost of the design. tokens: total tokens computed. grid_tokens: tokens of an exhaustive comparison.
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
    recommendation = _recommendation(plan.tasks, race, lead(order, race.tests, race.results), parts[1] if parts else None)
    race.cache.forget()
    return recommendation


def _halves(tasks: Sequence[Task]) -> tuple[list[Task], list[Task]] | None:
    """The tasks on the items to choose on, and on held-out items; None if a task is too small for that, or a task of mteb."""
    local = [task for task in tasks if isinstance(task, LocalTask) and task.size >= LEAST]
    parts = [halves(task) for task in local]
    can_rank = not any(KINDS[half.kind].nothing_to_tell(half.data) for part in parts for half in part)
    return ([first for first, _ in parts], [second for _, second in parts]) if can_rank and len(local) == len(tasks) else None


def _recommendation(tasks: Sequence[Task], race: Race, ranking: Lead, held_out: Sequence[Task] | None) -> Recommendation:
    labels = {result.system: result.label for result in race.results}
    label = labels[ranking.leader]
    own_results = [result for result in race.results if result.label == label]
    by_task = dict(zip((part.name for part in race.parts), zip(race.parts, tasks, strict=True), strict=True))
    all_passes = sum(race.first.values()) / max(1, sum(race.first[key] for key in pass_keys(race.known[label])))
    judged = _held_out_results(race, label, held_out) if held_out else []
    level = 1 - SIGNIFICANT / (1 if judged else race.candidates)
    return Recommendation(
        design=race.known[label],
        label=label,
        score=mean(result.main_score for result in judged or own_results),
        interval=_interval(judged or own_results, race.store, level),
        items=sum(result.n for result in judged or own_results),
        held_out=bool(judged),
        chosen_on=race.rounds[-1].items,
        all_items=all(part is task for part, task in zip(race.parts, race.plan.tasks, strict=True)),
        candidates=race.candidates,
        reasons=reasons(ranking, race.results),
        ties=tuple(labels[system] for system in ranking.tied),
        tokens_a_text=ranking.tokens[ranking.leader],
        tokens=sum(race.paid.values()) + sum(result.tokens for result in judged),
        grid_tokens=round(all_passes * sum(_whole_tokens(result, *by_task[result.task]) for result in own_results)),
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


def _interval(results: Sequence[Result], store: ResultStore, level: float) -> Bounds | None:
    """The interval of the mean score at a level."""
    item_sets = [store.items(result) for result in results]
    intervals = [bounds for items in item_sets if items and items.n > 1 and (bounds := score_interval(items, level))]
    return mean_interval([result.main_score for result in results], intervals) if len(intervals) == len(results) else None


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
