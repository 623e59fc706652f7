"""Page: one HTML file with the atlas of one routing record or two. It opens from disk, and asks nothing of any network."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError
from unmask.io.files import atomic, check_output, refuse_foreign
from unmask.moe.atlas.aggregate import FLOWS, MAPPED, SHOWN, aggregate, point_names
from unmask.moe.atlas.experts import SEEN
from unmask.moe.atlas.measures import grouped, read_measures, strongest
from unmask.moe.atlas.packing import as_script
from unmask.moe.routing.record import RECORD, RoutingRecord, read_record
from unmask.reporting.page import amount, breakable
from unmask.reporting.template import STYLE, fill, part

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

    Raises UnmaskError for a folder without a finished record, for more than two, and where a file of somebody else would be replaced.
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
    place = secrets.token_hex(16)  # of the data: no name in the page can be the same
    filters = {"amount": amount, "breakable": breakable, "number": number}
    data = [aggregate(record) for record in records]
    content = {"data": place, "removal": any(one["removal"] for one in data), **_content(records)}
    html = fill((_OWN, "atlas.html"), (*STYLE, (_OWN, "atlas.css")), script, filters, content)
    before, _, after = html.partition(place)
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
        "leads": [_lead(record, known) for record, known in zip(records, measures, strict=True)],
        "facts": [_facts(record) for record in records],
        "letters": ["A", "B"][: len(records)] if len(records) > 1 else [""],
        "groups": grouped(measures),
        "measured": [known is not None for known in measures],
        "draws": next((known["draws"] for known in measures if known), None),
        "sources": [_sources(record) for record in records],
        "limits": {"mapped": MAPPED, "shown": SHOWN, "flows": FLOWS, "seen": SEEN},
    }


def _lead(record: RoutingRecord, measures: dict[str, Any] | None) -> str:
    """What is most worth knowing, in a sentence or two."""
    known = strongest(measures)
    if known is None:
        return "Which experts its tokens go to, layer by layer."
    label, found = known
    if found.low is None or found.low <= 0:
        told = f"information {number(found.value)}, interval {number(found.low)} to {number(found.high)}; 0 is chance"
        return f"The choice of an expert tells nothing certain about \u201c{label}\u201d ({told})."
    share = f"{100 * found.value:.0f}\u00a0% [{100 * found.low:.0f}, {100 * (found.high or 1):.0f}]"
    said = f"The choice of an expert tells {share} of what there is to know about \u201c{label}\u201d, chance taken off."
    if len(found.steps) < 2:
        return said
    at = max(range(len(found.steps)), key=lambda point: found.steps[point])
    return f"{said} Layer {point_names(record.points)[at]} tells most: {100 * found.steps[at]:.0f}\u00a0%."


def _facts(record: RoutingRecord) -> str:
    settings = record.settings
    sizes = sorted({point.experts for point in settings.points})
    chosen = sorted({point.chosen for point in settings.points})
    experts = " or ".join(map(str, sizes))
    return (
        f"{_several(len(settings.points), 'routing point')} · {experts} experts, {' or '.join(map(str, chosen))} of them for each token · "
        f"{amount(settings.tokens)} tokens of {_several(settings.texts, 'text')}"
    )


def _several(count: int, what: str) -> str:
    return f"{amount(count)} {what}{'' if count == 1 else 's'}"


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
