"""Page: one HTML file with the atlas of a routing record. It opens from disk and makes no network requests."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.io.files import atomic, check_output, refuse_foreign
from unmask.io.seals import read_record as read_sealed
from unmask.moe.atlas.aggregate import MIN_COUNT, SHOWN, aggregate, as_script, point_names
from unmask.moe.routing.record import MEASURES, RECORD, RoutingRecord, read_record
from unmask.moe.routing.tables import MEANINGS
from unmask.reporting.page import amount, breakable
from unmask.reporting.template import STYLE, fill, part

NAME = "atlas.html"
SCRIPTS = ("core.js", "heat.js", "tokens.js", "cards.js", "main.js")
_OWN = "unmask.moe.atlas"
_MARK = "<title>unmask atlas"


@dataclass(frozen=True)
class MeasureRow:
    """A measure with its interval, and its value at each routing point."""

    name: str
    value: float
    low: float | None
    high: float | None
    steps: tuple[float, ...]

    @classmethod
    def of(cls, name: str, measure: dict[str, Any]) -> MeasureRow:
        """The row of a measure as JSON."""
        low, high = measure["interval"] or (None, None)
        return cls(name, measure["corrected"], low, high, tuple(measure.get("by_point", ())))

    @property
    def how(self) -> str:
        """How to read it."""
        return MEANINGS.get(self.name, "")

    @property
    def bar(self) -> dict[str, float] | None:
        """The value and its interval on a scale from 0 to 100; None for a measure that may be larger than 1."""
        if self.name == "max violation":
            return None
        low, high = (min(max(self.value if end is None else end, 0.0), 1.0) for end in (self.low, self.high))
        dot = min(max(self.value, 0.0), 0.984)
        return {"at": round(100 * dot, 1), "low": round(100 * low, 1), "width": round(max(100 * (high - low), 0.8), 1)}

    @property
    def path(self) -> str:
        """A line through the values at the routing points, in a box of 100 x 24; empty for one point."""
        if len(self.steps) < 2:
            return ""
        low, high, last = min(0.0, *self.steps), max(*self.steps, 1e-9), len(self.steps) - 1
        points = (
            f"{100 * index / last:.1f} {22 - 20 * (step - low) / (high - low):.1f}" for index, step in enumerate(self.steps)
        )
        return "M" + "L".join(points)


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


def measure_groups(measures: dict[str, Any] | None) -> list[MeasureGroup]:
    """The rows of the table."""
    if measures is None:
        return []
    groups = []
    for label, of_label in measures["labels"].items():
        rows = [MeasureRow.of(name, measure) for name, measure in of_label["measures"].items()]
        note = ""
        if readout := of_label["readout"]:
            names = {"routing": "probe, routing weights", "hidden": "probe, hidden states"}
            rows += [MeasureRow.of(names[key], probe) for key, probe in readout["probes"].items()]
            note = f"Always guessing the most frequent value is right for {100 * readout['majority']:.0f} % of texts."
        groups.append(MeasureGroup(f"Label: {label}", note, tuple(rows)))
    general = tuple(MeasureRow.of(name, measure) for name, measure in measures["general"].items())
    return [*groups, MeasureGroup("Routers as such", "", general)]


def is_record(folder: Path) -> bool:
    """Whether a folder holds a routing record."""
    return (folder / RECORD).is_file()


def write_atlas(folder: Path, output: Path) -> Path:
    """Write `atlas.html` into `output`.

    Raises UnmaskError for a folder without a finished record, and where a foreign file would be replaced.
    """
    page = output / NAME
    check_output(output, folder=True)
    refuse_foreign(page, [_MARK])
    html = render(read_record(folder))
    with atomic(page) as scratch:
        scratch.write_text(html, encoding="utf-8")
    return page


def render(record: RoutingRecord) -> str:
    """The page of a record."""
    script = "(function () {\n'use strict';\n" + "".join(part(_OWN, name) for name in SCRIPTS) + "})();"
    placeholder = secrets.token_hex(16)  # of the data: no name in the page can be the same
    data, measures = aggregate(record), read_measures(record)
    groups = measure_groups(measures)
    settings = record.settings
    experts, active = ({getattr(point, name) for point in record.points} for name in ("experts", "chosen"))
    content = {
        "data": placeholder,
        "removal": data["removal"] is not None,
        "name": settings.model,
        "lead": _lead(record, groups),
        "facts": f"{len(record.points)} routing points · {_either(experts)} experts, {_either(active)} of them for each token · "
        f"{amount(settings.tokens)} tokens of {amount(settings.texts)} texts",
        "groups": groups,
        "draws": measures and measures["draws"],
        "sources": _sources(record),
        "limits": {"shown": SHOWN, "seen": MIN_COUNT},
    }
    filters = {"amount": amount, "breakable": breakable, "number": number}
    html = fill((_OWN, "atlas.html"), (*STYLE, (_OWN, "atlas.css")), script, filters, content)
    before, _, after = html.partition(placeholder)
    return before + as_script(data) + after


def number(value: float | None) -> str:
    """A measure with two decimals, and a minus sign."""
    text = "\u2013" if value is None else f"{value:.2f}"
    return "0.00" if text == "-0.00" else text.replace("-", "\u2212")


def _either(numbers: set[int]) -> str:
    return " or ".join(map(str, sorted(numbers)))


def _lead(record: RoutingRecord, groups: Sequence[MeasureGroup]) -> str:
    """What is most worth knowing: the label that routing tells most about."""
    information = [
        (row, group.title.removeprefix("Label: ")) for group in groups for row in group.rows if row.name == "information"
    ]
    if not information:
        return "Which experts its tokens go to, layer by layer."
    row, label = max(information, key=lambda measure: measure[0].value)
    if row.low is None or row.low <= 0:
        evidence = f"information {number(row.value)}, interval {number(row.low)} to {number(row.high)}; 0 is chance"
        return f"The choice of an expert tells nothing certain about \u201c{label}\u201d ({evidence})."
    share = f"{100 * row.value:.0f}\u00a0% [{100 * row.low:.0f}, {100 * (row.high or 1):.0f}]"
    sentence = (
        f"The choice of an expert tells {share} of what there is to know about \u201c{label}\u201d, corrected for chance."
    )
    if len(row.steps) < 2:
        return sentence
    best = max(range(len(row.steps)), key=lambda point: row.steps[point])
    return f"{sentence} Layer {point_names(record.points)[best]} tells most: {100 * row.steps[best]:.0f}\u00a0%."


def _sources(record: RoutingRecord) -> list[tuple[str, str]]:
    """Where a record comes from, name by name."""
    settings = record.settings
    versions = dict(settings.provenance.get("versions") or {})
    sampled = f"{amount(settings.tokens)} of {amount(settings.tokens_of_texts)}, drawn with seed {settings.seed}"
    labels = (f"{label.name} ({len(label.values)} values, of {label.of}s)" for label in settings.labels)
    return [
        ("Model", settings.model),
        ("Weights", settings.weights),
        ("Attention", settings.attention),
        ("Precision", settings.dtype),
        ("Texts", f"{', '.join(settings.sources)} ({amount(settings.texts)}; {settings.data})"),
        ("Longest text", f"{amount(settings.max_length)} tokens; {amount(settings.truncated)} texts were cut"),
        ("Tokens recorded", sampled if settings.sample else "all tokens of the texts"),
        ("Labels", ", ".join(labels) or "none"),
        ("Hardware", str(settings.provenance.get("hardware", "not recorded"))),
        ("Versions", ", ".join(f"{name} {version}" for name, version in versions.items()) or "not recorded"),
    ]
