"""Recommending the best design for some tasks, without scoring every design on every item.

Forward passes cost time; one pass over a text serves all designs with its attention and prompt, at all layers. So designs race in rounds,
each on four times as many items as the round before. All designs start on the first items of each task. After each round, designs that a
paired test on all tasks finds worse than the leader are dropped; no design is dropped for any other reason. The race ends when one design
is left or all items are used. The items of a round contain those of the round before, so a round computes only what is new. Layers of the
leading designs join after the first round: their vectors were computed in the same forward passes. (The field's name: Maron and Moore,
Hoeffding races, 1994.) A task of mteb is used whole in every round.

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
from unmask.encoding.vector_cache import VectorCache
from unmask.errors import UnmaskError
from unmask.evaluation.leader import lead, reasons
from unmask.evaluation.results import Result, ResultStore
from unmask.evaluation.scoring import ScoringPlan, failures_of, load_checked, score_designs
from unmask.evaluation.verdict import SystemTest, comparisons, rank_systems
from unmask.io.terminal import say
from unmask.statistics.intervals import Bounds, mean_interval, score_interval
from unmask.statistics.paired import SIGNIFICANT
from unmask.tasks.kinds import KINDS, is_of_words
from unmask.tasks.task import LocalTask, Task

FIRST = 40
"""Items of each task in the first round."""

FACTOR = 4
"""By how much the number of items grows from round to round."""

DEPTHS = (0.5, 0.75, 0.9)
"""The layers of the leading designs that are tried, as shares of the model's depth."""

LEADERS = 3
"""The number of designs whose layers are tried."""

LEAST = 2 * FIRST
"""Items that every task needs, so that half of them are held out."""

_UNCUT = 1.5  # a task with at most this many times the items of a round is not cut

PassKey = tuple[str, str]
"""Attention and prompt of a forward pass."""


@dataclass(frozen=True)
class RoundScore:
    """A design after a round."""

    label: str
    score: float
    """Its mean main score over the tasks."""
    behind: float
    """The leader's score minus its own, with `interval` and `p`, corrected over all pairs of the round (None without items to test)."""
    interval: Bounds | None = None
    p: float | None = None
    worse: bool = False
    """Whether the test found it worse than the leader. The last round tests at the level 0.05, every other round at 0.05 divided by the
    number of rounds."""


@dataclass(frozen=True)
class Round:
    """One round of the race."""

    items: int
    """Over all tasks."""
    tokens: int
    """That it computed."""
    ranking: tuple[RoundScore, ...]
    """The designs, best first."""
    survivors: tuple[str, ...]


@dataclass
class Race:
    """The designs that are still in the race, and the findings of the rounds so far."""

    plan: ScoringPlan
    store: ResultStore
    layers: bool = True
    rounds: list[Round] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Designs that left because they have no score, and why."""
    results: list[Result] = field(default_factory=list)
    """Of the last round with scores, with its tests."""
    tests: list[SystemTest] = field(default_factory=list)
    tokens: dict[PassKey, int] = field(default_factory=dict)
    """That each forward pass computed."""
    used_all_items: bool = False

    def __post_init__(self) -> None:
        """List the layers that could be tried."""
        self.alive, self.designs = dict(self.plan.designs), dict(self.plan.designs)
        self.cache, self.fits = VectorCache.in_folder(self.store.folder), dict[Design, Fit]()
        self.load: Callable[[], Encoder] = cache_once(partial(load_checked, self.plan))
        self.layer_designs = self._layers_of(self.alive)
        """Each layer that could be tried. The designs that could have won are the plan's and these."""

    def run(self) -> None:
        """Run all rounds. The vectors stay in `cache`."""
        size, is_over = FIRST, False
        while not is_over:
            is_over = self._run_round(size)
            size *= FACTOR

    def _run_round(self, size: int) -> bool:
        """Score the designs on `size` items of each task. Returns whether the race is over."""
        tasks = [
            task.subset(size) if isinstance(task, LocalTask) and task.size > _UNCUT * size else task for task in self.plan.tasks
        ]
        self.used_all_items = all(part is task for part, task in zip(tasks, self.plan.tasks, strict=True))
        is_first = not self.rounds
        results = self._score(tasks, self.alive, self.layer_designs if is_first else {})
        if not self.alive:
            reasons = "; ".join(f"{label} has {why}" for label, why in self.failed.items())
            raise UnmaskError(f"No design has a score on every task: {reasons}")
        if self.used_all_items and (unscored_tasks := [task for task in tasks if task.name not in _tasks_of(results)]):
            raise _no_score_error(replace(self.plan, designs=self.designs, tasks=unscored_tasks), self.store)
        if not results:
            say(f"{size} items of each task: no design has a score on them, so this round decides nothing")
            return False
        if is_first:
            results += self._score(tasks, self._add_layers(results), {}, _tasks_of(results))
        return self._close_round(len(tasks), results)

    def _close_round(self, task_count: int, results: list[Result]) -> bool:
        """Test the designs of a round. If another round follows, drop those that are worse than the leader."""
        before, is_last = sum(self.tokens.values()), self.used_all_items
        self.tokens |= _tokens_by_pass(results)
        # before the last round: items are tested, and the rounds share the level; in the last round: the test of `score_designs`
        level = SIGNIFICANT if is_last else SIGNIFICANT / self._most_rounds()
        tests = comparisons(results, self.store, over_items=not is_last, level=level)
        ranking = _rank_with_tests(results, tests)
        # a design is not dropped before all tasks had a say: a task without a score, or without items to test, has none
        is_complete = all(len(tasks) == task_count for tasks in (_tasks_of(results), *(set(test.tasks) for test in tests)))
        if not is_complete and not is_last:
            say("a task has no score, or no items to test, so this round drops no design")
        survivors = [design.label for design in ranking if is_last or not is_complete or not design.worse]
        items = sum(result.n for result in results if result.label == ranking[0].label)
        self.rounds.append(Round(items, sum(self.tokens.values()) - before, tuple(ranking), tuple(survivors)))
        outcome = "all items are used" if is_last else f"{len(survivors)} of {len(ranking)} designs go on"
        say(f"{items} items: {ranking[0].label} leads; {outcome}")
        self.alive = {label: self.alive[label] for label in survivors}
        self.results, self.tests = results, tests
        return is_last or (is_complete and len(survivors) == 1)

    def _score(
        self, tasks: Sequence[Task], designs: Mapping[str, Design], linked: Mapping[str, Design], scored: Set[str] = frozenset()
    ) -> list[Result]:
        """Results of the designs. One that lacks a score that others have leaves the race. scored: tasks that others have scores on."""
        if not designs:
            return []
        plan = replace(self.plan, designs=dict(designs), tasks=tasks, linked=list(linked.values()))
        results = score_designs(plan, self.store, cache=self.cache, load=self.load, fits=self.fits)
        scored = _tasks_of(results) | scored
        for label in list(designs):
            if lacking := scored - _tasks_of([result for result in results if result.label == label]):
                of_design = replace(
                    plan, designs={label: designs[label]}, tasks=[task for task in tasks if task.name in lacking]
                )
                self.failed[label] = str(_no_score_error(of_design, self.store)).removeprefix(f"{label} has ")
                del self.alive[label]
                say(f"{label} leaves the race: {self.failed[label]}")
        return [result for result in results if result.label in self.alive]

    def _add_layers(self, results: Sequence[Result]) -> dict[str, Design]:
        """Let layers of the leading designs join the race; these new designs."""
        labels = {result.system: result.label for result in results}
        order = [self.alive[labels[system]] for system, _ in rank_systems(results)]
        leading = [design for design in order if self._layers_of({"": design})][:LEADERS]
        designs = self._layers_of({design.name: design for design in leading})
        self.alive |= designs
        self.designs |= designs
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
        largest = max((task.size for task in self.plan.tasks if isinstance(task, LocalTask)), default=0)
        count, size = 1, FIRST
        while largest > _UNCUT * size:
            count, size = count + 1, size * FACTOR
        return count


def _tasks_of(results: Sequence[Result]) -> set[str]:
    return {result.task for result in results}


def _no_score_error(plan: ScoringPlan, store: ResultStore) -> UnmaskError:
    failure = failures_of(plan, store)[0]
    return UnmaskError(f"{failure.label} has no score on {failure.task}: {failure.error}")


def _tokens_by_pass(results: Sequence[Result]) -> dict[PassKey, int]:
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


def _rank_with_tests(results: Sequence[Result], tests: Sequence[SystemTest]) -> list[RoundScore]:
    """Designs by their mean score, best first, each with its test against the leader."""
    labels = {result.system: result.label for result in results}
    (leader, best), *rest = rank_systems(results)
    ranking = [RoundScore(labels[leader], best, 0.0)]
    for system, score in rest:
        test = next((test for test in tests if {test.a, test.b} == {leader, system}), None)
        tested = {}
        if test is not None:
            outcome = test.seen_from(leader)
            tested = {"interval": outcome.interval, "p": outcome.corrected_p, "worse": test.winner == leader}
        ranking.append(RoundScore(labels[system], score, best - score, **tested))  # type: ignore[arg-type]
    return ranking


@dataclass(frozen=True)
class Recommendation:
    """The design to use, and why."""

    design: Design
    label: str
    score: float
    """Its mean main score over the tasks."""
    interval: Bounds | None
    items: int
    """What the score is measured on."""
    held_out: bool
    """Whether these items had no part in the choice. If they had, the interval is widened (Bonferroni over the candidates), and the score
    may be too high."""
    chosen_on: int
    """Items of the last round."""
    all_items: bool
    """Whether the last round used all items that there were to choose on."""
    candidates: int
    reasons: tuple[str, ...]
    """How the design compares with the others of the last round, in the same sentences as in `score_designs`."""
    ties: tuple[str, ...]
    """Designs not significantly worse."""
    tokens_a_text: float
    tokens: int
    """Computed by the whole race."""
    rounds: tuple[Round, ...]
    failed: Mapping[str, str]
    """Designs without a score, and why."""

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {**asdict(self), "design": self.design.name}


def recommend(plan: ScoringPlan, store: ResultStore, *, layers: bool = True) -> Recommendation:
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
    halves = _halves(plan.tasks)
    race = Race(replace(plan, tasks=halves[0]) if halves else plan, store, layers)
    race.run()
    ranking = lead(rank_systems(race.results), race.tests, race.results)
    labels = {result.system: result.label for result in race.results}
    label = labels[ranking.leader]
    if halves:
        final_plan = replace(plan, designs={label: race.designs[label]}, tasks=halves[1])
        results = score_designs(final_plan, store, cache=race.cache, load=race.load, fits=race.fits)
        if len(results) < len(plan.tasks):
            raise _no_score_error(final_plan, store)
    else:
        results = [result for result in race.results if result.label == label]
    race.cache.remove()
    candidates = len(plan.designs) + len(race.layer_designs)
    level = 1 - SIGNIFICANT / (1 if halves else candidates)
    item_sets = [store.items(result) for result in results]
    intervals = [bounds for items in item_sets if items and items.n > 1 and (bounds := score_interval(items, level))]
    return Recommendation(
        design=race.designs[label],
        label=label,
        score=mean(result.main_score for result in results),
        interval=mean_interval([result.main_score for result in results], intervals)
        if len(intervals) == len(results)
        else None,
        items=sum(result.n for result in results),
        held_out=halves is not None,
        chosen_on=race.rounds[-1].items,
        all_items=race.used_all_items,
        candidates=candidates,
        reasons=reasons(ranking, race.results),
        ties=tuple(labels[system] for system in ranking.tied),
        tokens_a_text=ranking.tokens[ranking.leader],
        tokens=sum(race.tokens.values()) + (sum(result.tokens for result in results) if halves else 0),
        rounds=tuple(race.rounds),
        failed=dict(race.failed),
    )


def _halves(tasks: Sequence[Task]) -> tuple[list[Task], list[Task]] | None:
    """The tasks on the items to choose on, and on held-out items; None if a task is too small for that, or a task of mteb."""
    halves = [task.halves() for task in tasks if isinstance(task, LocalTask) and task.size >= LEAST]
    if len(halves) < len(tasks) or any(KINDS[part.kind].nothing_to_tell(part.data) for pair in halves for part in pair):
        return None
    return [first for first, _ in halves], [second for _, second in halves]
