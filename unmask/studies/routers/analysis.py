"""Numbers of the study: means over seeds, differences from the reference configuration, and the correlations over configurations.

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
from unmask.moe.routing.text_bootstrap import shuffled_labels, text_weights, without_chance
from unmask.statistics.paired import PairedTest, holm, with_holm
from unmask.statistics.rank_correlation import FEWEST, RankCorrelation, rank_correlation
from unmask.studies.routers.cell import Cell
from unmask.studies.routers.configurations import CONFIGURATIONS, EMBEDDINGS, OTHERS_ROUTER, STANDARD, Yardstick, reference_of
from unmask.studies.routers.contrast import Contrast, SeedNoise, of_items, seed_noise

RESAMPLES = 1000
Shares = Float[NDArray[Any], "text point expert"]
Cells = Mapping[str, Mapping[int, Cell]]
"""What was measured, by configuration and seed."""
Bases = Mapping[str, Cell]
"""The base model on each set of domains."""
_SEEDS = 2  # fewer say nothing of other seeds


@dataclass(frozen=True)
class Row:
    """A configuration over its seeds.

    information: I(D;E) of first choices, of the most that so many domains and experts allow, without chance; the mean over routing points
    and seeds. best_information: at the routing point where it is highest. points: routing points that decide. strength: mean sum of gates.
    gain: nats per token less than the base model. scores: by design, the mean score over tasks and seeds, in percent. measures: of routing,
    by name, without chance, mean over seeds. tests: by yardstick, against the reference.
    """

    name: str
    seeds: int
    information: float | None
    best_information: float | None
    points: int
    strength: float | None
    gain: float
    scores: dict[str, float]
    measures: dict[str, float]
    tests: dict[Yardstick, PairedTest]


def rows_of(cells: Cells, bases: Bases) -> list[Row]:
    """The rows of all configurations that were measured. The tests of a yardstick are one family."""
    contrasts = _contrasts_of_all(cells, bases)
    noise = seed_noise(contrasts.values())
    tests = {name: _tested(own, noise) for name, own in contrasts.items()}
    for yardstick in get_args(Yardstick):
        family = [name for name in tests if yardstick in tests[name]]
        for name, test in zip(family, with_holm([tests[name][yardstick] for name in family]), strict=True):
            tests[name][yardstick] = test
    return [_row(name, cells, bases, tests.get(name, {})) for name in cells]


def noise_of(cells: Cells, bases: Bases) -> SeedNoise:
    """How much differences change from seed to seed, over all configurations of a study."""
    return seed_noise(_contrasts_of_all(cells, bases).values())


def _contrasts_of_all(cells: Cells, bases: Bases) -> dict[str, dict[Yardstick, Contrast]]:
    """Each configuration against its reference."""
    return {
        name: contrasts(name, reference, cells, bases)
        for name in cells
        if (reference := reference_of(name)) in cells and reference != name
    }


def _tested(contrasts: Mapping[Yardstick, Contrast], noise: SeedNoise) -> dict[Yardstick, PairedTest]:
    return {yardstick: contrast.test(noise.get(yardstick, contrast.seeds)) for yardstick, contrast in contrasts.items()}


def _row(name: str, cells: Cells, bases: Bases, tests: dict[Yardstick, PairedTest]) -> Row:
    own = list(cells[name].values())
    base = bases[CONFIGURATIONS[name].domains]
    routed = [cell for cell in own if cell.shares is not None]
    distinct = float(np.mean([information(cell) for cell in routed])) if routed else None
    best = float(np.mean([best_information(cell) for cell in routed])) if routed else None
    points = routed[0].shares.shape[1] if routed and routed[0].shares is not None else 0
    scores = {design: 100 * float(np.mean([list(cell.scores[design].values()) for cell in own])) for design in own[0].scores}
    gain = float(np.mean([_gain(cell, base) for cell in own]))
    measures = {measure: float(np.mean([cell.routing[measure]["corrected"] for cell in own])) for measure in own[0].routing}
    return Row(name, len(own), distinct, best, points, _strength(name, cells), gain, scores, measures, tests)


def _strength(name: str, cells: Cells) -> float | None:
    """The mean sum of a token's gates. A choice without training has that of the standard router, or 1 by its definition."""
    choice = CONFIGURATIONS[name].choice
    if choice is not None and choice != "random":
        return 1.0
    found = [cell.strength for cell in cells.get(STANDARD if choice else name, {}).values() if cell.strength is not None]
    return float(np.mean(found)) if found else None


def differences(name: str, reference: str, cells: Cells, bases: Bases, noise: SeedNoise) -> dict[Yardstick, PairedTest]:
    """Tests of one configuration against another, by yardstick, not corrected. noise: of the study, see `noise_of`."""
    return _tested(contrasts(name, reference, cells, bases), noise)


def contrasts(name: str, reference: str, cells: Cells, bases: Bases) -> dict[Yardstick, Contrast]:
    """How one configuration differs from another, by yardstick. Only what both have, on the same texts and seeds, is compared.

    I(D;E) is compared on other texts too. With one seed nothing is compared.
    """
    pairs = [(cells[name][seed], cells[reference][seed]) for seed in cells[name] if seed in cells[reference]]
    domains = CONFIGURATIONS[name].domains
    same_texts = CONFIGURATIONS[reference].domains == domains
    found: dict[Yardstick, Contrast | None] = {}
    if len(pairs) < _SEEDS:
        return {}
    if all(cell.shares is not None for pair in pairs for cell in pair):
        found["information"] = _information_contrast(pairs, same_texts)
        for design in EMBEDDINGS:
            found[design] = of_items(np.stack([_scores(a, design) - _scores(b, design) for a, b in pairs]), "tasks")
    if same_texts:
        gains = [_gain(a, bases[domains]) - _gain(b, bases[domains]) for a, b in pairs]
        found["gain"] = of_items(np.stack(gains), "responses")
    return {yardstick: contrast for yardstick, contrast in found.items() if contrast is not None}


def _gain(cell: Cell, base: Cell) -> NDArray[np.float64]:
    """How much better than the base model each held-out response is predicted, in nats per token."""
    return np.concatenate([np.subtract(base.likelihood[domain], values) for domain, values in cell.likelihood.items()])


def _scores(cell: Cell, design: str) -> NDArray[np.float64]:
    return 100 * np.array([cell.scores[design][task] for task in sorted(cell.scores[design])])


@lru_cache(maxsize=4096)
def information(cell: Cell) -> float:
    """I(D;E) / min(log |D|, log n) of first choices of n experts, the mean over routing points, without what shuffled labels give."""
    assert cell.shares is not None
    return _corrected(cell.shares, cell.labels, np.ones((1, len(cell.labels))))[1]


@lru_cache(maxsize=4096)
def best_information(cell: Cell) -> float:
    """The same at the routing point where it is highest. Of many points, the highest is a little too high by chance."""
    assert cell.shares is not None
    values, chance = _with_chance(cell.shares, cell.labels)
    return max(without_chance(float(value), float(by_chance)) for value, by_chance in zip(values, chance, strict=True))


def _corrected(shares: Shares, labels: NDArray[Any], weights: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Samples (resample,) and value, without chance."""
    values, chances = _with_chance(shares, labels)
    chance = float(chances.mean())
    samples = _by_point(shares, labels, weights).mean(axis=1)
    return samples / (1 - chance) if chance < 1 else samples, without_chance(float(values.mean()), chance)


def _with_chance(shares: Shares, labels: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """I(D;E) of each routing point, and what shuffled labels give there."""
    once = np.ones((1, len(labels)))
    chance = np.mean([_by_point(shares, shuffled, once)[0] for shuffled in shuffled_labels(labels)], axis=0)
    return _by_point(shares, labels, once)[0], chance


def _by_point(
    shares: Shares, labels: NDArray[Any], weights: NDArray[np.float64]
) -> Float[NDArray[np.float64], "resample point"]:
    # fewer experts than domains cannot tell all of them apart
    most = min(1.0, np.log(shares.shape[2]) / np.log(len(np.unique(labels))))
    return np.asarray(normalised_information(joint_of_texts(shares, labels, weights)) / most)


def _information_contrast(pairs: Sequence[tuple[Cell, Cell]], same_texts: bool) -> Contrast:
    """The variance over texts is that of a bootstrap within domains, with the same texts for both.

    A bootstrap of n texts has (n - 1) / n of the variance, so it is made larger by n / (n - 1) of the smallest domain.
    """
    samples, values = [], []
    for pair in pairs:
        sides = [_side(cell, 0 if same_texts else side) for side, cell in enumerate(pair)]
        samples.append(sides[0][0] - sides[1][0])
        values.append(sides[0][1] - sides[1][1])
    fewest = int(np.unique(pairs[0][0].labels, return_counts=True)[1].min())
    over_texts = float(np.mean(samples, axis=0).var(ddof=1)) * fewest / (fewest - 1)
    return Contrast(tuple(values), over_texts, len(pairs[0][0].labels), "texts (bootstrap)")


@lru_cache(maxsize=4096)
def _side(cell: Cell, seed: int) -> tuple[NDArray[np.float64], float]:
    assert cell.shares is not None
    weights = np.concatenate(list(text_weights(len(cell.labels), RESAMPLES, seed, cell.labels)))
    return _corrected(cell.shares, cell.labels, weights)


def tests_as_json(tests: Mapping[Yardstick, PairedTest]) -> dict[str, Any]:
    """Tests by yardstick, for the results."""
    return {name: {key: value for key, value in vars(test).items() if key != "bounds"} for name, test in tests.items()}


def distinct_and_good(rows: Iterable[Row]) -> dict[str, RankCorrelation]:
    """Over configurations: does I(D;E) go with the score of routing weights, and with what they add to hidden states?

    Only trained routers with the standard domains count, each router once. "as many decisions" repeats the questions about routing weights
    with those that decide as often as the standard router, since the number of decisions changes both measures. p is corrected for all
    questions (Holm).
    """
    counted = [row for row in rows if row.information is not None and _has_a_router_of_its_own(row.name)]
    points = next((row.points for row in counted if row.name == STANDARD), 0)
    alike = [row for row in counted if row.points == points]
    found = {name: _correlation(counted, outcome) for name, outcome in _OUTCOMES.items()}
    if alike != counted:
        found |= {f"{name}, as many decisions": _correlation(alike, _OUTCOMES[name]) for name in (ROUTING_SCORE, CONCAT)}
    known = {name: value for name, value in found.items() if value is not None}
    corrected = holm([value.p for value in known.values()])
    return {name: replace(value, p=p) for (name, value), p in zip(known.items(), corrected, strict=True)}


ROUTING_SCORE: Final = "score of routing weights"
CONCAT: Final = "concat minus hidden state"
_OUTCOMES: Final[Mapping[str, Callable[[Row], float]]] = {
    ROUTING_SCORE: lambda row: row.scores["routing"],
    CONCAT: lambda row: row.scores["concat"] - row.scores["hidden"],
    "sum minus hidden state": lambda row: row.scores["sum"] - row.scores["hidden"],
    "gain in nats": lambda row: row.gain,
}


def _has_a_router_of_its_own(name: str) -> bool:
    how = CONFIGURATIONS[name]
    return how.domains == CONFIGURATIONS[STANDARD].domains and not how.untrained and name not in OTHERS_ROUTER


def _correlation(rows: Sequence[Row], outcome: Callable[[Row], float]) -> RankCorrelation | None:
    if len(rows) < FEWEST:
        return None
    return rank_correlation([row.information or 0.0 for row in rows], [outcome(row) for row in rows])
