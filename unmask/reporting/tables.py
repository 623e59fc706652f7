"""Tables for a terminal: ranked designs, paired differences, recommendations."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from unmask.evaluation.results import Result
from unmask.evaluation.verdict import SIGNIFICANT, Comparison, Recommendation, System, ranked


def ranking(results: Sequence[Result]) -> Table:
    """Systems, best first: main score x 100 of each task, their mean, and what a text costs."""
    tasks = list(dict.fromkeys(result.task for result in results))
    several_models = len({result.model for result in results}) > 1
    table = Table(title="Main scores x 100 (95 % interval), best design first", title_justify="left", header_style="bold")
    table.add_column("#", justify="right")
    if several_models:
        table.add_column("model", no_wrap=True)
    table.add_column("design", no_wrap=True)
    for task in tasks:
        metric = next(result.metric for result in results if result.task == task)
        table.add_column(f"{task}\n[dim]{metric}[/]", justify="right")
    table.add_column("mean", justify="right")
    table.add_column("dim", justify="right")
    table.add_column("tokens\n/text", justify="right")
    cells = {(result.system, result.task): result for result in results}
    best = {task: max(result.main_score for result in results if result.task == task) for task in tasks}
    for place, (system, mean) in enumerate(ranked(results), start=1):
        own = [result for result in results if result.system == system]
        row: list[RenderableType] = [str(place), *([system[0]] if several_models else []), own[0].label]
        row += [_score(cells.get((system, task)), best[task]) for task in tasks]
        tokens = sum(result.tokens for result in own) / max(1, sum(result.texts for result in own))
        row += [f"{100 * mean:.1f}", str(own[0].dim), f"{tokens:.0f}" if tokens else "-"]
        table.add_row(*row)
    return table


def differences(results: Sequence[Result], comparisons: Sequence[Comparison]) -> RenderableType:
    """Row minus column x 100 for every pair of systems, a star where the pair differs after Holm's correction."""
    order = [system for system, _ in ranked(results)]
    label = {result.system: result.label for result in results}
    by_pair = {(test.a, test.b): test for test in comparisons}
    outcome = comparisons[0].outcome
    table = Table(title="Row minus column x 100", title_justify="left", header_style="bold")
    table.add_column("")
    for place in range(2, len(order) + 1):
        table.add_column(str(place), justify="right")
    for place, system in enumerate(order[:-1], start=1):
        cells = [_difference(system, other, by_pair) if at > place else "" for at, other in enumerate(order[1:], start=2)]
        table.add_row(f"{place} {label[system]}", *cells)
    unit = f"{outcome.n} {outcome.unit}" + (f" of {len(comparisons[0].tasks)} tasks" if outcome.unit == "items" else "")
    note = f"* p < {SIGNIFICANT} by {outcome.test} on {unit}, Holm-corrected over {len(comparisons)} pairs."
    if outcome.unit == "items":
        note += " Fewer than 6 tasks: it says which design is better on these tasks, not on tasks in general."
    return Group(table, Text(note, style="dim"))


def advice(recommendations: Sequence[Recommendation], results: Sequence[Result]) -> Table:
    """What to use for each kind of task, and why."""
    label = {result.system: result.label for result in results}
    several = len({result.model for result in results}) > 1
    table = Table(title="Recommended", title_justify="left", header_style="bold")
    table.add_column("kind", no_wrap=True)
    table.add_column("design", no_wrap=True)
    table.add_column("because")
    for one in recommendations:
        name = f"{one.system[0]} {label[one.system]}" if several else label[one.system]
        table.add_row(one.kind, Text(name, style="bold"), one.reason)
    return table


def _score(result: Result | None, best: float) -> Text:
    if result is None:
        return Text("-")
    text = Text(f"{100 * result.main_score:.1f}", style="bold" if result.main_score == best else "")
    if result.interval:
        low, high = result.interval
        text.append(f" ±{50 * (high - low):.1f}", style="dim")
    return text


def _difference(row: System, column: System, by_pair: dict[tuple[System, System], Comparison]) -> str:
    test = by_pair.get((row, column)) or by_pair[column, row]
    sign = 1 if (row, column) in by_pair else -1
    star = "*" if (test.outcome.p_holm or 0) < SIGNIFICANT else " "
    return f"{100 * sign * test.outcome.difference:+.1f}{star}"
