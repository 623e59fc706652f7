"""Measures on the page: those of `measures.json` with intervals, by layer, and with a sentence on how to read each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from unmask.io.seals import read_record as read_sealed
from unmask.moe.routing.record import MEASURES, RoutingRecord

HOW = {
    "confidence": "The largest probability of a token, mean over tokens. 1: each router is sure of one expert.",
    "uncertainty": "Entropy of a token's probabilities / log n. 0: sure; 1: all experts alike.",
    "balance": "Entropy of the mean probabilities / log n. 1: all experts are used alike; 0: one expert takes all.",
    "distinctness": "Balance minus uncertainty. 0: all tokens are routed alike; 1: each has one expert, and all are used.",
    "max violation": "Largest load / mean load - 1. 0: even. 1: one expert has twice its share.",
    "squared variation": "Variance of load / mean load squared. 0: even.",
    "repetition": "Neighbouring tokens with one first choice, beyond what loads give. 0: by chance.",
    "vocabulary specialisation": "How much the token id decides the expert. 1: a word always goes to the same one.",
    "layer agreement": "How much the expert of one layer tells about that of the next. 1: all.",
    "co-activation": "How often an expert acts with its strongest partner, beyond chance. 1: always.",
    "information": "How much the first choice tells about the label. 0: nothing; 1: all.",
    "soft information": "As information, with probabilities in place of first choices.",
    "specialisation": "How far the experts of one label differ from those of all. 0: not at all.",
    "probe, routing weights": "Accuracy of a linear probe on routing weights of texts that it has not seen.",
    "probe, hidden states": "The same on hidden states: what there is to know.",
    "clusters, routing weights": "Agreement (AMI) of clusters of routing weights with the label. 0: by chance.",
    "clusters, hidden states": "The same for clusters of hidden states.",
}
"""What each measure says. docs/routers.md has the formulas."""
_FIRST = ("information", "specialisation", "soft information")
_UNBOUNDED = {"max violation", "squared variation"}
"""Measures that may be larger than 1: no bar."""


@dataclass(frozen=True)
class MeasureCell:
    """A measure of one record. low, high: of the interval. steps: its value at each routing point."""

    value: float
    low: float | None
    high: float | None
    chance: float
    steps: tuple[float, ...] = ()


@dataclass(frozen=True)
class MeasureBar:
    """A value and its interval on a scale from 0 to 100, in a row of its own if there are two records."""

    at: float
    low: float
    width: float
    y: int
    height: int
    second: bool


@dataclass(frozen=True)
class MeasureRow:
    """A measure of all records, one cell each; None where a record lacks it."""

    name: str
    how: str
    cells: tuple[MeasureCell | None, ...]

    @property
    def bars(self) -> list[MeasureBar]:
        """What is drawn of values between 0 and 1."""
        if self.name in _UNBOUNDED:
            return []
        height = 12 // len(self.cells)
        return [_bar(cell, at * height, height, at > 0) for at, cell in enumerate(self.cells) if cell]

    @property
    def paths(self) -> list[str]:
        """For each record, a line through the values at its routing points, in a box of 100 x 24 with one scale; or no line."""
        found = [_path(cell.steps, self.lowest, self.highest) if cell else "" for cell in self.cells]
        return found if any(found) else []

    @property
    def lowest(self) -> float:
        """The smallest value at a routing point."""
        return min((step for cell in self.cells if cell for step in cell.steps), default=0.0)

    @property
    def highest(self) -> float:
        """The largest value at a routing point."""
        return max((step for cell in self.cells if cell for step in cell.steps), default=0.0)


def _path(steps: Sequence[float], lowest: float, highest: float) -> str:
    if len(steps) < 2:
        return ""
    low, high = min(0.0, lowest), max(highest, 1e-9)
    points = (f"{100 * at / (len(steps) - 1):.1f} {22 - 20 * (step - low) / (high - low):.1f}" for at, step in enumerate(steps))
    return "M" + "L".join(points)


def _bar(cell: MeasureCell, y: int, height: int, second: bool) -> MeasureBar:
    low, high = (min(max(cell.value if end is None else end, 0.0), 1.0) for end in (cell.low, cell.high))
    at = min(max(cell.value, 0.0), 0.984)
    return MeasureBar(round(100 * at, 1), round(100 * low, 1), round(max(100 * (high - low), 0.8), 1), y, height, second)


@dataclass(frozen=True)
class MeasureGroup:
    """Measures of one label, or of the routers as such. note: what they have to be held against."""

    title: str
    note: str
    rows: tuple[MeasureRow, ...]


def read_measures(record: RoutingRecord) -> dict[str, Any] | None:
    """The measures beside a record; None if there are none, or if they are of another record."""
    file = record.folder / MEASURES
    known = read_sealed(file) if file.is_file() else None
    return known if known and known.get("record") == record.settings.digest else None


def grouped(measures: Sequence[dict[str, Any] | None]) -> list[MeasureGroup]:
    """The rows of the table. measures: of each record, or None."""
    found = [known or {} for known in measures]
    groups = []
    for label in _names(known.get("labels", {}) for known in found):
        own = [_of_label(known.get("labels", {}).get(label)) for known in found]
        groups.append(MeasureGroup(f"Label: {label}", _note(label, found), _rows(own)))
    general = [known.get("general", {}) for known in found]
    if any(general):
        groups.append(MeasureGroup("Routers as such", "", _rows(general)))
    return groups


def strongest(measures: dict[str, Any] | None) -> tuple[str, MeasureCell] | None:
    """The label that routing knows most of, with its information."""
    labels = (measures or {}).get("labels", {})
    known = {
        name: _cell(label["measures"]["information"]) for name, label in labels.items() if "information" in label["measures"]
    }
    best = max(known, key=lambda name: known[name].value, default=None)
    return (best, known[best]) if best is not None else None


def _of_label(label: dict[str, Any] | None) -> dict[str, Any]:
    if label is None:
        return {}
    found = {name: label["measures"][name] for name in (*_FIRST, *label["measures"]) if name in label["measures"]}
    readout = label.get("readout") or {}
    for kind, called in (("probes", "probe"), ("groups", "clusters")):
        for name, of in (("routing", "routing weights"), ("hidden", "hidden states")):
            if name in (readout.get(kind) or {}):
                found[f"{called}, {of}"] = readout[kind][name]
    return found


def _rows(own: Sequence[dict[str, Any]]) -> tuple[MeasureRow, ...]:
    return tuple(
        MeasureRow(name, HOW.get(name, ""), tuple(_cell(one[name]) if name in one else None for one in own))
        for name in _names(own)
    )


def _cell(measure: dict[str, Any]) -> MeasureCell:
    low, high = measure["interval"] or (None, None)
    return MeasureCell(measure["corrected"], low, high, measure["chance"], tuple(measure.get("by_point", ())))


def _note(label: str, found: Sequence[dict[str, Any]]) -> str:
    readout = next((one for known in found if (one := known.get("labels", {}).get(label, {}).get("readout"))), None)
    return (
        f"Always guessing the most frequent value is right for {100 * readout['majority']:.0f} % of texts." if readout else ""
    )


def _names(some: Iterable[Iterable[str]]) -> list[str]:
    return list(dict.fromkeys(name for names in some for name in names))
