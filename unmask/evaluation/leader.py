"""The leading design: which designs tie with it, which of them is the cheapest, and how much data would tell them apart.

All tables, pages and sentences about the best designs use `lead`, so they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import NormalDist
from typing import Literal

from unmask.errors import UnmaskError
from unmask.evaluation.results import SENTENCE_TRANSFORMERS, Result, ResultStore
from unmask.evaluation.seed_means import runs_of
from unmask.evaluation.verdict import (
    Comparison,
    System,
    comparisons,
    display_name,
    listed,
    not_scored,
    ranked,
    tokens_per_text,
)
from unmask.io.terminal import counted, enumeration
from unmask.statistics.paired import DECIMALS, PairedTest
from unmask.tasks.kinds import KINDS

POWER = 0.8
"""The chance of finding a difference, when planning how many items or tasks to collect."""

CLEARLY = 0.8
"""A design is clearly cheaper than another if it computes less than this share of the other's tokens."""

_NAMED = 4  # designs that a sentence names; it counts the others
_MOST_ITEMS = 1_000_000  # a difference that needs more items is too small to show


@dataclass(frozen=True)
class Lead:
    """The leader of some designs, and how the others compare with it.

    order: systems with their scores, best first; with equal scores, the cheapest first. leader: the first of them. tied: systems that the
    corrected test does not tell apart from the leader. worse: systems that the leader is better than. Both are best first, and empty
    without a test. cheapest: the system with the fewest tokens a text, among leader and tied. needed: a sentence that says how much data
    would tell the leader from the first of the tied.
    """

    order: tuple[tuple[System, float], ...]
    tests: dict[System, Comparison]
    cheapest: System
    tokens: dict[System, float]
    needed: str | None

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


def lead(order: Sequence[tuple[System, float]], tests: Sequence[Comparison], results: Sequence[Result]) -> Lead:
    """Compare the first of some systems with all others. `order` is best first."""
    leader = order[0][0]
    against = {_other(test, leader): test for test in tests if leader in (test.a, test.b)}
    against = {system: against[system] for system, _ in order if system in against}
    tokens = {system: tokens_per_text(results, system) for system, _ in order}
    tied = [system for system, test in against.items() if test.winner is None]
    cheapest = min([leader, *tied], key=lambda system: tokens[system])
    needed = what_it_takes(leader, tied[0], against[tied[0]], results) if tied else None
    return Lead(tuple(order), against, cheapest, tokens, needed)


def kind_leaders(results: Sequence[Result], store: ResultStore, baseline: System | None = None) -> list[KindLeader]:
    """The best design for each kind of task, with the reasons, and the designs that tie with it.

    Reference rows (sentence-transformers models) are not candidates: the question is how to use the LLM. But the leader is compared with
    those that were scored on the same tasks. Each kind is tested separately, over all pairs, or only against the baseline if there is
    one. Raises UnmaskError for a kind without a task that all designs were scored on.
    """
    candidates = [result for result in results if result.design != SENTENCE_TRANSFORMERS]
    leaders = []
    for kind in dict.fromkeys(result.kind for result in candidates):
        of_kind = [result for result in candidates if result.kind == kind]
        order = ranked(of_kind)
        if not order:
            raise UnmaskError(f"No {kind} task was scored for every design: {listed(not_scored(of_kind))}. Score them too.")
        reference = baseline if baseline in dict(order) else None
        rows = [*of_kind, *_comparable_references(of_kind, [result for result in results if result.kind == kind])]
        tests = comparisons(rows, store, reference)
        ranking = lead(order, tests, of_kind)
        references = compare_references(ranking, ranked(rows), tests)
        sentences = [(comparison.is_higher, reference_sentence(comparison, rows)) for comparison in references]
        leaders.append(
            KindLeader(
                kind,
                ranking.leader,
                order[0][1],
                (
                    *(sentence for is_higher, sentence in sentences if is_higher),
                    *reasons(ranking, of_kind, f" on {_title(kind)} tasks"),
                    *(sentence for is_higher, sentence in sentences if not is_higher),
                ),
                ranking.tied,
                ranking.worse,
                bool(ranking.worse) and not ranking.tied and not ranking.ahead,
                references,
            )
        )
    return leaders


def _comparable_references(candidates: Sequence[Result], results: Sequence[Result]) -> list[Result]:
    """The rows of the references that were scored on every task that all candidates share."""
    lacking, tasks = not_scored(candidates), {result.task for result in candidates}
    references = [result for result in results if result.design == SENTENCE_TRANSFORMERS and result.task in tasks]
    scored: dict[System, set[str]] = {}
    for result in references:
        scored.setdefault(result.system, set()).add(result.task)
    return [result for result in references if tasks - set(lacking) <= scored[result.system]]


def compare_references(
    ranking: Lead, order: Sequence[tuple[System, float]], tests: Sequence[Comparison]
) -> tuple[ReferenceComparison, ...]:
    """The leader against each system of an order that is not its candidate, best first; tests: for every pair."""
    candidates = dict(ranking.order)
    test_of = {
        frozenset((test.a, test.b)): test.seen_from(ranking.leader) for test in tests if ranking.leader in (test.a, test.b)
    }
    leader_score = dict(order)[ranking.leader]
    return tuple(
        ReferenceComparison(system, score, leader_score, test_of.get(frozenset((system, ranking.leader))))
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
    return f"Not told apart from the reference {name}: {score}, {difference}."


def kinds_sentence(leader: System, kinds: Sequence[KindLeader]) -> str:
    """A sentence that says on which kinds of task the overall leader is better than the other designs, and on which it is not.

    A mean may be ahead because of one kind alone. Empty for a single kind of task.
    """
    if len(kinds) < 2:
        return ""
    parts: dict[str, list[str]] = {}
    for kind in kinds:
        if kind.system == leader and kind.is_clear:
            outcome = "better than every other design on"
        elif (kind.system == leader and kind.tied) or leader in kind.tied:
            outcome = "tied with others on"
        elif leader in kind.worse:
            outcome = "worse than the best design on"
        else:
            outcome = "undecided on"
        parts.setdefault(outcome, []).append(_title(kind.kind))
    order = ("better than every other design on", "tied with others on", "worse than the best design on", "undecided on")
    clauses = [f"{outcome} {enumeration(parts[outcome])}" for outcome in order if outcome in parts]
    return f"By kind of task, it is {enumeration(clauses, '; ', '; and ')}."


def _title(kind: str) -> str:
    return (KINDS[kind].title if kind in KINDS else "") or kind


def reasons(ranking: Lead, results: Sequence[Result], on: str = "") -> tuple[str, ...]:
    """Why the leader is recommended, in short sentences: one thought each. on: words that say which tasks a cost is of."""
    rest = ranking.order[1:]
    if not rest:
        return ("It is the only design that was compared.",)
    if not ranking.tests:
        return (_untested_lead(ranking, results), "Not tested: no task has scores of its single items.")
    facts = _ties(ranking, results, on) if ranking.tied else _wins(ranking, results) if ranking.worse else []
    if ranking.ahead:
        facts.append(f"Worse than {names(ranking.ahead, results)} where it was tested.")
    facts.append(_method(ranking))
    if untested := len(rest) - len(ranking.tests):
        facts.append(f"Not tested against it: {counted(untested, 'other design')}.")
    if left_out := next(iter(ranking.tests.values())).left_out:
        facts.append(f"Left out: {listed(left_out)}.")
    return tuple(facts)


def _untested_lead(ranking: Lead, results: Sequence[Result]) -> str:
    (_, top), (runner_up, second) = ranking.order[:2]
    name = display_name(runner_up, results)
    return f"Same score as {name}." if points(top) == points(second) else f"{points(top - second)} ahead of {name}."


def _wins(ranking: Lead, results: Sequence[Result]) -> list[str]:
    """The lead over the runner-up, or over the best of those that it is better than."""
    every = len(ranking.worse) == len(ranking.order) - 1
    losers = "every other design" if every else names(ranking.worse, results)
    return [f"Better than {losers}.", _distance(ranking, ranking.worse[0], results)]


def _distance(ranking: Lead, system: System, results: Sequence[Result]) -> str:
    outcome = ranking.against(system)
    ahead = f"{points(outcome.difference)} ahead of {display_name(system, results)} {_interval(outcome)}"
    return f"{ahead}; {outcome.effect_name}: {outcome.effect + 0.0:.2f}."


def _ties(ranking: Lead, results: Sequence[Result], on: str) -> list[str]:
    """The tied designs, the worse designs, the cheapest of the tied, and how much data would tell them apart."""
    tied = [f"{display_name(system, results)} ({_behind(ranking, system)})" for system in ranking.tied]
    suffix = f" and {len(tied) - _NAMED} more" if len(tied) > _NAMED else ""
    facts = [f"Tied with {', '.join(tied[:_NAMED])}{suffix}."]
    if ranking.worse:
        losers = names(ranking.worse, results) if len(ranking.worse) == 1 else f"the other {len(ranking.worse)} designs"
        facts.append(f"Better than {losers}.")
    facts.append(cheapest_sentence(ranking, results, on))
    return [*facts, ranking.needed] if ranking.needed else facts


def _behind(ranking: Lead, system: System) -> str:
    outcome = ranking.against(system)
    behind = points(outcome.difference)
    return ("same score" if behind == "0.0" else f"{behind} behind") + f" {_interval(outcome)}"


def _interval(outcome: PairedTest) -> str:
    low, high = (points(bound) for bound in outcome.interval)
    return f"[{low}, {high}]"


def _method(ranking: Lead) -> str:
    test = next(iter(ranking.tests.values()))
    data = counted(len(test.tasks), "task") + (f" of {test.outcome.n} items" if test.outcome.unit == "items" else "")
    return f"Tested on {data}; level {test.level:.3g}; p and intervals: Holm over {test.family}."


def cheapest_sentence(ranking: Lead, results: Sequence[Result], on: str = "") -> str:
    """A sentence that says which of the tied designs costs least. on: as in `reasons`."""
    tokens, leader = ranking.tokens[ranking.cheapest], display_name(ranking.leader, results)
    dearer = [system for system in ranking.tied if ranking.tokens[system] > tokens / CLEARLY]
    if ranking.cheapest == ranking.leader and len(dearer) == len(ranking.tied):
        return f"The cheapest of them is {leader} itself: {tokens:.0f} tokens a text{on}."
    if not ranking.cheaper:
        return f"None of them is clearly cheaper than {leader}: {ranking.tokens[ranking.leader]:.0f} tokens a text{on}."
    behind = points(ranking.against(ranking.cheapest).difference)
    name = display_name(ranking.cheapest, results) + (f" ({behind} behind)" if behind != "0.0" else "")
    return f"The cheapest of them is {name}: {tokens:.0f} tokens a text{on}, not {ranking.tokens[ranking.leader]:.0f}."


def what_it_takes(first: System, second: System, test: Comparison, results: Sequence[Result]) -> str | None:
    """A sentence: how many items or tasks would tell two designs apart. None if that cannot be estimated.

    It is for planning, not evidence: it treats the observed difference as the true one.
    """
    outcome, comparisons_made = test.outcome, _family_size(test)
    if any(len(runs_of(result)) > 1 for result in results if result.system in (first, second)):
        return None  # part of the error comes from training runs, which no number of items or tasks reduces
    start = f"To tell {display_name(first, results)} from {display_name(second, results)} takes"
    if outcome.unit == "tasks":
        needed = _tasks_needed(test, results, comparisons_made)
        return f"{start} about {needed} tasks ({POWER:.0%} power)." if needed else None
    if not outcome.difference or not isfinite(outcome.effect):
        return None
    critical = NormalDist().inv_cdf(1 - test.level / (2 * comparisons_made))
    needed_items = outcome.n * ((critical + NormalDist().inv_cdf(POWER)) / abs(outcome.effect)) ** 2
    if needed_items <= outcome.n:  # of a few items that differ, the exact test needs more than a normal one
        return None
    if needed_items > _MOST_ITEMS:
        return f"{start} more than a million items like these."
    return f"{start} about {_rounded(needed_items):,} items like these ({POWER:.0%} power)."


def _tasks_needed(test: Comparison, results: Sequence[Result], comparisons_made: int) -> int | None:
    from unmask.statistics.power import power_statement

    scores = {(result.system, result.task): result.main_score for result in results}
    a, b = ([scores[system, task] for task in test.tasks] for system in (test.a, test.b))
    try:
        needed = power_statement(a, b, power=POWER, level=test.level, comparisons=comparisons_made).tasks_needed
    except ValueError:  # no spread
        return None
    return needed if needed and needed > len(test.tasks) else None


def _family_size(test: Comparison) -> int:
    return int(test.family.split(" ", 1)[0])


def _rounded(number: float) -> int:
    """An estimate, to two digits."""
    digits = max(0, len(str(int(number))) - 2)
    return int(round(number, -digits))


def names(systems: Sequence[System], results: Sequence[Result]) -> str:
    """The names of the first few systems, and the number of the others."""
    called = [display_name(system, results) for system in systems]
    suffix = f" and {len(called) - _NAMED} more" if len(called) > _NAMED else ""
    return ", ".join(called[:_NAMED]) + suffix


def points(value: float) -> str:
    """A score x 100 with one decimal, without the sign of -0.0."""
    text = f"{100 * value:.1f}"
    return "0.0" if text == "-0.0" else text


def _other(test: Comparison, system: System) -> System:
    return test.b if test.a == system else test.a
