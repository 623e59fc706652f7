"""The leading design: which designs tie with it, which of them is the cheapest, and how much data would separate them.

All tables, pages and sentences about the best designs use `lead`, so they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from statistics import NormalDist
from typing import Literal

from unmask.errors import UnmaskError
from unmask.evaluation.results import SENTENCE_TRANSFORMERS, Result, ResultStore
from unmask.evaluation.seed_means import runs_of
from unmask.evaluation.verdict import (
    System,
    SystemTest,
    comparisons,
    display_name,
    join_reasons,
    rank_systems,
    tokens_per_text,
    unscored_tasks,
)
from unmask.io.terminal import counted, enumeration
from unmask.statistics.paired import DECIMALS, PairedTest, fewest_tasks
from unmask.tasks.kinds import KINDS

POWER = 0.8
"""The chance of finding a difference, when planning how many items or tasks to collect."""

CLEARLY = 0.8
"""A design is clearly cheaper than another if it computes less than this share of the other's tokens."""

_NAMED = 4  # designs that a sentence names; it counts the others
_MOST_TASKS, _MOST_ITEMS = 1000, 1_000_000  # a difference that needs more is too small to show


@dataclass(frozen=True)
class Lead:
    """The leader of some designs, and how the others compare with it."""

    order: tuple[tuple[System, float], ...]
    """Systems with their scores, best first; with equal scores, the cheapest first."""
    tests: dict[System, SystemTest]
    """The test of each other system against the leader, best first; empty without a test."""
    cheapest: System
    """The system with the fewest tokens per text among the leader and those that tie with it."""
    tokens: dict[System, float]
    """Tokens per text."""
    needed: str | None
    """A sentence: how much data would tell the leader from the best of those that tie with it."""

    @property
    def leader(self) -> System:
        """The design with the best score."""
        return self.order[0][0]

    @property
    def tied(self) -> tuple[System, ...]:
        """Designs that do not differ significantly from the leader."""
        return tuple(system for system, test in self.tests.items() if test.winner is None)

    @property
    def worse(self) -> tuple[System, ...]:
        """Designs that the leader is better than."""
        return tuple(system for system, test in self.tests.items() if test.winner == self.leader)

    @property
    def ahead(self) -> tuple[System, ...]:
        """Designs that are better than the leader where it was tested: tasks without items count for the mean alone."""
        return tuple(system for system, test in self.tests.items() if test.winner == system)

    @property
    def cheaper(self) -> bool:
        """Whether the cheapest of the tied computes clearly fewer tokens than the leader."""
        return self.tokens[self.cheapest] < CLEARLY * self.tokens[self.leader]

    def against(self, system: System) -> PairedTest:
        """The test of the leader (as a) against another."""
        return self.tests[system].seen_from(self.leader)


@dataclass(frozen=True)
class ReferenceComparison:
    """A reference model (a trained sentence encoder) compared with the leading design, on the same tasks."""

    system: System
    score: float
    leader_score: float
    test: PairedTest | None
    """The leader (as a) against the reference; None if the two were not tested."""

    @property
    def relation(self) -> Literal["better", "tied", "worse", "untested"]:
        """What the test says of the reference."""
        if self.test is None:
            return "untested"
        return {"a": "worse", "b": "better", None: "tied"}[self.test.winner]  # type: ignore[return-value]

    @property
    def is_higher(self) -> bool:
        """Whether the reference has the higher score, significant or not."""
        return round(self.score, DECIMALS) > round(self.leader_score, DECIMALS)


@dataclass(frozen=True)
class KindLeader:
    """The best design for a kind of task."""

    kind: str
    system: System
    score: float
    reasons: tuple[str, ...]
    """Short sentences that say why."""
    tied: tuple[System, ...] = ()
    """Designs that may be as good."""
    worse: tuple[System, ...] = ()
    """Designs that it is better than."""
    is_clear: bool = False
    """Whether the tests show it to be better than every design that it was tested against."""
    references: tuple[ReferenceComparison, ...] = ()
    """Reference models that were scored on all of its tasks."""


def lead(order: Sequence[tuple[System, float]], tests: Sequence[SystemTest], results: Sequence[Result]) -> Lead:
    """Compare the first of some systems with all others. `order` is best first."""
    leader = order[0][0]
    tests_of_leader = {test.b if test.a == leader else test.a: test for test in tests if leader in (test.a, test.b)}
    against = {system: tests_of_leader[system] for system, _ in order if system in tests_of_leader}
    tokens = {system: tokens_per_text(results, system) for system, _ in order}
    tied = [system for system, test in against.items() if test.winner is None]
    cheapest = min([leader, *tied], key=lambda system: tokens[system])
    needed = data_needed(leader, tied[0], against[tied[0]], results) if tied else None
    return Lead(tuple(order), against, cheapest, tokens, needed)


def kind_leaders(results: Sequence[Result], store: ResultStore, baseline: System | None = None) -> list[KindLeader]:
    """The best design for each kind of task, with the reasons, and the designs that tie with it.

    Reference models (of sentence-transformers) are not candidates: the question is how to use the LLM. But the leader is compared with
    those that were scored on the same tasks. Each kind is tested separately, over all pairs, or only against the baseline if there is
    one. Raises UnmaskError for a kind without a task that all designs were scored on.
    """
    candidates = [result for result in results if result.design != SENTENCE_TRANSFORMERS]
    leaders = []
    for kind in dict.fromkeys(result.kind for result in candidates):
        of_kind = [result for result in candidates if result.kind == kind]
        order = rank_systems(of_kind)
        if not order:
            raise UnmaskError(
                f"No {kind} task was scored for every design: {join_reasons(unscored_tasks(of_kind))}. Score them too."
            )
        tasks = {result.task for result in of_kind}
        common = tasks - set(unscored_tasks(of_kind))
        references = [
            result
            for result in results
            if result.kind == kind and result.design == SENTENCE_TRANSFORMERS and result.task in tasks
        ]
        scored = {result.system: {row.task for row in references if row.system == result.system} for result in references}
        rows = [*of_kind, *(result for result in references if common <= scored[result.system])]
        tests = comparisons(rows, store, baseline if baseline in dict(order) else None)
        ranking = lead(order, tests, of_kind)
        compared = compare_references(ranking, rank_systems(rows), tests)
        sentences = [(comparison.is_higher, reference_sentence(comparison, rows)) for comparison in compared]
        leaders.append(
            KindLeader(
                kind,
                system=ranking.leader,
                score=order[0][1],
                reasons=(
                    *(sentence for is_higher, sentence in sentences if is_higher),
                    *reasons(ranking, of_kind, f" on {_title(kind)} tasks"),
                    *(sentence for is_higher, sentence in sentences if not is_higher),
                ),
                tied=ranking.tied,
                worse=ranking.worse,
                is_clear=bool(ranking.worse) and not ranking.tied and not ranking.ahead,
                references=compared,
            )
        )
    return leaders


def compare_references(
    ranking: Lead, order: Sequence[tuple[System, float]], tests: Sequence[SystemTest]
) -> tuple[ReferenceComparison, ...]:
    """The leader against each system of an order that is not its candidate, best first; tests: for every pair."""
    candidates = dict(ranking.order)
    leader = ranking.leader
    test_of = {test.b if test.a == leader else test.a: test.seen_from(leader) for test in tests if leader in (test.a, test.b)}
    return tuple(
        ReferenceComparison(system, score, dict(order)[leader], test_of.get(system))
        for system, score in order
        if system not in candidates
    )


def reference_sentence(reference: ReferenceComparison, results: Sequence[Result]) -> str:
    """A sentence that says how a reference compares with the leader."""
    name, score = display_name(reference.system, results), points(reference.score)
    if reference.test is None:
        return f"The reference {name} scores {score}; the difference was not tested."
    low, high = reference.test.interval
    distance = points(abs(reference.test.difference))
    if distance == "0.0":
        difference = f"same score {_interval(reference.test)}"
    elif reference.test.difference > 0:
        difference = f"{distance} behind {_interval(reference.test)}"
    else:
        difference = f"{distance} ahead [{points(-high)}, {points(-low)}]"
    if reference.relation == "better":
        return f"The reference {name} is better: {score}, {difference}."
    if reference.relation == "worse":
        return f"Better than the reference {name}: {score}, {difference}."
    return f"Tied with the reference {name}: {score}, {difference}."


def kinds_sentence(leader: System, kinds: Sequence[KindLeader]) -> str:
    """A sentence that says on which kinds of task the overall leader is better than the other designs, and on which it is not.

    A mean may be ahead because of one kind alone. Empty for a single kind of task.
    """
    if len(kinds) < 2:
        return ""
    outcomes = ("better than every other design on", "tied with others on", "worse than the best design on", "undecided on")
    titles: dict[str, list[str]] = {outcome: [] for outcome in outcomes}
    for kind in kinds:
        if kind.system == leader and kind.is_clear:
            outcome = outcomes[0]
        elif (kind.system == leader and kind.tied) or leader in kind.tied:
            outcome = outcomes[1]
        else:
            outcome = outcomes[2 if leader in kind.worse else 3]
        titles[outcome].append(_title(kind.kind))
    clauses = [f"{outcome} {enumeration(names)}" for outcome, names in titles.items() if names]
    return f"By kind of task, it is {enumeration(clauses, '; ', '; and ')}."


def _title(kind: str) -> str:
    return (KINDS[kind].title if kind in KINDS else "") or kind


def reasons(ranking: Lead, results: Sequence[Result], on: str = "") -> tuple[str, ...]:
    """Why the leader is recommended, in short sentences. on: words that say which tasks a cost is of."""
    rest = ranking.order[1:]
    if not rest:
        return ("It is the only design that was compared.",)
    if not ranking.tests:
        (_, top), (runner_up, second) = ranking.order[:2]
        name = display_name(runner_up, results)
        ahead = f"Same score as {name}." if points(top) == points(second) else f"{points(top - second)} ahead of {name}."
        return (ahead, "Not tested: no task has scores of its single items.")
    facts = []
    if ranking.tied:
        tied = []
        for system in ranking.tied:
            distance = points(ranking.against(system).difference)
            behind = "same score" if distance == "0.0" else f"{distance} behind"
            tied.append(f"{display_name(system, results)} ({behind} {_interval(ranking.against(system))})")
        facts.append(f"Tied with {_first_few(tied)}.")
    if ranking.worse:
        names = [display_name(system, results) for system in ranking.worse]
        losers = f"the other {len(names)} designs" if ranking.tied and len(names) > 1 else _first_few(names)
        facts.append(f"Better than {'every other design' if len(names) == len(rest) else losers}.")
    if ranking.tied:
        facts += [cheapest_sentence(ranking, results, on), *([ranking.needed] if ranking.needed else [])]
    elif ranking.worse:
        outcome = ranking.against(ranking.worse[0])
        ahead = f"{points(outcome.difference)} ahead of {names[0]} {_interval(outcome)}"
        facts.append(f"{ahead}; {outcome.effect_name}: {outcome.effect + 0.0:.2f}.")
    if ranking.ahead:
        facts.append(f"Worse than {_first_few([display_name(ahead, results) for ahead in ranking.ahead])} where it was tested.")
    test = next(iter(ranking.tests.values()))
    data = counted(len(test.tasks), "task") + (f" of {test.outcome.n} items" if test.outcome.unit == "items" else "")
    facts.append(f"Tested on {data}; level {test.level:.3g}; p and intervals: Holm over {test.family}.")
    if untested := len(rest) - len(ranking.tests):
        facts.append(f"Not tested against it: {counted(untested, 'other design')}.")
    if test.left_out:
        facts.append(f"Left out: {join_reasons(test.left_out)}.")
    return tuple(facts)


def _first_few(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _interval(outcome: PairedTest) -> str:
    low, high = (points(bound) for bound in outcome.interval)
    return f"[{low}, {high}]"


def cheapest_sentence(ranking: Lead, results: Sequence[Result], on: str = "") -> str:
    """A sentence that says which of the tied designs costs least. on: as in `reasons`."""
    tokens, leader = ranking.tokens[ranking.cheapest], display_name(ranking.leader, results)
    dearer = [system for system in ranking.tied if ranking.tokens[system] > tokens / CLEARLY]
    if ranking.cheapest == ranking.leader and len(dearer) == len(ranking.tied):
        return f"The cheapest of these is {leader} itself: {tokens:.0f} tokens per text{on}."
    if not ranking.cheaper:
        return f"None of these is clearly cheaper than {leader}: {ranking.tokens[ranking.leader]:.0f} tokens per text{on}."
    behind = points(ranking.against(ranking.cheapest).difference)
    name = display_name(ranking.cheapest, results) + (f" ({behind} behind)" if behind != "0.0" else "")
    return f"The cheapest of these is {name}: {tokens:.0f} tokens per text{on} instead of {ranking.tokens[ranking.leader]:.0f}."


def data_needed(first: System, second: System, test: SystemTest, results: Sequence[Result]) -> str | None:
    """A sentence: about how many items or tasks would separate two designs. None if that cannot be estimated.

    It is for planning, not evidence: it treats the observed difference as the true one. Items: a normal test of the mean difference.
    Tasks: the sample size of the signed-rank test by Noether (1987), for normal differences.
    """
    outcome, tests_made = test.outcome, int(test.family.split(" ", 1)[0])
    if any(len(runs_of(result)) > 1 for result in results if result.system in (first, second)):
        return None  # part of the error comes from training runs, which no number of items or tasks reduces
    if not outcome.difference or not isfinite(outcome.effect):
        return None
    normal = NormalDist()
    quantiles = (normal.inv_cdf(1 - test.level / (2 * tests_made)) + normal.inv_cdf(POWER)) ** 2
    if outcome.unit == "tasks":
        changes = outcome.changes
        if changes is None or not changes.std():
            return None
        chance = normal.cdf(sqrt(2) * abs(float(changes.mean() / changes.std(ddof=1)))) - 0.5
        needed = max(fewest_tasks(tests_made, test.level), quantiles / (3 * chance**2))
        estimate, limit = f"about {needed:.0f} tasks", _MOST_TASKS
    else:
        needed = outcome.n * quantiles / outcome.effect**2
        digits = max(0, len(str(int(needed))) - 2)  # an estimate has two digits
        estimate, limit = f"about {round(needed, -digits):,.0f} items like these", _MOST_ITEMS
    if not outcome.n < needed <= limit:  # of a few items that differ, the exact test needs more than a normal one
        return None
    return (
        f"Separating {display_name(first, results)} from {display_name(second, results)} takes {estimate} ({POWER:.0%} power)."
    )


def points(value: float) -> str:
    """A score x 100 with one decimal, without the sign of -0.0."""
    text = f"{100 * value:.1f}"
    return "0.0" if text == "-0.0" else text
