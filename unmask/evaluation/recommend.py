"""Recommend: the best design for some tasks, at a fraction of what the whole grid costs.

What costs is a pass, an attention with a prompt: designs that share one come for nothing. So passes race on growing subsets of each
task's items (successive halving; Jamieson and Talwalkar, 2016, arXiv 1502.07943): after each round the designs that a paired test finds
worse than the leader are dropped, and of the passes the better half goes on. Items are nested, so a round computes only what is new.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache as cache_once
from functools import partial
from math import ceil, inf, sqrt
from typing import Any

from unmask.design import Design
from unmask.errors import UnmaskError
from unmask.evaluation.compare import Plan, compare, load_checked
from unmask.evaluation.resampling import interval
from unmask.evaluation.results import Result, ResultStore
from unmask.evaluation.statistics import bootstrap_tasks, difference_test
from unmask.evaluation.subsets import subset
from unmask.evaluation.tasks import LocalTask
from unmask.evaluation.vectors import VectorCache

SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2)
"""Of each task's items, round by round. What half of them cannot tell apart is named: `compare` on those few designs says more."""

LEVEL = 0.05
FEWEST = 4
"""Items of a task in the first round, if it has as many."""

_RESAMPLES = 2000
Lane = tuple[str, str]
"""An attention and a prompt: what designs share a pass by."""


@dataclass(frozen=True)
class Standing:
    """A design after a round.

    score: mean main score of the tasks; behind: the leader less it, with its 95 % interval; p: see `beside_the_best`.
    """

    label: str
    score: float
    behind: float
    interval: tuple[float, float]
    p: float


@dataclass(frozen=True)
class Round:
    """One round: items of all tasks, tokens that it computed, and how the designs stood, best first. kept: those that went on."""

    items: int
    tokens: int
    standings: tuple[Standing, ...]
    kept: tuple[str, ...]


@dataclass(frozen=True)
class Advice:
    """What to use.

    score: mean main score over the tasks' items of the last round, with its 95 % interval by bootstrap over items; ties: designs of
    the last round that cannot be told apart from it; tokens_a_text: what it costs; tokens: computed in all; grid_tokens: what every
    design on every item would have computed.
    """

    design: Design
    label: str
    score: float
    interval: tuple[float, float]
    ties: tuple[str, ...]
    tokens_a_text: float
    tokens: int
    grid_tokens: int
    rounds: tuple[Round, ...]

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {**asdict(self), "design": self.design.name}


def recommend(plan: Plan, store: ResultStore, say: Callable[[str], None] = lambda _: None) -> Advice:
    """Race the designs of a plan on its tasks. Raises UnmaskError for tasks that are no local folders, and for fewer than two designs.

    What the store holds already is not computed again, but counts as computed.
    """
    tasks = [task for task in plan.tasks if isinstance(task, LocalTask)]
    if len(tasks) < len(plan.tasks):
        raise UnmaskError("A recommendation draws items of local folders; compare designs on mteb's tasks by `unmask compare`.")
    if len(plan.designs) < 2:
        raise UnmaskError("One design needs no recommendation: give two or more.")
    alive, rounds, cache = dict(plan.designs), list[Round](), VectorCache.beside(store.folder)
    loaded = cache_once(partial(load_checked, plan, say))
    paid: dict[Lane, int] = {}
    first: dict[Lane, int] = {}
    for share in SHARES:
        parts = [subset(task, max(FEWEST, ceil(share * task.size))) for task in tasks]
        results = compare(replace(plan, designs=alive, tasks=parts), store, say, cache=cache, loaded=loaded)
        _refuse_failures(store, alive, parts, results)
        before = sum(paid.values())
        paid |= _tokens(results)
        first = first or dict(paid)
        standings = _standings(results, store)
        last = share == SHARES[-1]
        kept = {standing.label: alive[standing.label] for standing in standings} if last else _kept(standings, alive)
        items = sum(part.size for part in parts)
        rounds.append(Round(items, sum(paid.values()) - before, tuple(standings), tuple(kept)))
        say(f"{items} items: {standings[0].label} leads; {len(kept)} of {len(alive)} designs go on" * (not last))
        alive = kept
        if len(alive) == 1 or last:
            break
    cache.forget()
    label = rounds[-1].standings[0].label
    own = [result for result in results if result.label == label]
    beside = sum(first.values()) / first[lane(plan.designs[label])]
    grid_tokens = round(beside * sum(map(_whole_tokens, own, tasks, parts)))
    return _advice(plan, own, store, rounds, sum(paid.values()), grid_tokens)


def lane(design: Design) -> Lane:
    """What a design shares its pass by."""
    return design.attention, design.prompt


def _refuse_failures(
    store: ResultStore, designs: Mapping[str, Design], tasks: Sequence[LocalTask], results: Sequence[Result]
) -> None:
    if len(results) < len(designs) * len(tasks):
        names = {task.name for task in tasks}
        failure = next(one for one in store.failures if one.task in names)
        raise UnmaskError(f"{failure.label} has no score on {failure.task}: {failure.error}")


def _tokens(results: Sequence[Result]) -> dict[Lane, int]:
    """Tokens of each pass, over all tasks."""
    by_task = {(lane(Design.parse(result.design)), result.task): result.tokens for result in results}
    found: dict[Lane, int] = {}
    for (where, _), tokens in by_task.items():
        found[where] = found.get(where, 0) + tokens
    return found


def _standings(results: Sequence[Result], store: ResultStore) -> list[Standing]:
    """Designs by their mean score, each tested against the first."""
    by_label: dict[str, list[Result]] = {}
    for result in results:
        by_label.setdefault(result.label, []).append(result)
    items = {label: [store.items(result) for result in own] for label, own in by_label.items()}
    whole = [place for place in range(len(next(iter(items.values())))) if all(own[place] is not None for own in items.values())]
    points = {label: [result.main_score for result in own] for label, own in by_label.items()}
    order = sorted(points, key=lambda label: -sum(points[label]))
    count = len(points[order[0]])
    samples = {label: bootstrap_tasks([own for place in whole if (own := items[label][place])], _RESAMPLES) for label in order}
    used = {label: [points[label][place] for place in whole] for label in order}
    n = sum(own.n for place in whole if (own := items[order[0]][place]))
    tests = [difference_test(samples[order[0]], samples[label], used[order[0]], used[label], n) for label in order[1:]]
    best = sum(points[order[0]]) / count
    standings = [Standing(order[0], best, 0.0, (0.0, 0.0), 1.0)]
    for label, test in zip(order[1:], tests, strict=True):
        score = sum(points[label]) / count
        standings.append(Standing(label, score, best - score, test.interval, beside_the_best(test.effect, len(order))))
    return standings


def beside_the_best(errors: float, designs: int) -> float:
    """Chance that the best of so many equal designs is so many standard errors ahead of another: Tukey's studentised range.

    The leader is whoever leads by these very scores, so that the plain p of its lead is too small (Hsu, 1981, Annals of Statistics 9).
    """
    from scipy.stats import studentized_range

    return float(studentized_range.sf(sqrt(2) * errors, designs, inf)) if errors < inf else 0.0


def _kept(standings: Sequence[Standing], alive: Mapping[str, Design]) -> dict[str, Design]:
    """Designs that go on: not worse than the leader by the test, and of the better half of the passes."""
    open_ones = [standing.label for standing in standings if standing.p >= LEVEL]
    lanes = list(dict.fromkeys(lane(alive[label]) for label in open_ones))
    going = set(lanes[: ceil(len({lane(design) for design in alive.values()}) / 2)])
    return {label: alive[label] for label in open_ones if lane(alive[label]) in going}


def _advice(
    plan: Plan, own: Sequence[Result], store: ResultStore, rounds: Sequence[Round], tokens: int, grid_tokens: int
) -> Advice:
    standings = rounds[-1].standings
    winner = standings[0]
    kept = [items for result in own if (items := store.items(result))]
    samples = bootstrap_tasks(kept, _RESAMPLES).mean(axis=0)
    design = plan.designs[winner.label]
    return Advice(
        design,
        winner.label,
        winner.score,
        interval(samples, around=winner.score),
        tuple(standing.label for standing in standings[1:] if standing.p >= LEVEL),
        sum(result.tokens for result in own) / sum(result.texts for result in own),
        tokens,
        grid_tokens,
        tuple(rounds),
    )


def _whole_tokens(result: Result, task: LocalTask, part: LocalTask) -> float:
    """Tokens of a design on a whole task, from those on a part of it: as many a text."""
    if task.kind == "retrieval":
        texts = len(task.data["queries"]) + len(task.data["corpus"])
    elif task.kind == "classification":  # its training texts are there from the first round on
        texts = result.texts + task.size - part.size
    else:
        texts = round(result.texts * task.size / part.size)
    return result.tokens * texts / result.texts
