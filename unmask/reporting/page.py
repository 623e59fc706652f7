"""Page: one HTML file that shows a report, opens from disk, and asks nothing of any network."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unmask.evaluation.leader import KindLeader, cheapest_sentence, kinds_sentence, reference_sentence
from unmask.evaluation.leader import points as points_of
from unmask.evaluation.results import SENTENCE_TRANSFORMERS, Result
from unmask.evaluation.seed_means import one_seed
from unmask.evaluation.verdict import System, tests_used
from unmask.io.terminal import enumeration
from unmask.reporting.figures import front, main_price, price_points
from unmask.reporting.grid import METRIC_NAMES, Grid, metric_name
from unmask.reporting.summary import Mark, Summary, candidates
from unmask.reporting.template import STYLE, fill, part
from unmask.statistics.intervals import Bounds
from unmask.tasks.kinds import KINDS

_LEVELS = 10
_UNBROKEN = 20  # characters of a name that fit next to a column of numbers on a phone
DASH, MINUS = "\u2013", "\u2212"


@dataclass(frozen=True)
class GridColumn:
    """A column of the grid: a task, a second score next to it, or a mean over the tasks of a kind (shown while it is filtered)."""

    head: str
    below: str
    kind: str
    role: str = "task"


@dataclass(frozen=True)
class Cell:
    """A cell of the grid. value: what it sorts by; level: shade, 0 to 9; row: id of the table row that tells the rest."""

    text: str
    value: float | None = None
    half: str = ""
    level: int | None = None
    mark: Mark | None = None
    row: str = ""
    kind: str = ""
    role: str = "task"

    @property
    def spoken(self) -> str:
        """The mark in words."""
        return {"best": "best of its task", "tied": "tied with the best"}[self.mark] if self.mark else ""


def render(grid: Grid, summary: Summary, charts: Mapping[str, str], data: Sequence[Path]) -> str:
    """The page: charts are SVG elements by name, data: files in the same folder that it links to."""
    from markupsafe import Markup

    filters = {
        "points": points,
        "bounds": bounds,
        "amount": amount,
        "p": p_value,
        "enumerate_names": enumerate_names,
        "breakable": breakable,
        "design": design_name,
    }
    context = {"charts": {name: Markup(chart) for name, chart in charts.items()}, "data": [file.name for file in data]}
    package = "unmask.reporting"
    return fill((package, "report.html"), STYLE, part(package, "report.js"), filters, context | _content(grid, summary))


def points(score: float | None) -> str:
    """A score x 100 with one decimal, a dash for none."""
    return DASH if score is None else points_of(score).replace("-", MINUS)


def bounds(interval: Bounds | None) -> str:
    """An interval x 100."""
    return "" if interval is None else f"[{points(interval[0])}, {points(interval[1])}]"


def amount(number: float | None, unit: str = "") -> str:
    """A quantity with three significant digits and blanks between thousands, a dash for none."""
    if number is None:
        return DASH
    decimals = 0 if number == 0 else max(0, 2 - math.floor(math.log10(abs(number))))
    text = f"{number:,.{decimals}f}" if not float(number).is_integer() else f"{number:,.0f}"
    return text.replace(",", "\u202f") + (f"\u00a0{unit}" if unit else "")


def p_value(p: float) -> str:
    """A p-value to three decimals, small ones as a bound."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def enumerate_names(names: Sequence[str], limit: int = 4) -> str:
    """Names in a sentence, the first few where there are many."""
    items = list(names) if len(names) <= limit + 1 else [*names[:limit], f"{len(names) - limit} others"]
    return enumeration(items)


def breakable(name: str) -> str:
    """A name, escaped, that a narrow column may break where its words end."""
    from markupsafe import Markup, escape

    parts = re.split(r"(?<=[-_/.:])(?=[^\W\d])|(?<=[a-z])(?=[A-Z])|(?<=\w)(?=@)", name)
    return Markup("<wbr>").join(escape(part) for part in parts)


def design_name(name: str) -> str:
    """The name of a design, escaped and breakable; a short one stays on one line where it has room."""
    from markupsafe import Markup

    parts = breakable(name)
    return Markup('<span class="whole">{}</span>').format(parts) if len(name) <= _UNBROKEN else parts


def _content(grid: Grid, summary: Summary) -> dict[str, Any]:
    columns = _columns(grid)
    ranked = [_ranked_row(grid, summary, rank) for rank in range(1, len(summary.order) + 1)]
    order = [system for system, _ in summary.order] + summary.unranked
    rows = {cell: f"r{index}" for index, cell in enumerate((s, t) for s in order for t in grid.tasks if (s, t) in grid.cells)}
    gaps = [100 * (grid.best[result.task] - result.main_score) for result in grid.results]
    # points behind the best of a task from which a cell is as pale as can be: nine in ten are within it; a multiple of 5
    scale = max(5.0, 5 * math.ceil(float(np.quantile(gaps, 0.9)) / 5))
    test = next(iter(summary.lead.tests.values()), None) or (summary.tests[0] if summary.tests else None)
    provenance = [result.provenance for result in grid.results]
    return {
        "models": _models(grid),
        "names": grid.names,
        "advice": [_card(grid, summary, advice) for advice in summary.advice],
        "order": ranked,
        "unranked": [(grid.names[system], len(grid.of(system))) for system in summary.unranked],
        "leader": next(row for row in ranked if row["name"] == grid.names[summary.leader]),
        "headline": _headline(grid, summary),
        "designs": [grid.names[system] for system, _ in candidates(summary.order)],
        "references": [_minus(reference_sentence(reference, grid.results)) for reference in summary.references],
        "reference_count": sum(system[1] == SENTENCE_TRANSFORMERS for system in grid.systems),
        "by_kind": kinds_sentence(summary.leader, summary.advice) if summary.lead.tests else "",
        "tied": [(grid.names[system], dict(summary.order)[system]) for system in summary.lead.tied],
        "outcome": test.outcome if test else None,
        "tests": tests_used(list(summary.lead.tests.values()) or summary.tests),
        "families": " and over ".join(dict.fromkeys(paired.family for paired in summary.tests)),
        "worse": [grid.names[system] for system in summary.lead.worse],
        "ahead": [grid.names[system] for system in summary.lead.ahead],
        "cheapest": cheapest_sentence(summary.lead, grid.results) if summary.lead.tied else "",
        "common": len(summary.common),
        "columns": columns,
        "kinds": grid.kinds,
        "untested": summary.untested,
        "notes": [KINDS[kind].note for kind in grid.kinds if kind in KINDS and KINDS[kind].note],
        "scale": scale,
        "lines": [
            {
                "name": grid.names[system],
                "design": system[1],
                "cells": [_cell(grid, summary, system, column, rows, scale) for column in columns],
            }
            for system in order
        ],
        "cells": [
            (
                row,
                grid.names[system],
                result,
                ", ".join(f"{metric_name(name)} {points(value)}" for name, value in result.scores.items()),
            )
            for (system, task), row in rows.items()
            for result in [grid.cells[system, task]]
        ],
        "metrics": METRIC_NAMES,
        "tasks": list(grid.tasks.values()),
        "failures": grid.failures,
        "words": _words(grid),
        "timed": main_price(grid, summary).what,
        "ranks": summary.ranks,
        "needed": summary.lead.needed,
        "timed_any": any(grid.design_costs[system].milliseconds_per_text for system in order),
        "attention": _distinct(str(facts.get("attention", "not recorded")) for facts in provenance),
        "hardware": _distinct(str(facts.get("hardware", "not recorded")) for facts in provenance),
        "versions": _versions(provenance),
        "timed_on": _distinct(cost.hardware for cost in grid.costs if cost.hardware),
        "starter": any(task.startswith("starter-") for task in grid.tasks),
        "one_seed": one_seed(grid.results),
        "lost": grid.lost,
        "cut": sum(result.truncated for result in grid.results),
    }


def _headline(grid: Grid, summary: Summary) -> list[tuple[str, bool]]:
    """The title of the page in parts, each with whether it is a name. It never says "leads" of a design below a reference."""
    tied, compared = summary.lead.tied, len(candidates(summary.order)) > 1
    by_relation: dict[str, list[str]] = {}
    for reference in summary.references:
        relation = "better" if reference.relation == "untested" and reference.is_higher else reference.relation
        by_relation.setdefault(relation, []).append(grid.names[reference.system])
    outcome = next((relation for relation in ("better", "tied", "worse") if relation in by_relation), None)
    parts = [(grid.names[summary.leader], True)]
    if not compared:
        verb = {"better": " is behind ", "tied": " ties with ", "worse": " is better than "}
        return [
            *parts,
            *(
                [(verb[outcome], False), (enumerate_names(by_relation[outcome]), True)]
                if outcome
                else [(", on its own", False)]
            ),
        ]
    if len(tied) == 1:
        parts += [(" ties with ", False), (grid.names[tied[0]], True)]
    elif tied:
        parts.append((f" ties with {len(tied)} others", False))
    elif outcome in ("better", "tied"):
        parts.append((" is the best design" if summary.lead.tests else " scores highest of the designs", False))
    else:
        parts.append((" leads" if summary.lead.tests else " scores highest", False))
    if outcome == "better":
        parts += [(", behind ", False), (enumerate_names(by_relation["better"]), True)]
    elif outcome == "tied":
        parts += [(", and with " if tied else ", tied with ", False), (enumerate_names(by_relation["tied"]), True)]
    return parts


def _minus(sentence: str) -> str:
    """A sentence with the minus signs of print."""
    return re.sub(r"(?<=[\[ ])-(?=\d)", MINUS, sentence)


def _words(grid: Grid) -> dict[str, Any]:
    """Scores on words: tasks, and a line for each reading, best first."""
    tasks = {result.task: result for result in grid.words}
    lines: dict[tuple[str, str], dict[str, Result]] = {}
    for result in grid.words:
        lines.setdefault(result.system, {})[result.task] = result
    order = sorted(lines, key=lambda system: -sum(result.main_score for result in lines[system].values()))
    several = len({model for model, _ in order}) > 1
    rows = [
        (f"{system[1]} ({system[0]})" if several else system[1], [lines[system].get(task) for task in tasks])
        for system in order
    ]
    return {"tasks": list(tasks.values()), "rows": rows}


def _card(grid: Grid, summary: Summary, advice: KindLeader) -> dict[str, Any]:
    """What to use for a kind of task, and why."""
    tasks = [result for result in grid.tasks.values() if result.kind == advice.kind]
    cost = grid.design_costs[advice.system]
    parts = [
        *([f"{amount(round(cost.tokens_per_text))} tokens per text"] if cost.tokens_per_text else []),
        *([f"{amount(round(cost.tokens_per_second))} tokens per second"] if cost.tokens_per_second else []),
        *([f"{memory(cost.peak_memory)} at the peak"] if cost.peak_memory else []),
        f"{amount(cost.dim)} dimensions",
    ]
    return {
        "title": (KINDS[advice.kind].title if advice.kind in KINDS else "") or advice.kind.capitalize(),
        "name": grid.names[advice.system],
        "score": advice.score,
        "interval": summary.advice_intervals.get(advice.kind),
        "metric": ", ".join(_distinct(metric_name(result.metric) for result in tasks)),
        "tasks": len(tasks),
        "tied": len(advice.tied),
        "above": [
            (grid.names[reference.system], reference.score, reference.relation)
            for reference in advice.references
            if reference.is_higher
        ],
        "reasons": [_minus(reason) for reason in advice.reasons],
        # the reasons above it on the page are about the tasks of one kind
        "cost": "On all tasks: " * (len(parts) > 1) + ", ".join(parts),
    }


def memory(size: int | None) -> str:
    """Bytes as MiB or GiB."""
    if size is None:
        return DASH
    return amount(size / 2**30, "GiB") if size >= 2**30 else amount(round(size / 2**20), "MiB")


def _ranked_row(grid: Grid, summary: Summary, rank: int) -> dict[str, Any]:
    system, mean = summary.order[rank - 1]
    cost = grid.design_costs[system]
    return {
        "place": rank,
        "name": grid.names[system],
        "mean": mean,
        "interval": summary.intervals.get(system),
        "against": summary.against.get(system),
        "rank": summary.ranks.mean_ranks.get(grid.names[system]) if summary.ranks else None,
        "cost": cost,
        "memory": memory(cost.peak_memory),
        "efficient": system in front(price_points(grid, summary, main_price(grid, summary))),
    }


def _columns(grid: Grid) -> list[GridColumn]:
    columns = [GridColumn("mean", "of all tasks", "", "mean")] if len(grid.tasks) > 1 else []
    for kind in grid.kinds:
        of_kind = [result for result in grid.tasks.values() if result.kind == kind]
        if len(of_kind) > 1:
            columns.append(GridColumn("mean", f"of {kind}", kind, "kind-mean"))
        for result in of_kind:
            columns.append(GridColumn(result.task, f"{metric_name(result.metric)}, n {amount(result.n)}", kind))
            if any("ami" in scored.scores for scored in grid.results if scored.task == result.task):
                columns.append(GridColumn(result.task, "AMI", kind, "beside"))
    return columns


def _cell(
    grid: Grid,
    summary: Summary,
    system: System,
    column: GridColumn,
    rows: Mapping[tuple[System, str], str],
    scale: float,
) -> Cell:
    kind, role = column.kind, column.role
    if role == "mean":
        mean = dict(summary.order).get(system)
        return Cell(points(mean), mean, role=role)
    if role == "kind-mean":  # for a system that was scored on all tasks of the kind
        tasks = [task for task, result in grid.tasks.items() if result.kind == kind]
        scores = [grid.cells[system, task].main_score for task in tasks if (system, task) in grid.cells]
        mean = float(np.mean(scores)) if len(scores) == len(tasks) else None
        return Cell(points(mean), mean, kind=kind, role=role)
    result = grid.cells.get((system, column.head))
    if result is None:
        index = grid.failed.get((system, column.head))
        if index is not None and role == "task":
            return Cell("failed", kind=kind, row=f"f{index}", role="failed")
        return Cell(DASH, kind=kind, role="missing")
    row = rows[system, column.head]
    if role == "beside":
        ami = result.scores.get("ami")
        return Cell(points(ami), ami, kind=kind, role=role, row=row)
    gap = 100 * (grid.best[column.head] - result.main_score) / scale
    return Cell(
        points(result.main_score),
        result.main_score,
        half=f"±{50 * (result.interval[1] - result.interval[0]):.1f}" if result.interval else "",
        level=round((_LEVELS - 1) * (1 - min(gap, 1.0))),
        mark=summary.marks.get((system, column.head)),
        row=row,
        kind=kind,
    )


def _models(grid: Grid) -> list[dict[str, Any]]:
    """Each model under each of its settings, once."""
    names = ("model", "adapter", "model_revision", "dtype", "max_length")
    settings = dict.fromkeys(tuple(getattr(result.conditions, name) for name in names) for result in grid.results)
    return [dict(zip(("model", "adapter", "revision", "dtype", "max_length"), values, strict=True)) for values in settings]


def _versions(provenance: Iterable[Mapping[str, Any]]) -> list[str]:
    """Library versions, each with all that the results were measured under."""
    versions: dict[str, dict[str, None]] = {}
    for facts in provenance:
        for name, version in dict(facts.get("versions") or {}).items():
            versions.setdefault(str(name), {})[str(version)] = None
    return [f"{name} {' and '.join(used)}" for name, used in versions.items()]


def _distinct(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))
