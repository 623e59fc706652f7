"""Tables for a terminal: ranked designs, paired differences, recommendations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from unmask.evaluation.leader import KindLeader, points
from unmask.evaluation.results import Result
from unmask.evaluation.seed_means import DEVIATION
from unmask.evaluation.verdict import System, SystemTest, display_name, rank_systems, tests_used, tokens_per_text
from unmask.io.terminal import console, counted, two_lines, visible
from unmask.io.terminal import table as empty_table
from unmask.reporting.grid import metric_name
from unmask.statistics.paired import SIGNIFICANT
from unmask.tasks.kinds import KINDS

if TYPE_CHECKING:
    from rich.table import Table

    from unmask.evaluation.training_gain import TrainingGain
    from unmask.training.lora import Coverage
    from unmask.training.recipe import Recipe


_NAME = 44  # characters of a design that heads a row of differences, beyond which it is cut
_DESIGN, _COLUMN = 40, 8  # characters of a design with its rank and cost, and of a score


def ranking(results: Sequence[Result], width: int) -> Table:
    """Systems, best first: main score x 100 on each task, the mean, and the tokens of a text. Half an interval if there is room.

    width: of the terminal, in characters. If the tasks do not fit, each kind of task has one column, with its mean.
    """
    columns = _columns({result.task: result for result in results}, width)
    if all(len(tasks) == 1 for _, tasks in columns):
        table = _ranking(results, columns, with_intervals=True)
        if console(width=10_000).measure(table).maximum <= width:  # no cell is folded
            return table
    return _ranking(results, columns, with_intervals=False)


def _ranking(results: Sequence[Result], columns: Sequence[tuple[str, list[str]]], *, with_intervals: bool) -> Table:
    first = {result.task: result for result in results}
    of_kinds = any(len(group) > 1 for _, group in columns)
    title = "Main score x 100" + ", means over the tasks of a kind" * of_kinds + " ± half its 95 % interval" * with_intervals
    table = empty_table(f"{title}, best design first", show_edge=False)  # so that four tasks fit into 80 columns
    table.add_column("", justify="right")
    table.add_column("design", overflow="fold", max_width=_DESIGN)
    for header, group in columns:
        # on a narrow terminal with many tasks there is room for a name, wrapped if necessary, but not for the metric
        metric = metric_name(first[group[0]].metric)
        head = two_lines(header, metric) if with_intervals or len(columns) < 5 else Text(header)
        table.add_column(head, justify="right", overflow="fold", min_width=5)  # a score is never broken
    if len(columns) > 1:
        table.add_column("mean", justify="right", no_wrap=True)
    table.add_column(two_lines("tokens", "/ text"), justify="right", no_wrap=True)
    cells = {(result.system, result.task): result for result in results}
    systems = {result.system for result in results}
    means = {header: [_mean(cells, system, group) for system in systems] for header, group in columns}
    best = {header: max((mean for mean in values if mean is not None), default=None) for header, values in means.items()}
    for rank, (system, mean) in enumerate(rank_systems(results), start=1):
        scores = [_score(cells, system, group, best[header], with_intervals) for header, group in columns]
        tokens = tokens_per_text(results, system)
        overall = [f"{100 * mean:.1f}"] if len(columns) > 1 else []
        table.add_row(str(rank), display_name(system, results), *scores, *overall, f"{tokens:.0f}" if tokens else "-")
    return table


def _columns(tasks: Mapping[str, Result], width: int) -> list[tuple[str, list[str]]]:
    """A header and the tasks of each column: one task, or all of a kind where these have no room."""
    if _DESIGN + _COLUMN * len(tasks) <= width:
        return [(visible(task.removeprefix("starter-")), [task]) for task in tasks]
    kinds: dict[str, list[str]] = {}
    for task, result in tasks.items():
        kinds.setdefault(result.kind, []).append(task)
    return [(_heading(kind) + (f"\n({len(group)})" if len(group) > 1 else ""), group) for kind, group in kinds.items()]


def _heading(kind: str) -> str:
    """What a narrow column is called."""
    return (KINDS[kind].heading if kind in KINDS else "") or kind


def differences(results: Sequence[Result], comparisons: Sequence[SystemTest], width: int) -> RenderableType:
    """Row minus column x 100 for every pair of the best systems. A star: the pair differs after Holm's correction.

    It shows as many systems as the width allows, and never cuts a number or its star.
    """
    order = [system for system, _ in rank_systems(results)]
    name = min(_NAME, max(len(visible(display_name(system, results))) for system in order) + 4)
    max_columns = max(2, (width - name) // 8 + 1)
    order = order[:max_columns]
    by_pair = {(test.a, test.b): test for test in comparisons}
    outcome = comparisons[0].outcome
    table = empty_table("", show_edge=False)
    table.add_column("", no_wrap=True, max_width=name)
    for rank in range(2, len(order) + 1):
        table.add_column(str(rank), justify="right", no_wrap=True, min_width=6)
    for rank, system in enumerate(order[:-1], start=1):
        cells = [
            _difference(system, rival, by_pair) if other_rank > rank else ""
            for other_rank, rival in enumerate(order[1:], start=2)
        ]
        table.add_row(f"{rank} {display_name(system, results)}", *cells)
    unit = f"{outcome.n} {outcome.unit}" + (
        f" of {counted(len(comparisons[0].tasks), 'task')}" if outcome.unit == "items" else ""
    )
    families = ", and over ".join(dict.fromkeys(test.family for test in comparisons))
    note = f"* p < {SIGNIFICANT}: {tests_used(comparisons)} on {unit}, Holm-corrected over {families}."
    if outcome.unit == "items":
        note += (
            " There are too few tasks for a test over tasks, so the result is about these tasks, not about tasks in general."
        )
    if len(order) < len({result.system for result in results}):
        note += f" The {max_columns} best are shown; comparison.json has every pair."
    title = Text("Row minus column x 100; * significant", style="italic")
    return Group(title, table, "", Text(note, style="dim"), "")


def advice(recommendations: Sequence[KindLeader], results: Sequence[Result]) -> RenderableType:
    """What to use for each kind of task, with its score x 100, and why: one short line for each thought."""
    lines: list[RenderableType] = [Text("What to use", style="italic")]
    for leader in recommendations:
        head = Text(f"{leader.kind}: ").append(display_name(leader.system, results), style="bold")
        lines.append(Padding(head.append(f", {points(leader.score)}", style="default"), (0, 0, 0, 2), expand=False))
        reasons = empty_table("", show_header=False, box=None)
        for reason in leader.reasons:
            reasons.add_row("   -", reason)
        lines.append(reasons)
    return Group(*lines, "")


def shared_readings(sharing: Mapping[str, Sequence[str]]) -> RenderableType:
    """The designs that share a word-level score, because they have the same attention and layer."""
    note = "A score on words depends on attention and layer alone, and means nothing beside one on texts."
    lines = [f"  {name}: {', '.join(labels)}" for name, labels in sharing.items()]
    return Group(*(Text(line, style="dim") for line in [note, *lines]), "")


ResultsByCell = Mapping[tuple[System, str], Result]


def _mean(cells: ResultsByCell, system: System, tasks: Sequence[str]) -> float | None:
    """Mean main score over some tasks, or None where one is missing."""
    scores = [cells[system, task].main_score for task in tasks if (system, task) in cells]
    return sum(scores) / len(scores) if len(scores) == len(tasks) else None


def _score(cells: ResultsByCell, system: System, tasks: Sequence[str], best: float | None, with_intervals: bool) -> Text:
    mean = _mean(cells, system, tasks)
    if mean is None:
        return Text("-")
    text = Text(f"{100 * mean:.1f}", style="bold" if mean == best else "")
    result = cells[system, tasks[0]]
    if len(tasks) == 1 and DEVIATION in result.scores:
        text.append(f" ±{100 * result.scores[DEVIATION]:.1f} over seeds", style="dim")
    if with_intervals and result.interval:
        low, high = result.interval
        text.append(f" ±{50 * (high - low):.1f}", style="dim")
    return text


def _difference(row: System, column: System, by_pair: dict[tuple[System, System], SystemTest]) -> str:
    test = by_pair.get((row, column)) or by_pair.get((column, row))
    if test is None:  # not of the family, which has a baseline
        return ""
    sign = 1 if (row, column) in by_pair else -1
    star = "*" if test.winner else " "
    text = f"{100 * sign * test.outcome.difference:+.1f}"
    return f"{text if text.strip('+-0.') else text[1:]}{star}"  # a difference of 0 has no sign


def coverage_table(stage: str, kinds: Sequence[Coverage]) -> Table:
    """What trains in a stage: for each kind of weight, how many of them have an adapter, and how many parameters."""
    table = empty_table(f"{stage}: what trains")
    table.add_column("weights", no_wrap=True)
    for column in ("adapted", "of parameters", "trainable"):
        table.add_column(column, justify="right")
    for kind in kinds:
        style = "" if kind.adapted == kind.present else "dim"
        table.add_row(kind.kind, f"{kind.adapted}/{kind.present}", f"{kind.parameters:,}", f"{kind.trainable:,}", style=style)
    total = sum(kind.trainable for kind in kinds)
    table.add_row("total", "", f"{sum(kind.parameters for kind in kinds):,}", f"{total:,}", style="bold")
    return table


def gain_table(gain: TrainingGain, title: str) -> Table:
    """A trained embedder compared with its untrained base and a reference row: mean scores of each kind of task."""
    header, *rows = gain.table
    table = empty_table(f"{title}: main score x 100, means over the tasks of a kind and over all")
    for column in header:
        table.add_column(_heading(column), justify="right" if column else "left", no_wrap=not column)
    for row in rows:
        table.add_row(*row)
    return table


def recipe_table(recipes: Sequence[tuple[Recipe, Sequence[str]]]) -> Table:
    """The recipes: their stages, their scales, and what they train."""
    table = empty_table("Recipes")
    for column in ("recipe", "stages", "scales", "what it trains"):
        table.add_column(column, no_wrap=column == "recipe")
    for recipe, scales in recipes:
        description = Text(f"{recipe.about} ").append(recipe.source, style="dim")
        table.add_row(recipe.name, " > ".join(recipe.stages), " ".join(scales), description)
    return table
