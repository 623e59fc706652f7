"""Results as commands print them for people: comparisons, recommendations, leaks."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from unmask.io import terminal

if TYPE_CHECKING:
    from unmask.evaluation.comparison import FinishedComparison
    from unmask.evaluation.recommend import Recommendation
    from unmask.training.leakage import LeakReport


def print_comparison(run: FinishedComparison) -> None:
    """The ranked table, paired tests and advice for each part, and notes."""
    from unmask.evaluation.leader import kind_leaders
    from unmask.evaluation.seed_means import one_seed
    from unmask.evaluation.verdict import labels_by_layer
    from unmask.reporting.tables import advice, differences, ranking, shared_readings

    console = terminal.console()
    for results, tests in run.parts:
        baseline = next((result.system for result in results if result.label == run.baseline), None)
        console.print(ranking(results, console.width))
        console.print()
        if tests:
            console.print(differences(results, tests, console.width))
        console.print(advice(kind_leaders(results, run.store, baseline), results))
    if note := one_seed(run.results):
        console.print(note, style="dim")
    if shared := labels_by_layer(run.results):
        console.print(shared_readings(shared))
    if truncated := [result for result in run.results if result.truncated]:
        worst = max(truncated, key=lambda result: result.truncated / max(1, result.texts))
        console.print(
            f"Up to {worst.truncated} of {worst.texts} texts were truncated to {worst.conditions.max_length} tokens, prompt included "
            f"({worst.label} on {worst.task}). --max-length sets the limit.",
            style="dim",
        )
    if any(result.task.startswith("starter-") for result in run.results):
        console.print("The starter tasks are a small demonstration written for this package, not a benchmark.", style="dim")
    folder = run.store.folder
    console.print(
        f"Saved to {folder}/: results.jsonl, comparison.json. The same command computes only what is new.", style="dim"
    )
    console.print(f"Next: unmask report {shlex.quote(str(folder))}", soft_wrap=True)


def print_recommendation(choice: Recommendation) -> None:
    """The rounds of the race, the recommended design, and the reasons."""
    from unmask.evaluation.leader import points

    for number, stage in enumerate(choice.rounds, start=1):
        terminal.tell(
            f"Round {number}: {stage.items} items, {stage.tokens:,} tokens; distance to the best, with intervals corrected over all pairs"
        )
        width = max(len(candidate.label) for candidate in stage.ranking)
        for candidate in stage.ranking:
            behind = f"{100 * candidate.behind:5.1f} behind" if candidate is not stage.ranking[0] else ""
            if candidate.interval:
                low, high = candidate.interval
                behind += f" [{points(low)}, {points(high)}]{', worse' * candidate.worse}"
            mark = "+" if candidate.label in stage.survivors and not candidate.worse else " "
            terminal.tell(f"  {mark} {100 * candidate.score:5.1f}  {candidate.label:{min(width, 40)}} {behind}".rstrip())
        print()
    for label, reason in choice.failed.items():
        terminal.tell(f"Left out: {label}, {reason}")
    name = choice.label if choice.label == choice.design.name else f"{choice.label} ({choice.design.name})"
    terminal.tell_wrapped(f"Use {name}.", "")
    bounds = f" [{points(choice.interval[0])}, {points(choice.interval[1])}]" if choice.interval else ""
    selection_items = f"all {choice.chosen_on}" if choice.all_items else f"{choice.chosen_on}"
    if choice.held_out:
        selection = (
            f"It was chosen from {choice.candidates} candidates on {selection_items} other items, so the selection does not inflate "
            "its score."
        )
    else:
        selection = (
            f"It was chosen from {choice.candidates} candidates on {selection_items} items, the same as its score is from. The interval "
            "is widened for this (Bonferroni), but the score may be too high. With 80 items or more in each task, half of them are held "
            "out for the score."
        )
    for line in (
        f"Its score is {100 * choice.score:.1f}{bounds} on {choice.items} {'held-out items' if choice.held_out else 'items'}, "
        f"with {choice.tokens_a_text:.0f} tokens per text.",
        *choice.reasons,
        selection,
        f"It took {choice.tokens:,} tokens.",
    ):
        terminal.tell_wrapped(line, "  - ")


def print_leaks(reports: Sequence[LeakReport], examples: int = 2) -> None:
    """Training texts that are texts of a task, by training set and task, with examples."""
    console = terminal.console()
    table = terminal.table("Training texts that are texts of a task")
    for column in ("training data", "task"):
        table.add_column(column, overflow="fold")
    for column in ("texts", "exact", "near", "of the task", "pairs", "one text"):
        table.add_column(column, justify="right")
    for report in reports:
        for task in report.tasks:
            share = f"{task.seen} ({100 * task.seen / max(1, task.texts):.1f} %)"
            counts = (report.texts, task.exact, task.near, share, len(task.both), len(task.one))
            table.add_row(report.data, task.task, *map(str, counts))
    console.print(table)
    for report in reports:
        for task in report.tasks:
            for leak in sorted(task.leaks, key=lambda leak: leak.similarity)[:examples]:
                origin = f"{report.data}, line {leak.row} ({leak.column}) and {task.task}: {leak.similarity:.2f}"
                console.print(origin, style="dim")
                console.print(f"  {leak.text[:200]}\n  {leak.task_text[:200]}")
    console.print(
        "pairs: training examples with both texts that the task compares; one text: other examples with a text of the task.",
        style="dim",
    )
