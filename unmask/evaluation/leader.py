"""The leading design: which designs tie with it, which of these is the cheapest, and what it would take to decide between them.

Every table, page and sentence about the best designs comes from `lead`, so that no two of them disagree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import NormalDist

from unmask.errors import UnmaskError
from unmask.evaluation.results import SENTENCE_TRANSFORMERS, Result, ResultStore
from unmask.evaluation.verdict import (
    Comparison,
    System,
    comparisons,
    counted,
    display_name,
    listed,
    not_scored,
    ranked,
    tokens_per_text,
)
from unmask.statistics.paired import SIGNIFICANT, PairedTest

POWER = 0.8
"""The chance of finding a difference, when planning how many items or tasks to collect."""

CLEARLY = 0.8
"""A design is clearly cheaper than another if it computes less than this share of the other's tokens."""

_NAMED = 4  # designs that a sentence names; it counts the others
_MOST_ITEMS = 1_000_000  # a difference that needs more items is too small to show


@dataclass(frozen=True)
class Lead:
    """The leader of some designs, and how the others compare with it.

    order: systems with their scores, best first; equal scores: the cheapest first. leader: the first of them. tied: systems that the
    corrected test does not tell apart from the leader; worse: those that it does. Both are best first, and empty without a test.
    cheapest: the system with the fewest tokens a text among leader and tied. needed: what it would take to tell the leader from the first
    of the tied.
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
        """Designs that are not told apart from the leader."""
        return tuple(system for system, _ in self.order[1:] if system in self.tests and self.tests[system].better is None)

    @property
    def worse(self) -> tuple[System, ...]:
        """Designs that the leader is better than."""
        return tuple(system for system, _ in self.order[1:] if system in self.tests and self.tests[system].better)

    @property
    def cheaper(self) -> bool:
        """Whether the cheapest of the tied computes clearly fewer tokens than the leader."""
        return self.tokens[self.cheapest] < CLEARLY * self.tokens[self.leader]

    def against(self, system: System) -> PairedTest:
        """The test of the leader (as a) against another."""
        return self.tests[system].seen_from(self.leader)


@dataclass(frozen=True)
class KindLeader:
    """The best system for a kind of task, and why. tied: systems that may be as good."""

    kind: str
    system: System
    score: float
    reason: str
    tied: tuple[System, ...] = ()


def lead(order: Sequence[tuple[System, float]], tests: Sequence[Comparison], results: Sequence[Result]) -> Lead:
    """How the others of some systems, given best first, compare with the first."""
    leader = order[0][0]
    against = {_other(test, leader): test for test in tests if leader in (test.a, test.b)}
    against = {system: against[system] for system, _ in order if system in against}
    tokens = {system: tokens_per_text(results, system) for system, _ in order}
    tied = [system for system, test in against.items() if test.better is None]
    cheapest = min([leader, *tied], key=lambda system: tokens[system])
    needed = what_it_takes(leader, tied[0], against[tied[0]], results) if tied else None
    return Lead(tuple(order), against, cheapest, tokens, needed)


def kind_leaders(results: Sequence[Result], store: ResultStore, baseline: System | None = None) -> list[KindLeader]:
    """The best design for each kind of task, its lead over the runner-up, and the designs that tie with it.

    Reference rows (sentence-transformers models) are not candidates: the question is how to read the LLM. Each kind is tested on its own,
    over all pairs, or against the baseline alone if there is one. Raises UnmaskError for a kind without a task on which all designs have
    a score.
    """
    candidates = [result for result in results if result.design != SENTENCE_TRANSFORMERS]
    leaders = []
    for kind in dict.fromkeys(result.kind for result in candidates):
        of_kind = [result for result in candidates if result.kind == kind]
        order = ranked(of_kind)
        if not order:
            raise UnmaskError(f"No {kind} task was scored for every design: {listed(not_scored(of_kind))}. Score them too.")
        chosen = baseline if baseline in dict(order) else None
        standing = lead(order, comparisons(of_kind, store, chosen), of_kind)
        leaders.append(KindLeader(kind, standing.leader, order[0][1], reason(standing, of_kind), standing.tied))
    return leaders


def reason(standing: Lead, results: Sequence[Result]) -> str:
    """A sentence on the leader that starts with its score."""
    (_, top), rest = standing.order[0], standing.order[1:]
    if not rest:
        return f"the only design that was compared, {points(top)}"
    runner_up, second = rest[0]
    ahead = f"{points(top - second)} ahead of {display_name(runner_up, results)}"
    if not standing.tests:
        alike = points(top) == points(second)
        said = f"as {display_name(runner_up, results)} scores" if alike else ahead
        why = "not tested: no task has the items behind its score"
        return f"{points(top)}, {said}; {why}"
    if standing.tied:
        text = f"{points(top)}, {_ties(standing, results)}"
    elif len(standing.tests) < len(rest):
        text = f"{points(top)}; {_told(standing, standing.worse[0], results)} ({_correction(standing, '<')})"
    else:
        text = f"{points(top)}, {ahead} {_evidence(standing, runner_up)}; better than every other design ({_correction(standing, '<')})"
    left_out = next(iter(standing.tests.values())).left_out
    untested = len(rest) - len(standing.tests)
    return (
        text
        + (f"; {counted(untested, 'other')} not tested against it" if untested else "")
        + (f"; left out: {listed(left_out)}" if left_out else "")
    )


def _ties(standing: Lead, results: Sequence[Result]) -> str:
    tied = [f"{display_name(system, results)} ({_behind(standing, system)})" for system in standing.tied]
    more = f" and {len(tied) - _NAMED} more" if len(tied) > _NAMED else ""
    text = f"tied with {', '.join(tied[:_NAMED])}{more}: not told apart on {_amount(standing)} ({_correction(standing, '>=')})"
    if standing.worse:
        text += (
            f"; better than the other {len(standing.worse)}"
            if len(standing.worse) > 1
            else f"; better than {names(standing.worse, results)}"
        )
    return text + f"; {cheapest_words(standing, results)}" + (f"; {standing.needed}" if standing.needed else "")


def _behind(standing: Lead, system: System) -> str:
    outcome = standing.against(system)
    low, high = (points(bound) for bound in outcome.interval)
    behind = points(outcome.difference)
    return ("the same score" if behind == "0.0" else f"{behind} behind") + f" [{low}, {high}]"


def cheapest_words(standing: Lead, results: Sequence[Result]) -> str:
    """The part of a sentence that says which of the tied designs costs least."""
    tokens = standing.tokens[standing.cheapest]
    dearer = [system for system in standing.tied if standing.tokens[system] > tokens / CLEARLY]
    if standing.cheapest == standing.leader and len(dearer) == len(standing.tied):
        return f"{display_name(standing.leader, results)} is also the cheapest, {tokens:.0f} tokens a text"
    if not standing.cheaper:
        return f"none of them is clearly cheaper ({tokens:.0f} tokens a text)"
    behind = points(standing.against(standing.cheapest).difference)
    name = display_name(standing.cheapest, results) + (f" ({behind} behind)" if behind != "0.0" else "")
    return f"the cheapest of them is {name}, {tokens:.0f} tokens a text, not {standing.tokens[standing.leader]:.0f}"


def what_it_takes(first: System, second: System, test: Comparison, results: Sequence[Result]) -> str | None:
    """How many items or tasks would tell two designs apart; None if that cannot be said.

    This is for planning and is no evidence: it takes the difference found for the true one.
    """
    outcome, comparisons_made = test.outcome, _family_size(test)
    pair = f"telling {display_name(first, results)} from {display_name(second, results)}"
    if outcome.unit == "tasks":
        needed = _tasks_needed(test, results, comparisons_made)
        return f"{pair} takes about {needed} tasks ({POWER:.0%} power)" if needed else None
    if not outcome.difference or not isfinite(outcome.effect):
        return None
    level = NormalDist().inv_cdf(1 - SIGNIFICANT / (2 * comparisons_made))
    needed_items = outcome.n * ((level + NormalDist().inv_cdf(POWER)) / abs(outcome.effect)) ** 2
    if needed_items > _MOST_ITEMS:
        return f"{pair} takes more than a million items like these"
    return f"{pair} takes about {_rounded(needed_items):,} items like these ({POWER:.0%} power)"


def _tasks_needed(test: Comparison, results: Sequence[Result], comparisons_made: int) -> int | None:
    from unmask.statistics.power import power_statement

    scores = {(result.system, result.task): result.main_score for result in results}
    a, b = ([scores[system, task] for task in test.tasks] for system in (test.a, test.b))
    try:
        needed = power_statement(a, b, power=POWER, comparisons=comparisons_made).tasks_needed
    except ValueError:  # no spread
        return None
    return needed if needed and needed > len(test.tasks) else None


def _family_size(test: Comparison) -> int:
    return int(test.family.split(" ", 1)[0])


def _rounded(number: float) -> int:
    """An estimate, to two digits."""
    digits = max(0, len(str(int(number))) - 2)
    return int(round(number, -digits))


def _evidence(standing: Lead, system: System) -> str:
    """Interval, amount of data and effect size of the leader against another design."""
    outcome = standing.against(system)
    low, high = outcome.interval
    return f"[{points(low)}, {points(high)}] on {_amount(standing)}, {outcome.effect_name} {outcome.effect + 0.0:.2f}"


def _told(standing: Lead, system: System, results: Sequence[Result]) -> str:
    return f"{points(standing.against(system).difference)} better than {display_name(system, results)} {_evidence(standing, system)}"


def _amount(standing: Lead) -> str:
    test = next(iter(standing.tests.values()))
    return counted(len(test.tasks), "task") + (f" of {test.outcome.n} items" if test.outcome.unit == "items" else "")


def _correction(standing: Lead, sign: str) -> str:
    return f"p {sign} {SIGNIFICANT}; p and interval: Holm over {next(iter(standing.tests.values())).family}"


def names(systems: Sequence[System], results: Sequence[Result]) -> str:
    """The names of the first few systems, and the number of the others."""
    called = [display_name(system, results) for system in systems]
    more = f" and {len(called) - _NAMED} more" if len(called) > _NAMED else ""
    return ", ".join(called[:_NAMED]) + more


def points(value: float) -> str:
    """A score x 100 with one decimal, without the sign of -0.0."""
    text = f"{100 * value:.1f}"
    return "0.0" if text == "-0.0" else text


def _other(test: Comparison, system: System) -> System:
    return test.b if test.a == system else test.a
