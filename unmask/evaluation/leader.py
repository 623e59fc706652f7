"""Advice: which design leads, which cannot be told apart from it, which of these is the cheapest, and what it would take to decide.

Every table, page and sentence takes what it says of the best designs from `lead`, so that no two of them disagree.
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
"""Chance of seeing a difference that the numbers of items and tasks to be collected are for."""

CLEARLY = 0.8
"""Share of another design's tokens below which a design is clearly cheaper."""

_NAMED = 4  # designs in a sentence, before it becomes a list
_MOST_ITEMS = 1_000_000  # beyond, a difference is too small to be shown on anything


@dataclass(frozen=True)
class Lead:
    """What may be said of the best of some designs.

    order: systems with their scores, best first; of equal ones, the cheapest first. leader: the first. tied: those that the corrected
    test does not tell apart from it; worse: those that it does; both best first. Neither, if there was no test. cheapest: of leader and
    tied, the one that computes the fewest tokens a text. needed: what it would take to tell the leader from the first of the tied.
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
    """What to use for a kind of task, and why. tied: designs that may be as good."""

    kind: str
    system: System
    score: float
    reason: str
    tied: tuple[System, ...] = ()


def lead(order: Sequence[tuple[System, float]], tests: Sequence[Comparison], results: Sequence[Result]) -> Lead:
    """The lead of the first of some systems, by the tests that it is part of."""
    leader = order[0][0]
    against = {_other(test, leader): test for test in tests if leader in (test.a, test.b)}
    against = {system: against[system] for system, _ in order if system in against}
    tokens = {system: tokens_per_text(results, system) for system, _ in order}
    tied = [system for system, test in against.items() if test.better is None]
    cheapest = min([leader, *tied], key=lambda system: tokens[system])
    needed = what_it_takes(leader, tied[0], against[tied[0]], results) if tied else None
    return Lead(tuple(order), against, cheapest, tokens, needed)


def kind_leaders(results: Sequence[Result], store: ResultStore, baseline: System | None = None) -> list[KindLeader]:
    """The best design of each kind of task, with its lead over the runner-up and what cannot be told apart from it.

    Reference rows (sentence-transformers models) are no candidates: the question is how to read the LLM. Each kind is tested for
    itself, over all pairs, or against the baseline alone if one was chosen beforehand. Raises UnmaskError for a kind
    without a task that all the designs were scored on.
    """
    candidates = [result for result in results if result.design != SENTENCE_TRANSFORMERS]
    found = []
    for kind in dict.fromkeys(result.kind for result in candidates):
        of_kind = [result for result in candidates if result.kind == kind]
        order = ranked(of_kind)
        if not order:
            raise UnmaskError(f"No {kind} task was scored for every design: {listed(not_scored(of_kind))}. Score them too.")
        chosen = baseline if baseline in dict(order) else None
        one = lead(order, comparisons(of_kind, store, chosen), of_kind)
        found.append(KindLeader(kind, one.leader, order[0][1], reason(one, of_kind), one.tied))
    return found


def reason(one: Lead, results: Sequence[Result]) -> str:
    """What is said of a lead, in a sentence that starts with the score."""
    (_, top), rest = one.order[0], one.order[1:]
    if not rest:
        return f"the only design that was compared, {points(top)}"
    runner_up, second = rest[0]
    ahead = f"{points(top - second)} ahead of {display_name(runner_up, results)}"
    if not one.tests:
        alike = points(top) == points(second)
        said = f"as {display_name(runner_up, results)} scores" if alike else ahead
        why = "not tested: no task has the items behind its score"
        return f"{points(top)}, {said}; {why}"
    if one.tied:
        text = f"{points(top)}, {_ties(one, results)}"
    elif len(one.tests) < len(rest):
        text = f"{points(top)}; {_told(one, one.worse[0], results)} ({_correction(one, '<')})"
    else:
        text = f"{points(top)}, {ahead} {_evidence(one, runner_up)}; better than every other design ({_correction(one, '<')})"
    left_out = next(iter(one.tests.values())).left_out
    untested = len(rest) - len(one.tests)
    return (
        text
        + (f"; {counted(untested, 'other')} not tested against it" if untested else "")
        + (f"; left out: {listed(left_out)}" if left_out else "")
    )


def _ties(one: Lead, results: Sequence[Result]) -> str:
    tied = [f"{display_name(system, results)} ({_behind(one, system)})" for system in one.tied]
    more = f" and {len(tied) - _NAMED} more" if len(tied) > _NAMED else ""
    text = f"tied with {', '.join(tied[:_NAMED])}{more}: not told apart on {_amount(one)} ({_correction(one, '>=')})"
    if one.worse:
        text += (
            f"; better than the other {len(one.worse)}" if len(one.worse) > 1 else f"; better than {names(one.worse, results)}"
        )
    return text + f"; {cheapest_words(one, results)}" + (f"; {one.needed}" if one.needed else "")


def _behind(one: Lead, system: System) -> str:
    outcome = one.against(system)
    low, high = (points(bound) for bound in outcome.interval)
    behind = points(outcome.difference)
    return ("the same score" if behind == "0.0" else f"{behind} behind") + f" [{low}, {high}]"


def cheapest_words(one: Lead, results: Sequence[Result]) -> str:
    """Which of the tied designs costs least."""
    tokens = one.tokens[one.cheapest]
    dearer = [system for system in one.tied if one.tokens[system] > tokens / CLEARLY]
    if one.cheapest == one.leader and len(dearer) == len(one.tied):
        return f"{display_name(one.leader, results)} is also the cheapest, {tokens:.0f} tokens a text"
    if not one.cheaper:
        return f"none of them is clearly cheaper ({tokens:.0f} tokens a text)"
    behind = points(one.against(one.cheapest).difference)
    name = display_name(one.cheapest, results) + (f" ({behind} behind)" if behind != "0.0" else "")
    return f"the cheapest of them is {name}, {tokens:.0f} tokens a text, not {one.tokens[one.leader]:.0f}"


def what_it_takes(one: System, other: System, test: Comparison, results: Sequence[Result]) -> str | None:
    """How many items, or tasks, would tell two designs apart if they differ as they seem to; None where that cannot be said.

    Planning, not evidence: it takes the difference found for the true one.
    """
    outcome, comparisons_made = test.outcome, _family_size(test)
    pair = f"telling {display_name(one, results)} from {display_name(other, results)}"
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
    """To two digits: it is an estimate."""
    digits = max(0, len(str(int(number))) - 2)
    return int(round(number, -digits))


def _evidence(one: Lead, system: System) -> str:
    """Interval, amount of data and size of an effect of the leader against another design."""
    outcome = one.against(system)
    low, high = outcome.interval
    return f"[{points(low)}, {points(high)}] on {_amount(one)}, {outcome.effect_name} {outcome.effect + 0.0:.2f}"


def _told(one: Lead, system: System, results: Sequence[Result]) -> str:
    return f"{points(one.against(system).difference)} better than {display_name(system, results)} {_evidence(one, system)}"


def _amount(one: Lead) -> str:
    test = next(iter(one.tests.values()))
    return counted(len(test.tasks), "task") + (f" of {test.outcome.n} items" if test.outcome.unit == "items" else "")


def _correction(one: Lead, sign: str) -> str:
    return f"p {sign} {SIGNIFICANT}; p and interval: Holm over {next(iter(one.tests.values())).family}"


def names(systems: Sequence[System], results: Sequence[Result]) -> str:
    """The first few by name; the tables have all."""
    called = [display_name(system, results) for system in systems]
    more = f" and {len(called) - _NAMED} more" if len(called) > _NAMED else ""
    return ", ".join(called[:_NAMED]) + more


def points(value: float) -> str:
    """A score x 100; nothing has no sign."""
    text = f"{100 * value:.1f}"
    return "0.0" if text == "-0.0" else text


def _other(test: Comparison, system: System) -> System:
    return test.b if test.a == system else test.a
