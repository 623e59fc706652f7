"""`unmask leaks`: which training texts are texts that a task scores."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli.options import AsJson
from unmask.io.paths import expanded
from unmask.io.terminal import say, tell_json

if TYPE_CHECKING:
    from unmask.tasks.kinds.kind import TextsAndPairs
    from unmask.training.leakage import LeakReport


def leaks(
    train: Annotated[
        list[str],
        typer.Option(
            help="Training data: a file or folder of texts, pairs or triples, hub:REPO[:CONFIG] or starter:pairs. Repeat for several."
        ),
    ],
    task: Annotated[list[str], typer.Option("--task", "-t", help="Task folder or `starter`. Repeat for several.")],
    threshold: Annotated[
        float, typer.Option(help="Similarity from which two texts count as near duplicates (Jaccard of runs of five letters).")
    ] = 0.8,
    examples: Annotated[int, typer.Option(min=0, help="How many leaks to show for each training set and task.")] = 2,
    as_json: AsJson = False,
) -> None:
    """Look for leaks: count the training texts and pairs that also occur in a task, exactly or nearly."""
    from unmask.errors import UnmaskError
    from unmask.tasks.find import resolve_tasks
    from unmask.tasks.task import LocalTask
    from unmask.training.data import DataSource, read_whole
    from unmask.training.leakage import find_leaks

    scored: dict[str, TextsAndPairs] = {}
    for resolved in resolve_tasks(task):
        if not isinstance(resolved, LocalTask):
            raise UnmaskError(f"Leaks are looked for in task folders, and '{resolved.name}' is a task of mteb.")
        scored[resolved.name] = resolved.texts_and_pairs
    texts = {name: own for name, (own, _) in scored.items()}
    pairs = {name: own for name, (_, own) in scored.items()}
    reports = []
    for path in train:
        data = read_whole(_label(path), DataSource(path=path), Path())
        if data.unread:
            say(f"{data.name}: columns not searched: {', '.join(data.unread)}")
        reports.append(find_leaks(data, texts, threshold, pairs))
    if as_json:
        content = [{"path": path, **_as_json(report)} for path, report in zip(train, reports, strict=True)]
        tell_json(content)
    else:
        _print(reports, examples)


def _label(path: str) -> str:
    """What a table calls a file: many are named train.jsonl, and their folders tell them apart."""
    if path.startswith(("hub:", "starter:")):
        return path
    file = expanded(path).resolve()
    return file.name if file.is_dir() else f"{file.parent.name}/{file.stem}"


def _as_json(report: LeakReport) -> dict[str, Any]:
    return {
        **asdict(report),
        "tasks": [{**asdict(task), "exact": task.exact, "near": task.near} for task in report.tasks],
    }


def _print(reports: list[LeakReport], examples: int) -> None:
    from unmask.io import terminal

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
                console.print(
                    f"{report.data}, line {leak.row} ({leak.column}) and {task.task}: {leak.similarity:.2f}", style="dim"
                )
                console.print(f"  {leak.text[:200]}\n  {leak.found[:200]}")
    console.print(
        "pairs: training examples that hold both texts which the task compares; one text: the others that hold a text of it.",
        style="dim",
    )
