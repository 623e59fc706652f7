"""Numbers of the study of routers: means over seeds, tests against the baseline configuration, correlations, verdicts on claims.

A claim about a configuration needs two things: it holds for other texts, and for other seeds of the router. The tests allow for both, so
they need two seeds. All tests of one yardstick are one family (Holm).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, get_args

import numpy as np
from jaxtyping import Float

from unmask.io.array_types import NDArray
from unmask.moe.routing.formulas import joint_of_texts, normalised_information
from unmask.moe.routing.text_bootstrap import permute_labels, text_weights, without_chance
from unmask.statistics.correlations import FEWEST_UNITS, RankCorrelation, rank_correlation
from unmask.statistics.paired import PairedTest, VarianceSource, holm, t_test, with_holm
from unmask.studies.claims.carry import with_seeds
from unmask.studies.claims.claim import Claim, Finding, findings
from unmask.studies.routers.cells import Cell
from unmask.studies.routers.configurations import (
    CONFIGURATIONS,
    EMBEDDINGS,
    OWN,
    SAME_ROUTER,
    STANDARD,
    UNITS,
    Yardstick,
    baseline_of,
)

RESAMPLES = 1000
FEWEST_ITEMS = 6
"""Fewer items or tasks give no test."""
_FEWEST_SEEDS = 2  # one says nothing of other seeds

Shares = Float[NDArray[Any], "text point expert"]
Cells = Mapping[str, Mapping[int, Cell]]
"""What was measured, by configuration and seed."""
Bases = Mapping[str, Cell]
"""The base model on each set of domains."""
SeedNoise = Mapping[Yardstick, VarianceSource]
"""By yardstick: the variance of the difference from one seed to another, pooled over the configurations of a study."""


@dataclass(frozen=True)
class Contrast:
    """The difference of two configurations by one yardstick.

    A seed gives both the same first weights and the same order of lessons, so their difference is taken within each seed. It has two
    sources of error: other texts (or tasks), and other seeds.
    """

    by_seed: tuple[float, ...]
    over_items: float
    """The variance of the mean over seeds that comes from the items."""
    items: int
    what: str
    """Names the items, for the name of the test."""

    @classmethod
    def of(cls, differences: Float[NDArray[np.float64], "seed item"], unit: str) -> Contrast | None:
        """The contrast of two configurations with scores on the same items. None for fewer than six items."""
        items = differences.shape[1]
        if items < FEWEST_ITEMS:
            return None
        over_items = float(differences.mean(axis=0).var(ddof=1)) / items
        return cls(tuple(differences.mean(axis=1).tolist()), over_items, items, unit)

    @property
    def over_seeds(self) -> VarianceSource:
        """The variance of one seed's difference."""
        return float(np.var(self.by_seed, ddof=1)), len(self.by_seed) - 1

    def test(self, pooled: VarianceSource | None = None) -> PairedTest:
        """t of the mean difference, with the variance from the items plus the variance from the seeds.

        The variance between three seeds may be near zero by chance, and a test that trusts it finds too much: at the strictest level of
        Holm's correction up to eight times as many false differences as it should. So the larger of the contrast's own variance and the
        one pooled over the study counts.
        """
        variance, freedom = max(self.over_seeds, pooled or self.over_seeds)
        sources = [(self.over_items, self.items - 1), (variance / len(self.by_seed), max(1, freedom))]
        name = f"{self.what} and {len(self.by_seed)} paired seeds"
        return t_test(float(np.mean(self.by_seed)), sources, self.items, name)


def seed_noise(contrasts: Iterable[Mapping[Yardstick, Contrast]]) -> dict[Yardstick, VarianceSource]:
    """The variance between seeds by yardstick, pooled over contrasts: the mean of their variances, weighted by degrees of freedom."""
    sources: dict[Yardstick, list[VarianceSource]] = {}
    for by_yardstick in contrasts:
        for yardstick, contrast in by_yardstick.items():
            sources.setdefault(yardstick, []).append(contrast.over_seeds)
    freedom = {yardstick: sum(count for _, count in parts) for yardstick, parts in sources.items()}
    return {
        yardstick: (sum(variance * count for variance, count in parts) / freedom[yardstick], freedom[yardstick])
        for yardstick, parts in sources.items()
    }


def noise_of(cells: Cells, bases: Bases) -> SeedNoise:
    """How much differences change from seed to seed, over all configurations of a study."""
    return seed_noise(_contrasts_with_baselines(cells, bases).values())


def _contrasts_with_baselines(cells: Cells, bases: Bases) -> dict[str, dict[Yardstick, Contrast]]:
    return {
        name: contrasts(name, baseline, cells, bases)
        for name in cells
        if (baseline := baseline_of(name)) in cells and baseline != name
    }


def differences(name: str, baseline: str, cells: Cells, bases: Bases, noise: SeedNoise) -> dict[Yardstick, PairedTest]:
    """Tests of one configuration against another, by yardstick, not corrected. noise: of the study, see `noise_of`."""
    compared = contrasts(name, baseline, cells, bases)
    return {yardstick: contrast.test(noise.get(yardstick)) for yardstick, contrast in compared.items()}


def contrasts(name: str, baseline: str, cells: Cells, bases: Bases) -> dict[Yardstick, Contrast]:
    """How one configuration differs from another, by yardstick. Only what both have, on the same texts and seeds, is compared.

    I(D;E) is compared on other texts too. With one seed nothing is compared.
    """
    pairs = [(cells[name][seed], cells[baseline][seed]) for seed in cells[name] if seed in cells[baseline]]
    domains = CONFIGURATIONS[name].domains
    same_texts = CONFIGURATIONS[baseline].domains == domains
    compared: dict[Yardstick, Contrast | None] = {}
    if len(pairs) < _FEWEST_SEEDS:
        return {}
    if all(cell.shares is not None for pair in pairs for cell in pair):
        compared["information"] = _information_contrast(pairs, same_texts)
        for design in EMBEDDINGS:
            compared[design] = Contrast.of(np.stack([_scores(a, design) - _scores(b, design) for a, b in pairs]), "tasks")
    if same_texts:
        gains = [_gains(a, bases[domains]) - _gains(b, bases[domains]) for a, b in pairs]
        compared["gain"] = Contrast.of(np.stack(gains), "responses")
    return {yardstick: contrast for yardstick, contrast in compared.items() if contrast is not None}


def _gains(cell: Cell, base: Cell) -> NDArray[np.float64]:
    """How much better than the base model each held-out response is predicted, in nats per token."""
    return np.concatenate([np.subtract(base.likelihood[domain], values) for domain, values in cell.likelihood.items()])


def _scores(cell: Cell, design: str) -> NDArray[np.float64]:
    return 100 * np.array([cell.scores[design][task] for task in sorted(cell.scores[design])])


@lru_cache(maxsize=4096)
def information(cell: Cell) -> float:
    """I(D;E) / min(log |D|, log n) of first choices of n experts, the mean over routing points, without what shuffled labels give."""
    assert cell.shares is not None
    return _without_chance(cell.shares, cell.labels, np.ones((1, len(cell.labels))))[1]


@lru_cache(maxsize=4096)
def best_information(cell: Cell) -> float:
    """The same at the routing point where it is highest. Of many points, the highest is a little too high by chance."""
    assert cell.shares is not None
    values, chance = _information_and_chance(cell.shares, cell.labels)
    return max(without_chance(float(value), float(by_chance)) for value, by_chance in zip(values, chance, strict=True))


def _without_chance(shares: Shares, labels: NDArray[Any], weights: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Samples (resample,) and value."""
    values, chances = _information_and_chance(shares, labels)
    chance = float(chances.mean())
    samples = _by_point(shares, labels, weights).mean(axis=1)
    return samples / (1 - chance) if chance < 1 else samples, without_chance(float(values.mean()), chance)


def _information_and_chance(shares: Shares, labels: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """I(D;E) of each routing point, and what shuffled labels give there."""
    once = np.ones((1, len(labels)))
    chance = np.mean([_by_point(shares, shuffled, once)[0] for shuffled in permute_labels(labels)], axis=0)
    return _by_point(shares, labels, once)[0], chance


def _by_point(
    shares: Shares, labels: NDArray[Any], weights: NDArray[np.float64]
) -> Float[NDArray[np.float64], "resample point"]:
    # fewer experts than domains cannot separate all of them
    maximum = min(1.0, np.log(shares.shape[2]) / np.log(len(np.unique(labels))))
    return np.asarray(normalised_information(joint_of_texts(shares, labels, weights)) / maximum)


def _information_contrast(pairs: Sequence[tuple[Cell, Cell]], same_texts: bool) -> Contrast:
    """The variance over texts is from a bootstrap within domains, with the same texts for both.

    A bootstrap of n texts has (n - 1) / n of the variance, so it is made larger by n / (n - 1) of the smallest domain.
    """
    samples, values = [], []
    for pair in pairs:
        sides = [_resampled_information(cell, 0 if same_texts else side) for side, cell in enumerate(pair)]
        samples.append(sides[0][0] - sides[1][0])
        values.append(sides[0][1] - sides[1][1])
    fewest = int(np.unique(pairs[0][0].labels, return_counts=True)[1].min())
    over_texts = float(np.mean(samples, axis=0).var(ddof=1)) * fewest / (fewest - 1)
    return Contrast(tuple(values), over_texts, len(pairs[0][0].labels), "texts (bootstrap)")


@lru_cache(maxsize=4096)
def _resampled_information(cell: Cell, seed: int) -> tuple[NDArray[np.float64], float]:
    assert cell.shares is not None
    weights = np.concatenate(list(text_weights(len(cell.labels), RESAMPLES, seed, cell.labels)))
    return _without_chance(cell.shares, cell.labels, weights)


@dataclass(frozen=True)
class Row:
    """A configuration over its seeds."""

    name: str
    seeds: int
    information: float | None
    """I(D;E) of first choices, as a share of the most that its domains and experts allow, without chance: mean over points and seeds."""
    best_information: float | None
    """At the routing point where it is highest."""
    points: int
    """Routing points that decide."""
    strength: float | None
    """Mean sum of gates."""
    gain: float
    """Nats per token less than the base model."""
    scores: dict[str, float]
    """By design, the mean score over tasks and seeds, in percent."""
    measures: dict[str, float]
    """Of routing, by name, without chance, mean over seeds."""
    tests: dict[Yardstick, PairedTest]
    """By yardstick, against the baseline."""

    @classmethod
    def of(cls, name: str, cells: Cells, bases: Bases, tests: dict[Yardstick, PairedTest]) -> Row:
        """The row of a configuration."""
        seeds = list(cells[name].values())
        base, choice = bases[CONFIGURATIONS[name].domains], CONFIGURATIONS[name].choice
        routed = [cell for cell in seeds if cell.shares is not None]
        # a choice without training has the standard router's sum of gates, or 1 by its definition
        with_gates = cells.get(STANDARD if choice else name, {}).values()
        strengths = [cell.strength for cell in with_gates if cell.strength is not None]
        mean_strength = float(np.mean(strengths)) if strengths else None
        return cls(
            name=name,
            seeds=len(seeds),
            information=float(np.mean([information(cell) for cell in routed])) if routed else None,
            best_information=float(np.mean([best_information(cell) for cell in routed])) if routed else None,
            points=routed[0].shares.shape[1] if routed and routed[0].shares is not None else 0,
            strength=mean_strength if choice in (None, "random") else 1.0,
            gain=float(np.mean([_gains(cell, base) for cell in seeds])),
            scores={
                design: 100 * float(np.mean([list(cell.scores[design].values()) for cell in seeds]))
                for design in seeds[0].scores
            },
            measures={
                measure: float(np.mean([cell.routing[measure]["corrected"] for cell in seeds])) for measure in seeds[0].routing
            },
            tests=tests,
        )


def rows_of(cells: Cells, bases: Bases) -> list[Row]:
    """The rows of the measured configurations. The tests of a yardstick are one family."""
    compared = _contrasts_with_baselines(cells, bases)
    noise = seed_noise(compared.values())
    tests = {
        name: {yardstick: contrast.test(noise.get(yardstick)) for yardstick, contrast in by_yardstick.items()}
        for name, by_yardstick in compared.items()
    }
    for yardstick in get_args(Yardstick):
        family = [name for name in tests if yardstick in tests[name]]
        for name, test in zip(family, with_holm([tests[name][yardstick] for name in family]), strict=True):
            tests[name][yardstick] = test
    return [Row.of(name, cells, bases, tests.get(name, {})) for name in cells]


def tests_as_json(tests: Mapping[Yardstick, PairedTest]) -> dict[str, Any]:
    """Tests by yardstick, for the results."""
    return {name: {key: value for key, value in vars(test).items() if key != "bounds"} for name, test in tests.items()}


ROUTING_SCORE: Final = "score of routing weights"
CONCAT: Final = "concat minus hidden state"
_OUTCOMES: Final[Mapping[str, Callable[[Row], float]]] = {
    ROUTING_SCORE: lambda row: row.scores["routing"],
    CONCAT: lambda row: row.scores["concat"] - row.scores["hidden"],
    "sum minus hidden state": lambda row: row.scores["sum"] - row.scores["hidden"],
    "gain in nats": lambda row: row.gain,
}


def correlations_with_information(rows: Iterable[Row]) -> dict[str, RankCorrelation]:
    """Over configurations: does I(D;E) correlate with the score of routing weights, and with their gain over hidden states?

    Only trained routers with the standard domains count, each router once. "as many decisions" repeats the questions about routing weights
    with configurations that decide as often as the standard router, since the number of decisions changes both measures. p is corrected
    for all questions (Holm).
    """
    counted = [
        row
        for row in rows
        if row.information is not None
        and CONFIGURATIONS[row.name].domains == CONFIGURATIONS[STANDARD].domains
        and not CONFIGURATIONS[row.name].untrained
        and row.name not in SAME_ROUTER
    ]
    points = next((row.points for row in counted if row.name == STANDARD), 0)
    same_points = [row for row in counted if row.points == points]
    questions = {name: (counted, outcome) for name, outcome in _OUTCOMES.items()}
    if same_points != counted:
        questions |= {f"{name}, as many decisions": (same_points, _OUTCOMES[name]) for name in (ROUTING_SCORE, CONCAT)}
    answers = {
        name: rank_correlation([row.information or 0.0 for row in selected], [outcome(row) for row in selected])
        for name, (selected, outcome) in questions.items()
        if len(selected) >= FEWEST_UNITS
    }
    corrected = holm([answer.p for answer in answers.values()])
    return {name: replace(answer, p=p) for (name, answer), p in zip(answers.items(), corrected, strict=True)}


@dataclass(frozen=True)
class Replication:
    """Our own structure against the configuration with the most distinct routing, on seeds that chose neither."""

    best: str
    """The other configuration."""
    seeds: int
    tests: dict[Yardstick, PairedTest]
    """By yardstick, corrected for their number (Holm)."""

    def as_json(self) -> dict[str, Any]:
        """For the results."""
        return {"best": self.best, "seeds": self.seeds, "tests": tests_as_json(self.tests)}


def most_distinct(rows: Iterable[Row]) -> str | None:
    """The trained configuration with the highest I(D;E) among those with the domains of our own structure, which is left out."""
    rivals = [
        row
        for row in rows
        if row.information is not None and row.name != OWN and not CONFIGURATIONS[row.name].untrained
        if CONFIGURATIONS[row.name].domains == CONFIGURATIONS[OWN].domains
    ]
    return max(rivals, key=lambda row: row.information or 0.0).name if rivals else None


def replicate(best: str, fresh: Cells, bases: Bases, noise: SeedNoise) -> Replication:
    """Compare both on fresh seeds. noise: of the study, since two configurations say little of it."""
    tests = differences(OWN, best, fresh, bases, noise)
    return Replication(best, len(fresh[OWN]), dict(zip(tests, with_holm(list(tests.values())), strict=True)))


def verdicts(claims: Sequence[Claim], cells: Cells, bases: Bases) -> list[Finding]:
    """The verdict on every claim of papers, each by a yardstick (`kinds`). They were planned, so they are a separate family (Holm).

    The plan leaves out what the study cannot carry: finer experts of DeepSeekMoE are smaller experts, and its shared expert learns with the
    others.
    """
    noise = noise_of(cells, bases)
    tests = {
        (claim.id, rival): differences(claim.better, rival, cells, bases, noise).get(claim.kinds[0])  # type: ignore[call-overload]
        for claim in claims
        for rival in claim.than
        if claim.better in cells and rival in cells
    }
    measured = {names: test for names, test in tests.items() if test is not None}
    found = findings(claims, measured, lambda claim: UNITS[claim.kinds[0]])  # type: ignore[index]
    domains = max((len(base.likelihood) for base in bases.values()), default=0)
    return with_seeds(found, {name: len(seeds) for name, seeds in cells.items()}, domains)
