"""Racing: all designs on the first items of each task, and those that a paired test finds worse than the leader are dropped.

The others go on, on four times as many items, until one is left or all items are used. No design is dropped for anything but a test that
it lost. Items are nested, so a round computes only what is new. Layers of the leading designs join after the first round: their vectors
were computed in the same forward passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache as cache_once
from functools import partial

from unmask.designs.design import Design
from unmask.encoding.features import Fit
from unmask.encoding.vector_store import VectorStore
from unmask.errors import UnmaskError
from unmask.evaluation.compare import ComparisonPlan, Loaded, compare, load_checked
from unmask.evaluation.results import Result, ResultStore
from unmask.evaluation.verdict import Comparison, comparisons, ranked
from unmask.statistics.intervals import Bounds
from unmask.statistics.paired import SIGNIFICANT
from unmask.tasks.subsets import subset
from unmask.tasks.task import LocalTask, Task

FIRST = 40
"""Items of each task in the first round, if it has as many."""

FACTOR = 4
"""How many times as many items the next round has."""

DEPTHS = (0.5, 0.75, 0.9)
"""Layers that are tried of the leading designs, as shares of the model's depth."""

LEADERS = 3
"""Designs whose layers are tried."""

_WHOLE = 1.5  # a task with no more than so many times the items of a round is used whole

PassKey = tuple[str, str]
"""An attention and a prompt: what designs share their forward passes by."""


@dataclass(frozen=True)
class RoundScore:
    """A design after a round.

    score: mean main score of the tasks; behind: the leader less it, with interval and p corrected over all pairs of the round (none
    where there was nothing to test with); worse: the test told it from the leader. The level of a round that others follow is 0.05 divided
    by the number of rounds.
    """

    label: str
    score: float
    behind: float
    interval: Bounds | None = None
    p: float | None = None
    worse: bool = False


@dataclass(frozen=True)
class Round:
    """One round: items of all tasks, tokens that it computed, and how the designs stood, best first. kept: those that went on."""

    items: int
    tokens: int
    standings: tuple[RoundScore, ...]
    kept: tuple[str, ...]


def pass_key(design: Design) -> PassKey:
    """What a design shares its forward passes by."""
    return design.attention, design.prompt


@dataclass
class Race:
    """The designs that are left, and what the rounds so far gave.

    alive: designs that are left; known: all that were scored; failed: those that left for want of a score, and why; results, tests,
    parts: of the last round that said something; paid: tokens of each forward pass; first: those of the first round.
    """

    plan: ComparisonPlan
    store: ResultStore
    say: Callable[[str], None]
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
        """Look at the tasks, and at the model's depth if layers are to be tried."""
        self.alive, self.known = dict(self.plan.designs), dict(self.plan.designs)
        self.cache, self.fits = VectorStore.beside(self.store.folder), dict[Design, Fit]()
        self.sizes = [_size(task) for task in self.plan.tasks]
        self.loaded: Callable[[], Loaded] = cache_once(partial(load_checked, self.plan, self.say))
        self.tried = self._layers_of(self.alive)

    @property
    def candidates(self) -> int:
        """Designs that could have won: those asked for, and each layer that could have been tried."""
        return len(self.plan.designs) + len(self.tried)

    def run(self) -> None:
        """Round after round, to the end."""
        size = FIRST
        while not self.over:
            self._run(size)
            size *= FACTOR
        self.cache.forget()

    def _run(self, size: int) -> None:
        parts = [_part(task, whole, size) for task, whole in zip(self.plan.tasks, self.sizes, strict=True)]
        last = all(part is task for part, task in zip(parts, self.plan.tasks, strict=True))
        opening = not self.rounds
        results = self._scored(parts, self.alive, self.tried if opening else {}, last)
        if not results:
            self.say(f"{size} items of each task: no design has a score on them, so that this round says nothing")
            return
        if opening:
            results += self._scored(parts, self._chosen_layers(results), {}, last)
        self._close(parts, results, last)

    def _close(self, parts: list[Task], results: list[Result], last: bool) -> None:
        """Test the designs of a round, and drop those that are worse than the leader, if there is another round."""
        before = sum(self.paid.values())
        self.paid |= _tokens(results)
        self.first = self.first or dict(self.paid)
        # with items left the level is shared by the rounds, and the items are asked; at the end, what `compare` asks
        level = SIGNIFICANT if last else SIGNIFICANT / self._most_rounds()
        tests = comparisons(results, self.store, over_items=not last, level=level)
        standings = _standings(results, tests)
        kept = [one.label for one in standings if last or not one.worse]
        items = sum(result.n for result in results if result.label == standings[0].label)
        self.rounds.append(Round(items, sum(self.paid.values()) - before, tuple(standings), tuple(kept)))
        went = "all items are used" if last else f"{len(kept)} of {len(standings)} designs go on"
        self.say(f"{items} items: {standings[0].label} leads; {went}")
        self.alive = {label: self.alive[label] for label in kept}
        self.parts, self.results, self.tests = parts, results, tests
        self.over = last or len(kept) == 1

    def _scored(
        self, parts: Sequence[Task], designs: Mapping[str, Design], beside: Mapping[str, Design], last: bool
    ) -> list[Result]:
        """Results of the designs that have one on each part on which any design has one; the others leave."""
        if not designs:
            return []
        plan = replace(self.plan, designs=dict(designs), tasks=parts, beside=list(beside.values()))
        results = compare(plan, self.store, self.say, cache=self.cache, loaded=self.loaded, fits=self.fits)
        telling = {result.task for result in results}
        if last and designs is self.alive and len(telling) < len(parts):
            self._refuse({part.name for part in parts} - telling)
        own = {label: [result for result in results if result.label == label] for label in designs}
        for label in [label for label, found in own.items() if telling and len(found) < len(telling)]:
            self._leave(label, telling - {result.task for result in own.pop(label)})
        return [result for found in own.values() for result in found]

    def _refuse(self, tasks: set[str]) -> None:
        failure = next(one for one in self.store.failures if one.task in tasks)
        raise UnmaskError(f"{failure.label} has no score on {failure.task}: {failure.error}")

    def _leave(self, label: str, tasks: set[str]) -> None:
        design = self.known[label].name
        failures = (one for one in self.store.failures if one.design == design and one.task in tasks)
        self.failed[label] = next((f"no score on {one.task}: {one.error}" for one in failures), "no score")
        self.alive = {other: design for other, design in self.alive.items() if other != label}
        self.say(f"{label} leaves: {self.failed[label]}")

    def _chosen_layers(self, results: Sequence[Result]) -> dict[str, Design]:
        """Layers of the designs that lead, which join the race."""
        labels = {result.system: result.label for result in results}
        order = [self.alive[labels[system]] for system, _ in ranked(results)]
        leading = [design for design in order if self._layers_of({"": design})][:LEADERS]
        chosen = self._layers_of({design.name: design for design in leading})
        self.alive |= chosen
        self.known |= chosen
        return chosen

    def _layers_of(self, designs: Mapping[str, Design]) -> dict[str, Design]:
        """What these designs are if they read an earlier layer than the last, by name; nothing if no layers are to be tried."""
        asked, found = {design.name for design in self.plan.designs.values()}, dict[str, Design]()
        for design in designs.values():
            if self.layers and design.layer is None and design.features == "hidden" and not design.needs_head:
                depth = self.loaded()[0].depth
                for layer in dict.fromkeys(round(share * depth) for share in DEPTHS):
                    one = replace(design, layer=max(1, layer))
                    if layer < depth and one.name not in asked:
                        found[one.name] = one
        return found

    def _most_rounds(self) -> int:
        largest, count, size = max((size or 0 for size in self.sizes), default=0), 1, FIRST
        while largest > _WHOLE * size:
            count, size = count + 1, size * FACTOR
        return count


def _size(task: Task) -> int | None:
    """Items of a task; None for one that is used whole in every round, since it cannot be cut."""
    if isinstance(task, LocalTask):
        return task.size
    from unmask.tasks.mteb.evaluator import count_items

    return count_items(task)


def _part(task: Task, whole: int | None, size: int) -> Task:
    """So many items of a task, or the task itself if it has hardly more."""
    if whole is None or whole <= _WHOLE * size:
        return task
    return subset(task, size) if isinstance(task, LocalTask) else task.limited(size)


def _tokens(results: Sequence[Result]) -> dict[PassKey, int]:
    """Tokens of each forward pass, over all tasks."""
    by_task = {(pass_key(Design.parse(result.design)), result.task): result.tokens for result in results}
    found: dict[PassKey, int] = {}
    for (where, _), tokens in by_task.items():
        found[where] = found.get(where, 0) + tokens
    return found


def _standings(results: Sequence[Result], tests: Sequence[Comparison]) -> list[RoundScore]:
    """Designs by their mean score, each with its test against the first."""
    labels = {result.system: result.label for result in results}
    (leader, best), *rest = ranked(results)
    found = [RoundScore(labels[leader], best, 0.0)]
    for system, score in rest:
        test = next((one for one in tests if {one.a, one.b} == {leader, system}), None)
        if test is None:
            found.append(RoundScore(labels[system], score, best - score))
            continue
        outcome = test.seen_from(leader)
        p = outcome.p if outcome.p_holm is None else outcome.p_holm
        found.append(RoundScore(labels[system], score, best - score, outcome.interval, p, worse=test.better == leader))
    return found
