"""What the commands of `unmask probe` share: options, the model to load, and how a result is shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.designs.design import Attention
from unmask.io.terminal import tell_json

if TYPE_CHECKING:
    from rich.console import RenderableType


AttentionChoice = Annotated[
    Attention | None,
    typer.Option("--attention", "-a", help="Attention of the model. Required, unless the model is a saved embedder."),
]
Layer = Annotated[int | None, typer.Option(min=1, help="Layer to read. Default: the last one, after the final norm.")]
Seed = Annotated[int, typer.Option(min=0, help="Random seed.")]
Column = Annotated[str, typer.Option(help="Column that holds the text.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Use at most this many texts, sampled at random with a fixed seed.")]
_IN_EVERY_RESULT = '"attn_implementation"'
"""A key of the provenance, which each result has."""
_SHORT = 12
"""Characters of a first column that is never wrapped."""


def texts_of(file: Path | None, column: str, limit: int | None, seed: int = 0) -> list[str]:
    """Texts of a file, or the reference texts of this package, at most `limit` of them sampled at random. Raises UnmaskError."""
    from unmask.errors import UnmaskError
    from unmask.io.rows import field, read_rows
    from unmask.starter import reference_texts
    from unmask.tasks.sampling import random_subset

    texts = reference_texts() if file is None else [field(file, line, row, column) for line, row in read_rows(file)]
    if not texts:
        raise UnmaskError(f"{file} holds no row.")
    return random_subset(texts, limit, seed)


def show(
    title: str,
    result: Any,
    rows: Sequence[Sequence[Any]],
    notes: Sequence[str],
    as_json: bool,
    head: Sequence[str] = ("", "", ""),
    prose: bool = True,
) -> None:
    """A small table with what it rests on below, or the whole result as JSON; prose: the last column explains and may wrap."""
    if as_json:
        tell_json(result.as_json())
        return
    from unmask.io import terminal

    table = terminal.table(title, show_header=any(head))
    # a narrow terminal wraps the other columns, and cuts none
    short = all(len(str(row[0])) <= _SHORT for row in rows)
    for place, name in enumerate(head):
        if prose and place == len(head) - 1:
            table.add_column(name, style="dim")
        else:
            table.add_column(name, justify="right" if place else "left", no_wrap=place == 0 and short, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = terminal.console()
    console.print(table)
    basis = getattr(result, "provenance", None)  # a result of several models tells them apart in its notes
    for note in (*notes, *([f"{basis['model']}: {basis['proof']}."] if basis else [])):
        console.print(note, style="dim")


def percent(share: float) -> str:
    """A share x 100."""
    return f"{100 * share:.1f}"


def between(bounds: tuple[float, float] | None, scale: float = 100, digits: int = 1) -> str:
    """A 95 % interval in words, or nothing."""
    return "" if bounds is None else f"95 %: {scale * bounds[0]:.{digits}f} to {scale * bounds[1]:.{digits}f}"


def below(
    value: float, bounds: tuple[float, float] | None, scale: float = 100, digits: int = 1, mark: str = ""
) -> RenderableType:
    """A number with its 95 % interval on a second line."""
    from unmask.io.terminal import two_lines

    number = f"{scale * value:.{digits}f}{mark}"
    return two_lines(number, between(bounds, scale, digits).removeprefix("95 %: ")) if bounds else number


def refuse_foreign_results(folder: Path, name: str) -> None:
    """Raise UnmaskError, before any work, if `keep` would replace a file of somebody else.

    Earlier versions left no mark in a figure. Such a figure counts as ours if our result lies beside it.
    """
    from unmask.io.files import refuse_foreign
    from unmask.reporting.plotting import MADE_BY, METADATA

    result = folder / f"{name}.json"
    refuse_foreign(result, [_IN_EVERY_RESULT])
    is_there = result.is_file() and result.stat().st_size > 0
    for ending in METADATA:
        refuse_foreign(folder / f"{name}.{ending}", ["" if is_there else MADE_BY])  # "" is in any content


def keep(result: Any, folder: Path, name: str, draw: Callable[[], list[Path]]) -> str:
    """Write a result and then its figures, and say so."""
    from unmask.io.files import write_json

    write_json(folder / f"{name}.json", result.as_json())  # first: after a kill, it tells that the figures are ours
    figures = draw()
    return f"Written to {folder}/: {name}.json, {', '.join(file.name for file in figures)}."
