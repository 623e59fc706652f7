"""Measures of a record: how sure, even and specialised its routers are, for each label and as the mean over routing points.

One routing point is in memory at a time. Each measure of a point is a series: its value, its resamples of texts and its expected value by
chance, so that means over routing points keep the resamples together. For labels of texts, chance is measured with permuted labels.
Tokens are ordered, so there one series is shifted along the other by a random number of tokens: this breaks the relation between the two,
and keeps the autocorrelation of each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from unmask.io.array_types import NDArray
from unmask.io.seals import read_record as read_sealed
from unmask.io.seals import write_record
from unmask.io.terminal import progress_bar
from unmask.moe.routing import formulas
from unmask.moe.routing.formulas import joint_of_texts, normalised_information, specialisation
from unmask.moe.routing.record import MEASURES, Choices, Label, RoutingRecord
from unmask.moe.routing.text_bootstrap import (
    Draws,
    Series,
    bootstrap_texts,
    mean_interval,
    mean_of,
    permute_labels,
    text_counts,
    text_sums,
    text_weights,
)

GENERAL = ("confidence", "uncertainty", "balance", "distinctness", "max violation", "repetition")
OF_LABELS = ("information", "specialisation")
_SHIFTS = 20
_FOLDS = 5
_PROBED = 2000
"""Most texts that probes are fitted on."""


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
    def n_texts(self) -> int:
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
        return np.searchsorted(self.texts, np.arange(self.n_texts))

    @cached_property
    def sizes(self) -> NDArray[np.float64]:
        """The number of tokens of each text."""
        return np.bincount(self.texts).astype(np.float64)

    @cached_property
    def first_counts(self) -> NDArray[np.float64]:
        """How often each expert is the first choice, (text, expert)."""
        return text_counts(self.first, self.texts, self.n_texts, self.experts)

    @cached_property
    def probability_sums(self) -> NDArray[np.float64]:
        """The sum of the probabilities of each expert, (text, expert)."""
        return text_sums(self.probabilities.astype(np.float32), self.starts)

    @cached_property
    def load(self) -> NDArray[np.float64]:
        """How often each expert is among the chosen, (text, expert)."""
        total = np.zeros((self.n_texts, self.experts))
        for choice in self.chosen.T:
            acts = choice >= 0
            total += text_counts(choice[acts].astype(np.int64), self.texts[acts], self.n_texts, self.experts)
        return total


def general_series(point: PointChoices, draws: Draws) -> dict[str, Series]:
    """The measures that need no labels."""
    certainty = text_sums(formulas.token_certainty(point.probabilities), point.starts)
    neighbours = formulas.follows(point.texts, point.positions)
    same = neighbours & (point.first == np.roll(point.first, 1))
    pairs, repeated = (np.bincount(point.texts, mask, minlength=point.n_texts) for mask in (neighbours, same))

    def statistic(weights: NDArray[np.float64]) -> NDArray[np.float64]:
        confidence, uncertainty = (weights @ certainty / (weights @ point.sizes)[:, None]).T
        balance = formulas.balance(weights @ point.probability_sums)
        violation = formulas.max_violation(weights @ point.load)
        repetition = formulas.repetition(weights @ repeated, weights @ pairs, weights @ point.first_counts)
        return np.stack([confidence, uncertainty, balance, balance - uncertainty, violation, repetition], axis=1)

    values = statistic(np.ones((1, point.n_texts)))[0]
    samples = bootstrap_texts(statistic, point.n_texts, resamples=draws.resamples, seed=draws.seed)
    return {name: (float(values[column]), samples[:, column], 0.0) for column, name in enumerate(GENERAL)}


def text_label_series(point: PointChoices, labels: NDArray[np.int64], draws: Draws) -> dict[str, Series]:
    """How much first choices tell about a label of texts."""
    shares = (point.first_counts / point.sizes[:, None])[:, None, :]

    def statistic(weights: NDArray[np.float64], labels: NDArray[np.int64] = labels) -> NDArray[np.float64]:
        joint = joint_of_texts(shares, labels, weights)[:, 0]
        return np.stack([normalised_information(joint), specialisation(joint)], axis=1)

    once = np.ones((1, point.n_texts))
    values = statistic(once)[0]
    samples = bootstrap_texts(statistic, point.n_texts, resamples=draws.resamples, seed=draws.seed, strata=labels)
    chance = np.mean([statistic(once, shuffled)[0] for shuffled in permute_labels(labels, draws.shuffles, draws.seed)], axis=0)
    return {name: (float(values[column]), samples[:, column], float(chance[column])) for column, name in enumerate(OF_LABELS)}


def token_label_series(point: PointChoices, tags: NDArray[np.int16], values: int, draws: Draws) -> dict[str, Series]:
    """How much first choices tell about a label of tokens. Tokens without a label (-1) are left out."""
    tagged = tags >= 0
    measures = {
        "information": lambda table: float(normalised_information(table / max(table.sum(), 1e-300))),
        "specialisation": lambda table: float(specialisation(table / max(table.sum(), 1e-300))),
    }
    return table_series(measures, tags[tagged].astype(np.int64), values, point, draws, tokens=tagged)


def vocabulary_series(point: PointChoices, draws: Draws) -> Series:
    """How much the token id decides the first choice. nan if no id is seen ten times."""
    codes = formulas.frequent(point.ids)
    is_frequent, size = codes >= 0, int(codes.max(initial=-1)) + 1
    measures = {"": lambda table: float(formulas.vocabulary_specialisation(table))}
    return table_series(measures, codes[is_frequent], size, point, draws, tokens=is_frequent)[""]


def layer_agreement_series(point: PointChoices, first: NDArray[np.int64], experts: int, draws: Draws) -> Series:
    """How much the first choices at another routing point tell about those at this one."""
    return table_series({"": lambda table: float(formulas.layer_agreement(table))}, first, experts, point, draws)[""]


def table_series(
    measures: Mapping[str, Callable[[NDArray[np.float64]], float]],
    rows: NDArray[np.int64],
    size: int,
    point: PointChoices,
    draws: Draws,
    *,
    tokens: NDArray[np.bool_] | slice = slice(None),
    shifts: int = _SHIFTS,
) -> dict[str, Series]:
    """Measures of how often another value of each token (`rows`, 0 to size - 1) goes with its first choice, from the table of both.

    tokens: those that have a value. shifts: of rows along the tokens, for chance; 0 for measures that are 0 by chance already.
    """
    if not len(rows):
        return {name: (float("nan"), np.zeros(0), 0.0) for name in measures}
    first, texts = point.first[tokens], point.texts[tokens]

    def evaluate(values: NDArray[np.int64], weights: NDArray[np.float64] | None = None) -> list[float]:
        flat = np.bincount(values * point.experts + first, weights, minlength=size * point.experts)
        return [measure(flat.reshape(size, point.experts).astype(np.float64)) for measure in measures.values()]

    weights = text_weights(point.n_texts, draws.token_resamples, draws.seed) if point.n_texts > 1 else ()
    samples = np.array([evaluate(rows, row[texts]) for block in weights for row in block]).reshape(-1, len(measures))
    random, margin = np.random.default_rng([draws.seed, 2]), len(rows) // 10
    shifted = [
        evaluate(np.roll(rows, random.integers(margin, len(rows) - margin) if len(rows) > 1 else 0)) for _ in range(shifts)
    ]
    chance = np.mean(shifted, axis=0) if shifts else np.zeros(len(measures))
    values = evaluate(rows)
    return {name: (values[column], samples[:, column], float(chance[column])) for column, name in enumerate(measures)}


def probe_correct(
    vectors: Float[NDArray[Any], "text dim"], labels: Int[NDArray[Any], " text"], seed: int = 0
) -> Float[NDArray[np.float64], " text"] | None:
    """For each text, whether logistic regression that was fitted on other texts predicts its label (1 or 0).

    Five stratified folds; dimensions are standardised on the texts that are fitted. None if a label has fewer than five texts.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    counts = np.bincount(labels)
    if counts[counts > 0].min() < _FOLDS or (counts > 0).sum() < 2:
        return None
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=2000))
    folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=seed)
    return np.asarray(cross_val_predict(probe, vectors, labels, cv=folds) == labels, np.float64)


def _readout(vectors: Mapping[str, NDArray[np.float32]], labels: NDArray[np.int64], draws: Draws) -> dict[str, Any]:
    correct = {name: probe_correct(features, labels, draws.seed) for name, features in vectors.items()}
    probed = {name: hits for name, hits in correct.items() if hits is not None}
    difference = probed["routing"] - probed["hidden"] if probed else None
    return {
        "texts": len(labels),
        "majority": float(np.bincount(labels).max() / len(labels)),
        "probes": {name: mean_interval(hits, draws.resamples, draws.seed).as_json() for name, hits in probed.items()},
        "difference": None if difference is None else mean_interval(difference, draws.resamples, draws.seed).as_json(),
    }


VERSION = 2
"""Of the measures: they are computed again if it has grown."""


def load_or_measure_routing(record: RoutingRecord, draws: Draws | None = None) -> dict[str, Any]:
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
    the tokens of each value choose each expert, (point, value, expert); these are the domain specialisations of OLMoE. readout (of a label
    of texts): accuracy of a linear probe on routing weights and on hidden states of held-out texts, empty if a value has fewer than five
    texts, and of the most frequent value. load: the share of tokens that choose each expert, (point, expert). unused: the (point, expert)
    that no token chooses.
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
    probed = np.arange(len(present))
    if len(present) > _PROBED:
        probed = np.sort(np.random.default_rng(draws.seed).choice(len(present), _PROBED, replace=False))
    with progress_bar("measuring routers", len(record.points)) as advance:
        for index in range(len(record.points)):
            point = PointChoices.of(record.choices([index]))
            measures = general_series(point, draws) | {"vocabulary specialisation": vocabulary_series(point, draws)}
            if before is not None:
                measures["layer agreement"] = layer_agreement_series(point, *before, draws)
            _append(general, measures)
            for label in settings.labels:
                if label.of == "text":
                    label_series = text_label_series(point, labels[label.name], draws)
                else:
                    label_series = token_label_series(point, point.tags[label.name], len(label.values), draws)
                _append(by_label[label.name], label_series)
                table, numbers[label.name] = _label_shares(point, label, labels)
                shares[label.name].append(np.round(table, 4).tolist())
            load.append(point.load.sum(axis=0) / len(point.texts))
            routing.append((point.probability_sums[probed] / point.sizes[probed, None]).astype(np.float32))
            before = point.first, point.experts
            advance(1)
    vectors = {"routing": np.concatenate(routing, axis=1), "hidden": record.hidden(present[probed])}
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
            "readout": _readout(vectors, labels[label.name][probed], draws) if label.of == "text" else None,
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


def _label_shares(
    point: PointChoices, label: Label, labels: Mapping[str, NDArray[np.int64]]
) -> tuple[NDArray[np.float64], list[int]]:
    """How often each value of a label chooses each expert, and the number of its texts or tokens."""
    table = np.zeros((len(label.values), point.experts))
    if label.of == "text":
        codes = labels[label.name]
        counts = np.bincount(codes, minlength=len(table))
        np.add.at(table, codes, point.load / point.sizes[:, None])
    else:
        tags = point.tags[label.name]
        counts = np.bincount(tags[tags >= 0], minlength=len(table))
        for choice in point.chosen.T:
            labelled = (tags >= 0) & (choice >= 0)
            np.add.at(table, (tags[labelled], choice[labelled]), 1)
    return table / np.maximum(counts, 1)[:, None], counts.tolist()
