"""Measures of a record: how sure, even and specialised its routers are, for each label and as the mean over routing points.

One routing point is in memory at a time. Each measure of a point is a series: its value, its resamples of texts and its expected value by
chance, so that means over routing points keep the resamples together. For labels of texts, chance is measured with permuted labels.
Tokens are ordered, so there one series is shifted along the other by a random number of tokens: this breaks the relation between the two,
and keeps the autocorrelation of each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.io.seals import read_record as read_sealed
from unmask.io.seals import write_record
from unmask.io.terminal import progress_bar
from unmask.moe.routing import formulas
from unmask.moe.routing.formulas import (
    joint_of_texts,
    joint_of_tokens,
    normalised_information,
    specialisation,
)
from unmask.moe.routing.readouts import read_out, texts_to_read
from unmask.moe.routing.record import MEASURES, Choices, Label, RoutingRecord
from unmask.moe.routing.text_bootstrap import (
    Draws,
    bootstrap_texts,
    mean_of,
    shuffled_labels,
    text_counts,
    text_sums,
    text_weights,
)

GENERAL = (
    "confidence", "uncertainty", "balance", "distinctness", "max violation", "squared variation", "repetition",
)  # fmt: skip
OF_LABELS = ("information", "soft information", "specialisation")
_MOVES, _DRAWN_TOKENS, _DENSE = 20, 200_000, 2**24
_TABLE = 2**26
"""Most numbers of a table by text, label and expert. With more, texts are drawn in groups."""

Series = tuple[float, NDArray[np.float64], float]
"""Value, resamples, chance."""


@dataclass(frozen=True, eq=False)
class PointChoices:
    """The choices of every token at one routing point. texts: numbered from 0 without gaps, in order."""

    texts: NDArray[np.int64]
    positions: NDArray[Any]
    ids: NDArray[Any]
    tags: Mapping[str, NDArray[np.int16]]
    probabilities: NDArray[np.float16]
    chosen: NDArray[np.int16]

    @classmethod
    def of(cls, choices: Choices) -> PointChoices:
        """The choices at the one point that was read."""
        numbered = np.unique(choices.texts, return_inverse=True)[1].astype(np.int64)
        return cls(numbered, choices.positions, choices.ids, choices.tags, choices.probabilities[0], choices.chosen[0])

    @property
    def experts(self) -> int:
        """The number of experts."""
        return int(self.probabilities.shape[1])

    @cached_property
    def number(self) -> int:
        """The number of texts."""
        return int(self.texts[-1]) + 1

    @cached_property
    def first(self) -> NDArray[np.int64]:
        """The expert that acts most on each token."""
        first = self.chosen[:, 0].astype(np.int64)
        return np.where(first >= 0, first, self.probabilities.argmax(axis=1))

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """The first token of each text."""
        return np.searchsorted(self.texts, np.arange(self.number))

    @cached_property
    def sizes(self) -> NDArray[np.float64]:
        """The number of tokens of each text."""
        return np.bincount(self.texts).astype(np.float64)

    @cached_property
    def hard(self) -> NDArray[np.float64]:
        """How often each expert is the first choice, (text, expert)."""
        return text_counts(self.first, self.texts, self.number, self.experts)

    @cached_property
    def soft(self) -> NDArray[np.float64]:
        """The sum of the probabilities of each expert, (text, expert)."""
        return text_sums(self.probabilities.astype(np.float32), self.starts)

    @cached_property
    def load(self) -> NDArray[np.float64]:
        """How often each expert is among the chosen, (text, expert)."""
        total = np.zeros((self.number, self.experts))
        for rank_choices in self.chosen.T:
            total += text_counts(
                rank_choices[rank_choices >= 0].astype(np.int64), self.texts[rank_choices >= 0], self.number, self.experts
            )
        return total


def general_series(point: PointChoices, draws: Draws) -> dict[str, Series]:
    """The measures that need no labels."""
    certainty = text_sums(formulas.token_certainty(point.probabilities), point.starts)
    neighbours = formulas.follows(point.texts, point.positions)
    same = neighbours & (point.first == np.roll(point.first, 1))
    pairs, repeated = (np.bincount(point.texts, mask, minlength=point.number) for mask in (neighbours, same))

    def statistic(weights: NDArray[np.float64]) -> NDArray[np.float64]:
        confidence, uncertainty = (weights @ certainty / (weights @ point.sizes)[:, None]).T
        even, load = formulas.balance(weights @ point.soft), weights @ point.load
        again = formulas.repetition(weights @ repeated, weights @ pairs, weights @ point.hard)
        measures = (
            confidence,
            uncertainty,
            even,
            even - uncertainty,
            formulas.max_violation(load),
            formulas.squared_variation(load),
            again,
        )
        return np.stack(measures, axis=1)

    values = statistic(np.ones((1, point.number)))[0]
    samples = bootstrap_texts(statistic, point.number, resamples=draws.resamples, seed=draws.seed)
    return {name: (float(values[column]), samples[:, column], 0.0) for column, name in enumerate(GENERAL)}


def text_label_series(point: PointChoices, labels: NDArray[np.int64], draws: Draws) -> dict[str, Series]:
    """How much experts tell about a label of texts, on first choices and on probabilities."""
    shares = np.stack([point.hard, point.soft], axis=1) / point.sizes[:, None, None]

    def statistic(weights: NDArray[np.float64], labels: NDArray[np.int64] = labels) -> NDArray[np.float64]:
        return _of_joint(joint_of_texts(shares, labels, weights))

    once = np.ones((1, point.number))
    values = statistic(once)[0]
    samples = bootstrap_texts(statistic, point.number, resamples=draws.resamples, seed=draws.seed, strata=labels)
    chance = np.mean([statistic(once, dealt)[0] for dealt in shuffled_labels(labels, draws.shuffles, draws.seed)], axis=0)
    return _named(values, samples, chance)


def token_label_series(point: PointChoices, tags: NDArray[np.int16], values: int, draws: Draws) -> dict[str, Series]:
    """How much experts tell about a label of tokens. Tokens without a label (-1) are left out."""
    tagged = tags >= 0
    codes, first = tags[tagged].astype(np.int64), point.first[tagged]
    probabilities = point.probabilities[tagged].astype(np.float32)
    groups = min(point.number, max(2, _TABLE // (values * point.experts)))
    sample = np.random.default_rng(draws.seed).permutation(point.number) % groups
    owners = sample[point.texts[tagged]]
    counts = np.bincount((owners * values + codes) * point.experts + first, minlength=groups * values * point.experts)
    sums = _sums_by(owners * values + codes, probabilities, groups * values)
    tables = [table.reshape(groups, values, point.experts).astype(np.float64) for table in (counts, sums)]

    def statistic(weights: NDArray[np.float64], tables: Sequence[NDArray[np.float64]] = tables) -> NDArray[np.float64]:
        return _of_joint(np.stack([joint_of_tokens(table, weights) for table in tables], axis=1))

    def moved(by: int) -> NDArray[np.float64]:
        shifted = np.roll(codes, by)
        counts = np.bincount(shifted * point.experts + first, minlength=values * point.experts).astype(np.float64)
        sums = _sums_by(shifted, probabilities, values)
        once = np.ones((1, 1))
        return np.asarray(statistic(once, [table.reshape(1, values, point.experts) for table in (counts, sums)])[0])

    samples = bootstrap_texts(statistic, groups, resamples=draws.resamples, seed=draws.seed)
    chance = np.mean([moved(by) for by in _moves(len(codes), draws.seed)], axis=0)
    return _named(statistic(np.ones((1, groups)))[0], samples, chance)


def vocabulary_series(point: PointChoices, draws: Draws) -> Series:
    """How much the token id decides the first choice. nan if no id is seen ten times."""
    codes = formulas.frequent(point.ids)
    is_frequent = codes >= 0
    ids, first, size = codes[is_frequent], point.first[is_frequent], int(codes.max(initial=-1)) + 1

    def value(table: NDArray[np.float64]) -> float:
        return float(formulas.vocabulary_specialisation(table.reshape(size, point.experts)))

    chance = (np.roll(ids, by) * point.experts + first for by in _moves(len(ids), draws.seed))
    return _of_tables(
        ids * point.experts + first, point.texts[is_frequent], point.number, size * point.experts, value, chance, draws
    )


def layer_agreement_series(point: PointChoices, first: NDArray[np.int64], experts: int, draws: Draws) -> Series:
    """How much the first choices at another routing point tell about those at this one."""

    def value(table: NDArray[np.float64]) -> float:
        return float(formulas.layer_agreement(table.reshape(experts, point.experts)))

    chance = (np.roll(first, by) * point.experts + point.first for by in _moves(len(first), draws.seed))
    codes, size = first * point.experts + point.first, experts * point.experts
    return _of_tables(codes, point.texts, point.number, size, value, chance, draws)


def coactivation_series(point: PointChoices, draws: Draws) -> Series:
    """How often an expert acts together with its strongest partner. For chance, the experts of each token are drawn by their formulas."""
    load, k = np.maximum(point.load.sum(axis=0), 1e-9).astype(np.float32), point.chosen.shape[1]

    def value(table: NDArray[np.float64]) -> float:
        return float(formulas.strongest_partner(table.reshape(point.experts, point.experts)))

    def by_load(random: np.random.Generator) -> NDArray[np.int64]:
        # the smallest of exponential variables with these rates: drawn without replacement
        waits = random.standard_exponential((len(point.chosen), point.experts), np.float32) / load
        return formulas.pair_codes(np.argpartition(waits, k - 1, axis=1)[:, :k], point.experts)[0]

    codes, tokens = formulas.pair_codes(point.chosen, point.experts)
    times = int(np.clip(_DRAWN_TOKENS // len(point.chosen), 2, _MOVES))
    chance = (by_load(np.random.default_rng([draws.seed, 3, time])) for time in range(times))
    return _of_tables(codes, point.texts[tokens], point.number, point.experts**2, value, chance, draws)


def _of_tables(
    codes: NDArray[np.int64],
    texts: NDArray[np.int64],
    number: int,
    size: int,
    value: Callable[[NDArray[np.float64]], float],
    chance: Iterable[NDArray[np.int64]],
    draws: Draws,
) -> Series:
    """A measure of how often each code occurs. chance: other codes of the same tokens. A large table is recounted for each resample."""
    if not len(codes):
        return float("nan"), np.zeros(0), 0.0
    dense = text_counts(codes, texts, number, size) if number * size <= _DENSE else None

    def table(row: NDArray[np.float64]) -> NDArray[np.float64]:
        counts = np.bincount(codes, row[texts], minlength=size) if dense is None else row @ dense
        return np.asarray(counts, np.float64)

    weights = text_weights(number, draws.token_resamples, draws.seed) if number > 1 else ()
    samples = np.array([value(table(row)) for block in weights for row in block])
    by_chance = [value(np.bincount(shuffled, minlength=size).astype(np.float64)) for shuffled in chance]
    return value(table(np.ones(number))), samples, float(np.mean(by_chance))


def _moves(tokens: int, seed: int) -> Iterator[int]:
    """Numbers of tokens to move a series by, none of them near 0."""
    random = np.random.default_rng([seed, 2])
    margin = tokens // 10
    for _ in range(_MOVES):
        yield int(random.integers(margin, tokens - margin)) if tokens > 1 else 0


def _sums_by(codes: NDArray[np.int64], values: NDArray[np.float32], size: int) -> NDArray[np.float64]:
    order = np.argsort(codes, kind="stable")
    present, starts = np.unique(codes[order], return_index=True)
    sums = np.zeros((size, values.shape[1]))
    if len(present):
        sums[present] = np.add.reduceat(values[order], starts, axis=0, dtype=np.float64)
    return sums


def _of_joint(joint: NDArray[np.float64]) -> NDArray[np.float64]:
    """The measures of labels from a joint of shape (resample, hard or soft, label, expert)."""
    info, special = normalised_information(joint), specialisation(joint)
    return np.array([info[:, 0], info[:, 1], special[:, 0]]).T


def _named(values: NDArray[np.float64], samples: NDArray[np.float64], chance: NDArray[np.float64]) -> dict[str, Series]:
    return {name: (float(values[column]), samples[:, column], float(chance[column])) for column, name in enumerate(OF_LABELS)}


VERSION = 1
"""Of the measures: they are computed again if it has grown."""


def measured_routing(record: RoutingRecord, draws: Draws | None = None) -> dict[str, Any]:
    """The measures of a record: from the file in its folder if they were computed with the same draws, else computed and written."""
    draws = draws or Draws()
    file = record.folder / MEASURES
    saved = read_sealed(file) if file.is_file() else None
    same = {"version": VERSION, "record": record.settings.digest, "draws": asdict(draws)}
    if saved is None or any(saved.get(key) != value for key, value in same.items()):
        write_record(file, measure_routing(record, draws))
        saved = read_sealed(file)
    assert saved is not None
    return saved


def measure_routing(record: RoutingRecord, draws: Draws | None = None) -> dict[str, Any]:
    """Compute all measures of a record, a routing point at a time, as JSON.

    general, labels: each measure as the mean over routing points, with its corrected value at each of them. shares (of a label): how often
    the tokens of each value choose each expert, (point, value, expert); these are the domain specialisations of OLMoE. readout: what can
    be read off routing weights and hidden states of texts. load: the share of tokens that choose each expert, (point, expert).
    unused: the (point, expert) that no token chooses.
    """
    draws, settings = draws or Draws(), record.settings
    general: dict[str, list[Series]] = defaultdict(list)
    by_label: dict[str, dict[str, list[Series]]] = {label.name: defaultdict(list) for label in settings.labels}
    shares: dict[str, list[list[list[float]]]] = defaultdict(list)
    numbers: dict[str, list[int]] = {}
    load, routing = [], []
    before: tuple[NDArray[np.int64], int] | None = None
    present = np.unique(record.choices().texts)
    labels = {name: codes[present].astype(np.int64) for name, codes in record.texts.labels.items()}
    probe_texts = texts_to_read(len(present), draws.seed)
    with progress_bar("measuring routers", len(record.points)) as advance:
        for index in range(len(record.points)):
            point = PointChoices.of(record.choices([index]))
            _append(general, general_series(point, draws))
            _append(general, {"vocabulary specialisation": vocabulary_series(point, draws)})
            if before is not None:
                _append(general, {"layer agreement": layer_agreement_series(point, *before, draws)})
            if point.chosen.shape[1] > 1:
                _append(general, {"co-activation": coactivation_series(point, draws)})
            for label in settings.labels:
                label_series, table, numbers[label.name] = _of_label(point, label, labels, draws)
                _append(by_label[label.name], label_series)
                shares[label.name].append(np.round(table, 4).tolist())
            load.append(point.load.sum(axis=0) / len(point.texts))
            routing.append((point.soft[probe_texts] / point.sizes[probe_texts, None]).astype(np.float32))
            before = point.first, point.experts
            advance(1)
    hidden, vectors = record.hidden(present[probe_texts]), np.concatenate(routing, axis=1)
    label_measures = {}
    for label in settings.labels:
        # the largest possible specialisation is 1 - sum of the squared weights of the values
        counts = np.array(numbers[label.name], float)
        weights = (counts > 0) / (counts > 0).sum() if label.of == "text" else counts / counts.sum()
        largest = {"specialisation": float(1 - (weights**2).sum())}
        label_measures[label.name] = {
            "of": label.of,
            "values": dict(zip(label.values, numbers[label.name], strict=True)),
            "measures": _means(by_label[label.name], largest),
            "shares": shares[label.name],
            "readout": read_out(vectors, hidden, labels[label.name][probe_texts], draws) if label.of == "text" else None,
        }
    return {
        "version": VERSION,
        "record": settings.digest,
        "draws": asdict(draws),
        "model": settings.model,
        "texts": len(present),
        "tokens": settings.tokens,
        "points": [point.model_dump() for point in settings.points],
        "experts": settings.experts,
        "general": _means(general, {}),
        "labels": label_measures,
        "load": [np.round(of_point, 6).tolist() for of_point in load],
        "unused": [(index, int(expert)) for index, of_point in enumerate(load) for expert in np.flatnonzero(of_point == 0)],
    }


def _append(collected: dict[str, list[Series]], measures: Mapping[str, Series]) -> None:
    for name, series in measures.items():
        if not np.isnan(series[0]):
            collected[name].append(series)


def _means(collected: Mapping[str, Sequence[Series]], largest: Mapping[str, float]) -> dict[str, Any]:
    means = {}
    for name, points in collected.items():
        maximum = largest.get(name, 1.0)
        by_point = [mean_of([series], maximum).corrected for series in points]
        means[name] = {**mean_of(points, maximum).as_json(), "by_point": by_point}
    return means


def _of_label(
    point: PointChoices, label: Label, labels: Mapping[str, NDArray[np.int64]], draws: Draws
) -> tuple[dict[str, Series], NDArray[np.float64], list[int]]:
    """The measures of a label, how often each of its values chooses each expert, and the number of texts or tokens of each value."""
    table = np.zeros((len(label.values), point.experts))
    if label.of == "text":
        codes = labels[label.name]
        text_shares = point.load / point.sizes[:, None]
        rates = joint_of_texts(text_shares[:, None, :], codes, np.ones((1, point.number)))[0, 0] * len(np.unique(codes))
        table[np.unique(codes)] = rates
        return text_label_series(point, codes, draws), table, np.bincount(codes, minlength=len(table)).tolist()
    tags = point.tags[label.name]
    counts = np.bincount(tags[tags >= 0], minlength=len(table))
    for choice in point.chosen.T:
        real = (tags >= 0) & (choice >= 0)
        np.add.at(table, (tags[real], choice[real]), 1)
    return token_label_series(point, tags, len(table), draws), table / np.maximum(counts, 1)[:, None], counts.tolist()
