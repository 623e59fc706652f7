"""Measures of a record: how sure, even and specialised its routers are, for each label and as the mean over routing points.

One routing point is in memory at a time. Every number has a 95 % interval over texts, and what chance gives is taken off.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.io.seals import read_record as read_sealed
from unmask.io.seals import write_record
from unmask.io.terminal import progress_bar
from unmask.moe.routing import point_measures as of_point
from unmask.moe.routing.point_measures import Draws, PointChoices, Series
from unmask.moe.routing.readouts import Readout, read_out, texts_to_read
from unmask.moe.routing.record import MEASURES, Label, RoutingRecord
from unmask.moe.routing.statistics.information import joint_of_texts
from unmask.moe.routing.statistics.text_bootstrap import Measured, mean_of

VERSION = 1
"""Of the measures: they are computed again if it has grown."""


@dataclass(frozen=True)
class Summary:
    """A measure as the mean over routing points, and its corrected value at each of them."""

    mean: Measured
    by_point: tuple[float, ...]

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {**self.mean.as_json(), "by_point": list(self.by_point)}


@dataclass(frozen=True)
class LabelMeasures:
    """What routing knows of one label.

    number: of texts (or tokens) with each value. shares: how often the tokens of each value choose each expert, (point, value, expert);
    these are the domain specialisations of OLMoE. readout: what can be read off routing weights and hidden states of texts.
    """

    label: Label
    number: tuple[int, ...]
    measures: dict[str, Summary]
    shares: list[list[list[float]]]
    readout: Readout | None

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "of": self.label.of,
            "values": dict(zip(self.label.values, self.number, strict=True)),
            "measures": {name: summary.as_json() for name, summary in self.measures.items()},
            "shares": self.shares,
            "readout": self.readout.as_json() if self.readout else None,
        }


@dataclass(frozen=True)
class RoutingMeasures:
    """All measures of a record.

    load: the share of tokens that choose each expert, (point, expert). unused: the (point, expert) that no token chooses.
    """

    record: RoutingRecord
    draws: Draws
    texts: int
    general: dict[str, Summary]
    labels: dict[str, LabelMeasures]
    load: list[list[float]]
    unused: list[tuple[int, int]]

    def as_json(self) -> dict[str, Any]:
        """For `--json`, and for the file beside the record."""
        settings = self.record.settings
        return {
            "version": VERSION,
            "record": settings.digest,
            "draws": asdict(self.draws),
            "model": settings.model,
            "texts": self.texts,
            "tokens": settings.tokens,
            "points": [point.model_dump() for point in settings.points],
            "experts": settings.experts,
            "general": {name: summary.as_json() for name, summary in self.general.items()},
            "labels": {name: label.as_json() for name, label in self.labels.items()},
            "load": self.load,
            "unused": self.unused,
        }


def measured_routing(record: RoutingRecord, draws: Draws | None = None) -> dict[str, Any]:
    """The measures of a record as JSON: from the file beside it if they were computed with the same draws, else computed and written."""
    draws = draws or Draws()
    file = record.folder / MEASURES
    known = read_sealed(file) if file.is_file() else None
    same = {"version": VERSION, "record": record.settings.digest, "draws": asdict(draws)}
    if known is None or any(known.get(key) != value for key, value in same.items()):
        write_record(file, measure_routing(record, draws).as_json())
        known = read_sealed(file)
    assert known is not None
    return known


def measure_routing(record: RoutingRecord, draws: Draws | None = None) -> RoutingMeasures:
    """Compute all measures of a record, a routing point at a time."""
    draws = draws or Draws()
    general, told = _Collected(), {label.name: _Collected() for label in record.settings.labels}
    shares: dict[str, list[list[list[float]]]] = defaultdict(list)
    numbers: dict[str, tuple[int, ...]] = {}
    load, routing = [], []
    before: tuple[NDArray[np.int64], int] | None = None
    present = np.unique(record.choices().texts)
    labels = {name: codes[present].astype(np.int64) for name, codes in record.texts.labels.items()}
    read = texts_to_read(len(present), draws.seed)
    with progress_bar("measuring routers", len(record.points)) as advance:
        for place in range(len(record.points)):
            point = PointChoices.of(record.choices([place]))
            general.add(of_point.general(point, draws))
            general.add({"vocabulary specialisation": of_point.vocabulary(point, draws)})
            if before is not None:
                general.add({"layer agreement": of_point.agreement_with(point, *before, draws)})
            if point.chosen.shape[1] > 1:
                general.add({"co-activation": of_point.coactivation(point, draws)})
            for label in record.settings.labels:
                found, table, number = _of_label(point, label, labels, draws)
                told[label.name].add(found)
                shares[label.name].append(np.round(table, 4).tolist())
                numbers[label.name] = number
            load.append(point.load.sum(axis=0) / len(point.texts))
            routing.append((point.soft[read] / point.sizes[read, None]).astype(np.float32))
            before = point.first, point.experts
            advance(1)
    hidden, vectors = record.hidden(present[read]), np.concatenate(routing, axis=1)
    by_label = {
        label.name: LabelMeasures(
            label,
            numbers[label.name],
            told[label.name].summaries(_most(label, numbers[label.name])),
            shares[label.name],
            read_out(vectors, hidden, labels[label.name][read], draws) if label.of == "text" else None,
        )
        for label in record.settings.labels
    }
    unused = [(place, int(expert)) for place, own in enumerate(load) for expert in np.flatnonzero(own == 0)]
    return RoutingMeasures(
        record, draws, len(present), general.summaries({}), by_label, [np.round(own, 6).tolist() for own in load], unused
    )


def _of_label(
    point: PointChoices, label: Label, labels: Mapping[str, NDArray[np.int64]], draws: Draws
) -> tuple[dict[str, Series], NDArray[np.float64], tuple[int, ...]]:
    """The measures of a label, how often each of its values chooses each expert, and the number of texts or tokens of each value."""
    values = len(label.values)
    if label.of == "text":
        codes = labels[label.name]
        chosen = point.load / point.sizes[:, None]
        known = joint_of_texts(chosen[:, None, :], codes, np.ones((1, point.number)))[0, 0] * len(np.unique(codes))
        table = np.zeros((values, point.experts))
        table[np.unique(codes)] = known
        return of_point.of_text_label(point, codes, draws), table, tuple(np.bincount(codes, minlength=values).tolist())
    tags = point.tags[label.name]
    counts = np.bincount(tags[tags >= 0], minlength=values)
    table = np.zeros((values, point.experts))
    for place in range(point.chosen.shape[1]):
        real = (tags >= 0) & (point.chosen[:, place] >= 0)
        np.add.at(table, (tags[real], point.chosen[real, place]), 1)
    found = of_point.of_token_label(point, tags, values, draws)
    return found, table / np.maximum(counts, 1)[:, None], tuple(counts.tolist())


def _most(label: Label, number: tuple[int, ...]) -> dict[str, float]:
    """The largest possible specialisation: 1 - sum of the squared weights of the values."""
    counts = np.array(number, float)
    weights = (counts > 0) / (counts > 0).sum() if label.of == "text" else counts / counts.sum()
    return {"specialisation": float(1 - (weights**2).sum())}


class _Collected:
    """Series of measures, point by point."""

    def __init__(self) -> None:
        self._series: dict[str, list[Series]] = defaultdict(list)

    def add(self, found: Mapping[str, Series]) -> None:
        for name, series in found.items():
            if not np.isnan(series[0]):
                self._series[name].append(series)

    def summaries(self, most: Mapping[str, float]) -> dict[str, Summary]:
        return {
            name: Summary(
                mean_of(series, most.get(name, 1.0)),
                tuple(mean_of([one], most.get(name, 1.0)).corrected for one in series),
            )
            for name, series in self._series.items()
        }
