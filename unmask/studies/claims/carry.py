"""How far a verdict carries: the tasks and seeds behind it, the task that it turns on, and what would decide an open claim."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from statistics import NormalDist
from typing import Final, Literal

import numpy as np
from jaxtyping import Float

from unmask.io.array_types import NDArray
from unmask.studies.claims.claim import POWER, Basis, Claim, ClaimTest, Finding

FARTHEST: Final = 100
"""Nothing that costs more than this multiple of a study is suggested."""
BOUND: Final = "bound"
"""How a test is named whose interval is only known to be at most so wide."""
_AGREEMENT_KINDS: Final = {"prompts": "sts", "clusters": "clustering", "clusters under one prompt": "clustering"}


@dataclass(frozen=True)
class TaskScores:
    """The scores behind the differences of a study, by row (embedder or mixture) and task."""

    scores: Mapping[str, Mapping[str, Sequence[float]]]
    """One for each training, in the unit of the differences; higher is better."""
    kinds: Mapping[str, str]
    """Of each task."""
    trained: Mapping[str, str]
    """The trained model of each row. A row without one was not trained."""
    unit: Literal["task", "domain"] = "task"

    def tasks(self, a: str, b: str, kinds: Iterable[str]) -> list[str]:
        """The tasks of these kinds that both rows have; none means all but those on words."""
        wanted = set(kinds)
        return [
            task
            for task in self.scores.get(a, ())
            if task in self.scores.get(b, ()) and (self.kinds[task] in wanted if wanted else self.kinds[task] != "word-level")
        ]

    def differences(self, a: str, b: str, tasks: Sequence[str]) -> dict[str, float]:
        """a minus b, as a mean over trainings."""
        return {task: float(np.mean(self.scores[a][task]) - np.mean(self.scores[b][task])) for task in tasks}

    def seed_variance(self, a: str, b: str, weights: Mapping[str, float]) -> float:
        """The variance over trainings of the weighted sum of differences. Two readings of one training are paired."""

        def of_runs(row: str) -> Float[NDArray[np.float64], " run"]:
            return np.asarray(sum(weight * np.asarray(self.scores[row][task]) for task, weight in weights.items()))

        runs = [of_runs(a), of_runs(b)]
        if a in self.trained and self.trained[a] == self.trained.get(b):
            runs = [runs[0] - runs[1]]
        return sum(float(values.var(ddof=1)) / len(values) for values in runs if len(values) > 1)

    def seeds(self, a: str, b: str) -> int:
        """Trainings of the side that was trained least often; 0 if neither was."""
        return min((len(next(iter(self.scores[row].values()))) for row in (a, b) if row in self.trained), default=0)


def most_influential(
    differences: Mapping[str, float], subtracted: Mapping[str, float] | None = None
) -> tuple[str, float] | None:
    """The task whose removal moves the mean difference the most towards 0, or across it, and the difference without it.

    subtracted: differences whose mean is subtracted, of an interaction. None if no group has two tasks.
    """
    groups = [dict(differences), dict(subtracted or {})]

    def total(groups: Sequence[Mapping[str, float]]) -> float:
        means = [float(np.mean(list(group.values()))) if group else 0.0 for group in groups]
        return means[0] - means[1]

    side = 1 if total(groups) >= 0 else -1
    left_out = {
        task: total([{name: value for name, value in each.items() if name != task} for each in groups])
        for group in groups
        if len(group) > 1
        for task in group
    }
    return min(left_out.items(), key=lambda item: side * item[1]) if left_out else None


def with_basis(findings: Sequence[Finding], scores: TaskScores) -> list[Finding]:
    """The findings, each test with what it rests on."""
    return _with_basis(findings, lambda claim, test: basis_of(claim, test, scores))


def with_seeds(findings: Sequence[Finding], seeds: Mapping[str, int], domains: int) -> list[Finding]:
    """The same for a study whose tests pool the texts of several domains. seeds: of each configuration."""

    def basis(claim: Claim, test: ClaimTest) -> Basis:
        return Basis(tasks=domains, unit="domain", seeds=min(seeds[claim.better], seeds[test.than]))

    return _with_basis(findings, basis)


def _with_basis(findings: Sequence[Finding], basis: Callable[[Claim, ClaimTest], Basis | None]) -> list[Finding]:
    def based(claim: Claim, test: ClaimTest) -> ClaimTest:
        return test.model_copy(update={"basis": basis(claim, test)})

    return [
        finding.model_copy(
            update={
                "tests": tuple(based(finding.claim, test) for test in finding.tests),
                "here": finding.here and finding.here.model_copy(update={"test": based(finding.claim, finding.here.test)}),
            }
        )
        for finding in findings
    ]


def basis_of(claim: Claim, test: ClaimTest, scores: TaskScores) -> Basis | None:
    """What the test of a claim rests on. None without scores of both sides."""
    kinds = [_AGREEMENT_KINDS[claim.agreement]] if claim.agreement else claim.kinds
    tasks = scores.tasks(claim.better, test.than, kinds)
    if not tasks:
        return None
    less = scores.tasks(claim.better, test.than, claim.less_on) if claim.less_on else []
    seeds = scores.seeds(claim.better, test.than)
    if claim.agreement:  # of similarities and clusters, and not of scores
        return Basis(tasks=len(tasks), unit=scores.unit, seeds=seeds)
    differences = scores.differences(claim.better, test.than, tasks)
    left_out = most_influential(differences, scores.differences(claim.better, test.than, less))
    weights = {task: 1 / len(tasks) for task in tasks} | {task: -1 / len(less) for task in less}
    over_seeds = scores.seed_variance(claim.better, test.than, weights)
    if test.unit == "tasks":
        everything = over_seeds + float(np.var(list(differences.values()), ddof=1)) / len(tasks)
    else:
        half = (test.interval[1] - test.interval[0]) / 2
        error = (test.detectable - half) / NormalDist().inv_cdf(POWER)  # how `statistics.power.detectable` adds them up
        everything = max(error**2, over_seeds)
    return Basis(
        tasks=len(tasks) + len(less),
        unit=scores.unit,
        seeds=seeds,
        seed_share=over_seeds / everything if everything else 0.0,
        most_influential=left_out[0] if left_out else "",
        without=left_out[1] if left_out else None,
    )


@dataclass(frozen=True)
class Decision:
    """What would decide a claim that is open."""

    cost: float
    """How many times the work of the study; infinite if more measurements are no answer."""
    text: str


def what_decides(finding: Finding) -> Decision | None:
    """What would decide an undecided claim, if the observed difference is the true one. None for other claims.

    A study finds a difference of the size `detectable` with a power of 80 %, and this size falls with the standard error. Seeds shrink
    the part of the variance that is theirs, and items (or tasks) the rest. The cheapest of three ways is taken: more seeds, more items,
    or as many times more of both, whose cost is the product.
    """
    if finding.verdict != "undecided" or not finding.tests:
        return None
    if finding.because:
        return Decision(inf, "the claim that it needs, confirmed")
    reach = [(_distance(finding.claim, test), test) for test in finding.tests]
    wrong = [_cheapest(distance, test, "refuted") for distance, test in reach if distance < 0]
    if wrong:
        return min(wrong, key=lambda decision: decision.cost)
    return max((_cheapest(distance, test, "confirmed") for distance, test in reach), key=lambda decision: decision.cost)


def _distance(claim: Claim, test: ClaimTest) -> float:
    """How far the difference is from what it must differ from: 0, or the nearest bound of the margin. Negative against the claim."""
    if claim.within is not None:
        return claim.within - abs(test.difference)
    return test.difference + (claim.costs or 0.0)


def _cheapest(distance: float, test: ClaimTest, verdict: str) -> Decision:
    share = test.basis.seed_share if test.basis else None
    seeds = test.basis.seeds if test.basis else 0
    needed = (distance / test.detectable) ** 2  # the variance to reach, as a multiple of the present one
    over_prompts = "prompts" in test.test
    if test.test.startswith(BOUND):
        return Decision(1.0, "a paired test, whose values were not kept")
    if needed <= 0 or 1 / needed > FARTHEST:
        return Decision(inf, f"over {FARTHEST} times")
    factor = max(1 / needed, 1.0)
    items = _more(test.n, factor, test.unit)
    if seeds < 2 and not over_prompts:
        return Decision(factor, f"{verdict} at {items}")
    of_both = f"{items} and {factor:.2g} times the prompts" if over_prompts else f"{items} and {_more(seeds, factor, 'seeds')}"
    ways: list[tuple[float, Callable[[], str]]] = [(factor**2, lambda: of_both)]
    if share is not None and not over_prompts:
        if (left := needed - (1 - share)) > 0:
            ways.append((share / left, lambda: _more(seeds, share / left, "seeds")))
        if (left_items := needed - share) > 0:
            ways.append(((1 - share) / left_items, lambda: _more(test.n, (1 - share) / left_items, test.unit)))
    cost, text = min(ways, key=lambda way: way[0])
    if cost > FARTHEST:
        return Decision(inf, f"over {FARTHEST} times")
    return Decision(max(cost, 1.0), f"{verdict} at {text()}")


def _more(number: int, factor: float, unit: str) -> str:
    return f"{max(ceil(number * factor - 1e-6), number + 1)} {unit}"
