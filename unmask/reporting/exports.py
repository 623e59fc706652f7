"""Exports: every number of a report as CSV, JSON and LaTeX, for further analysis."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.io.files import atomic, write_json
from unmask.io.terminal import visible
from unmask.reporting.grid import Grid, metric_name
from unmask.reporting.summary import Summary

Record = dict[str, Any]
_ROTATE_FROM = 7
"""Columns of a LaTeX table from which their names stand upright."""

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "\n": " ",
}
TABLES = ("results", "designs", "comparisons", "failures", "words")
FILES = (*(f"{name}.csv" for name in TABLES), "report.json", "results.tex")
"""What an export may write."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes a cell for a formula by."""


def export(grid: Grid, summary: Summary, folder: Path) -> list[Path]:
    """Write the data of a report to a folder; the files."""
    tables = {
        "results": cell_rows(grid, summary),
        "designs": design_rows(grid, summary),
        "comparisons": comparison_rows(grid, summary),
        "failures": failure_rows(grid),
        "words": word_rows(grid),
    }
    paths = []
    for name, rows in tables.items():
        if rows:
            paths.append(_write_csv(folder / f"{name}.csv", rows))
        else:  # an earlier report may have had some
            (folder / f"{name}.csv").unlink(missing_ok=True)
    write_json(
        folder / "report.json",
        tables | {"recommendations": advice_rows(grid, summary), "passes": [cost.model_dump() for cost in grid.costs]},
    )
    with atomic(folder / "results.tex") as scratch:
        scratch.write_text(latex(grid, summary), encoding="utf-8")
    return [*paths, folder / "report.json", folder / "results.tex"]


def cell_rows(grid: Grid, summary: Summary) -> list[Record]:
    """One row a design and task, best design first: score, interval, n, and what they depend on."""
    rows: list[Record] = []
    for system in [*dict(summary.order), *summary.unranked]:
        for result in [grid.cells[system, task] for task in grid.tasks if (system, task) in grid.cells]:
            low, high = result.interval or (None, None)
            conditions = result.conditions
            rows.append(
                {
                    "name": grid.names[system],
                    "model": conditions.model,
                    "adapter": conditions.adapter,
                    "design": conditions.design,
                    "task": result.task,
                    "kind": result.kind,
                    "metric": result.metric,
                    "score": result.main_score,
                    "low": low,
                    "high": high,
                    "n": result.n,
                    "mark": summary.marks.get((system, result.task), ""),
                    **{f"also_{name}": value for name, value in result.scores.items()},
                    **{name: getattr(result, name) for name in ("dim", "texts", "tokens", "truncated")},
                    "attention": result.provenance.get("attention"),
                    **{name: getattr(conditions, name) for name in ("model_revision", "task_revision", "max_length", "dtype")},
                    "hardware": result.provenance.get("hardware"),
                }
            )
    return rows


def word_rows(grid: Grid) -> list[Record]:
    """One row a reading (attention and layer) and word-level task, where texts were scored as well."""
    rows: list[Record] = []
    for result in grid.words:
        low, high = result.interval or (None, None)
        reading = {"model": result.conditions.model, "reading": result.design, "task": result.task, "metric": result.metric}
        rows.append({**reading, "score": result.main_score, "low": low, "high": high, "n": result.n})
    return rows


def design_rows(grid: Grid, summary: Summary) -> list[Record]:
    """One row a design, best first: its mean with interval, how far behind the best, and what it costs."""
    rows: list[Record] = []
    for rank, (system, mean) in enumerate(summary.order, start=1):
        low, high = summary.intervals.get(system, (None, None))
        behind = summary.against.get(system)
        rows.append(
            {
                "place": rank,
                "name": grid.names[system],
                "model": system[0],
                "design": system[1],
                "mean": mean,
                "low": low,
                "high": high,
                "tasks": len(summary.common),
                "behind": behind.difference if behind else (0.0 if system == summary.leader else None),
                "behind_low": behind.interval[0] if behind else None,
                "behind_high": behind.interval[1] if behind else None,
                "p_holm": behind.corrected_p if behind else None,
                "is_significant": behind.winner is not None if behind else None,
                "mean_rank": summary.ranks.mean_ranks.get(grid.names[system]) if summary.ranks else None,
                **vars(grid.design_costs[system]),
            }
        )
    return rows


def comparison_rows(grid: Grid, summary: Summary) -> list[Record]:
    """One row a pair of designs: the paired test of the two."""
    rows = []
    for test in summary.tests:
        content = test.as_json()
        low, high = content.pop("interval")
        content |= {"a": grid.names[test.a], "b": grid.names[test.b], "tasks": len(test.tasks), "low": low, "high": high}
        rows.append(content)
    return rows


def failure_rows(grid: Grid) -> list[Record]:
    """One row a design and task that failed, with the error."""
    names = ("label", "model", "design", "task", "kind", "error")
    return [{name.replace("label", "name"): getattr(failure, name) for name in names} for failure in grid.failures]


def advice_rows(grid: Grid, summary: Summary) -> list[Record]:
    """One row a kind of task: what to use, and why."""
    return [
        {
            "kind": advice.kind,
            "name": grid.names[advice.system],
            "score": advice.score,
            "tied": [grid.names[system] for system in advice.tied],
            "reasons": list(advice.reasons),
            "references": [
                {"name": grid.names[reference.system], "score": reference.score, "relation": reference.relation}
                for reference in advice.references
            ],
        }
        for advice in summary.advice
    ]


def latex(grid: Grid, summary: Summary) -> str:
    """A booktabs table of main scores x 100, best design first; bold: best of its task, underlined: not significantly different from it."""
    tasks = list(grid.tasks)
    upright = len(tasks) >= _ROTATE_FROM
    heads = [f"\\rotatebox{{90}}{{{name}}}" if upright else name for name in map(escape_latex, [*tasks, "mean"])]
    lines = [
        "% Needs \\usepackage{booktabs}" + (" and \\usepackage{graphicx}" if upright else "") + ".",
        "\\begin{tabular}{l" + "r" * len(heads) + "}",
        "\\toprule",
        " & ".join(["design", *heads]) + r" \\",
        "\\midrule",
    ]
    means = dict(summary.order)
    for system in [*means, *summary.unranked]:
        cells = [escape_latex(grid.names[system])]
        for task in tasks:
            result = grid.cells.get((system, task))
            number = "--" if result is None else f"{100 * result.main_score:.1f}"
            command = {"best": "\\textbf", "tied": "\\underline"}.get(summary.marks.get((system, task), ""))
            cells.append(f"{command}{{{number}}}" if command else number)
        lines.append(" & ".join([*cells, f"{100 * means[system]:.1f}" if system in means else "--"]) + r" \\")
    metrics = ", ".join(dict.fromkeys(metric_name(result.metric) for result in grid.tasks.values()))
    note = (
        f"Main score $\\times$ 100 ({escape_latex(metrics)}); mean over {len(summary.common)} tasks that every design has. "
        "Bold: best of its task. Underlined: tied with it (paired tests over items, Holm over all pairs)."
    )
    if summary.untested:
        note += f" Not tested, so nothing is underlined: {escape_latex(', '.join(summary.untested))}."
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", f"% {note}", ""])


def escape_latex(text: str) -> str:
    """Text that LaTeX prints as it stands."""
    parts = (character if character in _LATEX else visible(character) for character in text)
    return "".join(_LATEX.get(character, character) for part in parts for character in part)


def _write_csv(file: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    def without_formula(value: Any) -> Any:  # a spreadsheet shows a text behind an apostrophe, and does not run it
        return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value

    columns = list(dict.fromkeys(column for row in rows for column in row))
    with atomic(file) as scratch, scratch.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows({column: without_formula(value) for column, value in row.items()} for row in rows)
    return file
