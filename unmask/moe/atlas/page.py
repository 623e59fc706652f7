"""Page: one HTML file with the atlas of one or two routing records. It opens from disk and makes no network requests."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError
from unmask.io.files import atomic, check_output, refuse_foreign
from unmask.io.seals import read_record as read_sealed
from unmask.moe.atlas.aggregate import FLOWS, MAPPED, SEEN, SHOWN, aggregate, as_script, point_names
from unmask.moe.routing.record import MEASURES, RECORD, RoutingRecord, read_record
from unmask.reporting.page import amount, breakable
from unmask.reporting.template import STYLE, fill, part

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
    """A value and its interval on a scale from 0 to 100, in a separate row if there are two records."""

    at: float
    low: float
    width: float
    y: int
    height: int
    second: bool


@dataclass(frozen=True)
class MeasureRow:
    """A measure with one cell for each record; None where a record lacks it."""

    name: str
    how: str
    cells: tuple[MeasureCell | None, ...]

    @property
    def bars(self) -> list[MeasureBar]:
        """What is drawn of values between 0 and 1."""
        if self.name in _UNBOUNDED:
            return []
        height = 12 // len(self.cells)
        return [_bar(cell, index * height, height, index > 0) for index, cell in enumerate(self.cells) if cell]

    @property
    def paths(self) -> list[str]:
        """For each record, a line through the values at its routing points, in a box of 100 x 24 with one scale; or no line."""
        lines = [_path(cell.steps, self.lowest, self.highest) if cell else "" for cell in self.cells]
        return lines if any(lines) else []

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
    points = (
        f"{100 * index / (len(steps) - 1):.1f} {22 - 20 * (step - low) / (high - low):.1f}" for index, step in enumerate(steps)
    )
    return "M" + "L".join(points)


def _bar(cell: MeasureCell, y: int, height: int, second: bool) -> MeasureBar:
    low, high = (min(max(cell.value if end is None else end, 0.0), 1.0) for end in (cell.low, cell.high))
    position = min(max(cell.value, 0.0), 0.984)
    return MeasureBar(round(100 * position, 1), round(100 * low, 1), round(max(100 * (high - low), 0.8), 1), y, height, second)


@dataclass(frozen=True)
class MeasureGroup:
    """Measures of one label, or of the routers as such. note: the baseline to compare with."""

    title: str
    note: str
    rows: tuple[MeasureRow, ...]


def read_measures(record: RoutingRecord) -> dict[str, Any] | None:
    """The measures of a record; None if there are none, or if they are of another record."""
    file = record.folder / MEASURES
    measures = read_sealed(file) if file.is_file() else None
    return measures if measures and measures.get("record") == record.settings.digest else None


def grouped(measures: Sequence[dict[str, Any] | None]) -> list[MeasureGroup]:
    """The rows of the table. measures: of each record, or None."""
    records = [record or {} for record in measures]
    groups = []
    for label in _names(record.get("labels", {}) for record in records):
        measures_of_label = [_of_label(record.get("labels", {}).get(label)) for record in records]
        groups.append(MeasureGroup(f"Label: {label}", _note(label, records), _rows(measures_of_label)))
    general = [record.get("general", {}) for record in records]
    if any(general):
        groups.append(MeasureGroup("Routers as such", "", _rows(general)))
    return groups


def strongest(measures: dict[str, Any] | None) -> tuple[str, MeasureCell] | None:
    """The label that routing knows most of, with its information."""
    labels = (measures or {}).get("labels", {})
    cells = {
        name: _cell(label["measures"]["information"]) for name, label in labels.items() if "information" in label["measures"]
    }
    best = max(cells, key=lambda name: cells[name].value, default=None)
    return (best, cells[best]) if best is not None else None


def _of_label(label: dict[str, Any] | None) -> dict[str, Any]:
    if label is None:
        return {}
    measures_of_label = {name: label["measures"][name] for name in (*_FIRST, *label["measures"]) if name in label["measures"]}
    readout = label.get("readout") or {}
    for kind, called in (("probes", "probe"), ("groups", "clusters")):
        for name, vectors in (("routing", "routing weights"), ("hidden", "hidden states")):
            if name in (readout.get(kind) or {}):
                measures_of_label[f"{called}, {vectors}"] = readout[kind][name]
    return measures_of_label


def _rows(measures: Sequence[dict[str, Any]]) -> tuple[MeasureRow, ...]:
    return tuple(
        MeasureRow(name, HOW.get(name, ""), tuple(_cell(record[name]) if name in record else None for record in measures))
        for name in _names(measures)
    )


def _cell(measure: dict[str, Any]) -> MeasureCell:
    low, high = measure["interval"] or (None, None)
    return MeasureCell(measure["corrected"], low, high, measure["chance"], tuple(measure.get("by_point", ())))


def _note(label: str, records: Sequence[dict[str, Any]]) -> str:
    readout = next(
        (candidate for record in records if (candidate := record.get("labels", {}).get(label, {}).get("readout"))), None
    )
    return (
        f"Always guessing the most frequent value is right for {100 * readout['majority']:.0f} % of texts." if readout else ""
    )


def _names(groups: Iterable[Iterable[str]]) -> list[str]:
    return list(dict.fromkeys(name for group in groups for name in group))


NAME = "atlas.html"
SCRIPTS = ("core.js", "heat.js", "tokens.js", "cards.js", "flow.js", "maps.js", "main.js")
_OWN = "unmask.moe.atlas"
_MARK = "<title>unmask atlas"
_MOST = 2


def is_record(folder: Path) -> bool:
    """Whether a folder holds a routing record."""
    return (folder / RECORD).is_file()


def write_atlas(folders: Sequence[Path], output: Path) -> Path:
    """Write `atlas.html` into `output`, from one record or from two that stand side by side.

    Raises UnmaskError for a folder without a finished record, for more than two, and where a foreign file would be replaced.
    """
    if len(folders) > _MOST:
        raise UnmaskError(f"An atlas shows one routing record or two side by side, not {len(folders)}. Give fewer folders.")
    page = output / NAME
    check_output(output, folder=True)
    refuse_foreign(page, [_MARK])
    html = render([read_record(folder) for folder in folders])
    with atomic(page) as scratch:
        scratch.write_text(html, encoding="utf-8")
    return page


def render(records: Sequence[RoutingRecord]) -> str:
    """The page of one record or two."""
    script = "(function () {\n'use strict';\n" + "".join(part(_OWN, name) for name in SCRIPTS) + "})();"
    placeholder = secrets.token_hex(16)  # of the data: no name in the page can be the same
    filters = {"amount": amount, "breakable": breakable, "number": number}
    data = [aggregate(record) for record in records]
    content = {"data": placeholder, "removal": any(record_data["removal"] for record_data in data), **_content(records)}
    html = fill((_OWN, "atlas.html"), (*STYLE, (_OWN, "atlas.css")), script, filters, content)
    before, _, after = html.partition(placeholder)
    return before + as_script(data) + after


def number(value: float | None) -> str:
    """A measure with two decimals, and a minus sign."""
    text = "\u2013" if value is None else f"{value:.2f}"
    return "0.00" if text == "-0.00" else text.replace("-", "\u2212")


def _content(records: Sequence[RoutingRecord]) -> dict[str, Any]:
    measures = [read_measures(record) for record in records]
    names = [record.settings.model for record in records]
    return {
        "names": names,
        "leads": [_lead(record, measured) for record, measured in zip(records, measures, strict=True)],
        "facts": [_facts(record) for record in records],
        "letters": ["A", "B"][: len(records)] if len(records) > 1 else [""],
        "groups": grouped(measures),
        "measured": [measured is not None for measured in measures],
        "draws": next((measured["draws"] for measured in measures if measured), None),
        "sources": [_sources(record) for record in records],
        "limits": {"mapped": MAPPED, "shown": SHOWN, "flows": FLOWS, "seen": SEEN},
    }


def _lead(record: RoutingRecord, measures: dict[str, Any] | None) -> str:
    """What is most worth knowing, in a sentence or two."""
    best = strongest(measures)
    if best is None:
        return "Which experts its tokens go to, layer by layer."
    label, cell = best
    if cell.low is None or cell.low <= 0:
        evidence = f"information {number(cell.value)}, interval {number(cell.low)} to {number(cell.high)}; 0 is chance"
        return f"The choice of an expert tells nothing certain about \u201c{label}\u201d ({evidence})."
    share = f"{100 * cell.value:.0f}\u00a0% [{100 * cell.low:.0f}, {100 * (cell.high or 1):.0f}]"
    sentence = f"The choice of an expert tells {share} of what there is to know about \u201c{label}\u201d, chance taken off."
    if len(cell.steps) < 2:
        return sentence
    point_index = max(range(len(cell.steps)), key=lambda point: cell.steps[point])
    return f"{sentence} Layer {point_names(record.points)[point_index]} tells most: {100 * cell.steps[point_index]:.0f}\u00a0%."


def _facts(record: RoutingRecord) -> str:
    settings = record.settings
    sizes = sorted({point.experts for point in settings.points})
    active = sorted({point.chosen for point in settings.points})
    experts = " or ".join(map(str, sizes))
    return (
        f"{_several(len(settings.points), 'routing point')} · {experts} experts, {' or '.join(map(str, active))} of them for each token · "
        f"{amount(settings.tokens)} tokens of {_several(settings.texts, 'text')}"
    )


def _several(count: int, noun: str) -> str:
    return f"{amount(count)} {noun}{'' if count == 1 else 's'}"


def _sources(record: RoutingRecord) -> list[tuple[str, str]]:
    """Where a record comes from, name by name."""
    settings = record.settings
    versions = dict(settings.provenance.get("versions") or {})
    sampled = f"{amount(settings.tokens)} of {amount(settings.tokens_of_texts)}, drawn with seed {settings.seed}"
    return [
        ("Model", settings.model),
        ("Weights", settings.weights),
        ("Attention", settings.attention),
        ("Precision", settings.dtype),
        ("Texts", f"{', '.join(settings.sources)} ({amount(settings.texts)}; {settings.data})"),
        ("Longest text", f"{amount(settings.max_length)} tokens; {amount(settings.truncated)} texts were cut"),
        ("Tokens recorded", sampled if settings.sample else "all of the texts' own"),
        (
            "Labels",
            ", ".join(f"{label.name} ({len(label.values)} values, of {label.of}s)" for label in settings.labels) or "none",
        ),
        ("Hardware", str(settings.provenance.get("hardware", "not recorded"))),
        ("Versions", ", ".join(f"{name} {version}" for name, version in versions.items()) or "not recorded"),
    ]
