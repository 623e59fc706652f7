"""What the commands that learn from lessons have in common: options, lessons by domain, progress."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.errors import UnmaskError
from unmask.moe import names

if TYPE_CHECKING:
    from unmask.moe.experts.lessons.lessons import Lesson

MOST_STEPS, MOST_TEXTS, MOST_TOKENS, LAST_SEED = 10_000_000, 1_000_000, 1_000_000_000, 2**32 - 1
Steps = Annotated[int, typer.Option(min=1, max=MOST_STEPS, help="Optimiser steps.")]
Batch = Annotated[int, typer.Option(min=1, max=MOST_TEXTS, help="Lessons per step.")]
Accumulate = Annotated[
    int, typer.Option(min=1, max=MOST_TEXTS, help="Split each step into this many forward passes, to save memory.")
]
Rate = Annotated[float, typer.Option(help="Peak learning rate.")]
MaxLength = Annotated[int, typer.Option(min=2, max=MOST_TOKENS, help="Longest lesson in tokens.")]
Average = Annotated[names.Average, typer.Option(help="Average the loss over examples or over tokens.")]
Seed = Annotated[int, typer.Option(min=0, max=LAST_SEED, help="Seed of the initial weights and of the order of lessons.")]
Drawn = Annotated[int, typer.Option("--seed", min=0, max=LAST_SEED, help="Seed of the sample.")]


def domains_of(given: list[str]) -> dict[str, list[Lesson]]:
    """Lessons by domain, of NAME=FILE. Raises UnmaskError."""
    from unmask.moe.experts.lessons.lessons import read_lessons

    return {name: read_lessons(file) for name, file in _files_of("lessons", given).items()}


def texts_of(given: list[str]) -> tuple[dict[str, list[str]], dict[str, dict[str, int]]]:
    """Texts by domain, of NAME=FILE: the `text` column, or every text of pairs. Raises UnmaskError.

    Each text comes once. The second dict says how many of a domain were left out, by the reason.
    """
    from unmask.training.data import DataSource, read_sentences

    sources = {name: DataSource(path=str(file)) for name, file in _files_of("texts", given).items()}
    sets = {name: read_sentences(name, source, Path(), 0) for name, source in sources.items()}
    texts = {name: [example.texts[0] for example in data.examples] for name, data in sets.items()}
    return texts, {name: data.skipped for name, data in sets.items()}


def _files_of(option: str, given: list[str]) -> dict[str, Path]:
    """Files by domain, of NAME=FILE. Raises UnmaskError."""
    files: dict[str, Path] = {}
    for value in given:
        name, mark, path = value.partition("=")
        if not mark or not name:
            raise UnmaskError(f"--{option} takes NAME=FILE, not '{value}'.")
        if name in files:
            raise UnmaskError(f"--{option} names the domain '{name}' twice.")
        files[name] = Path(path)
    return files


@contextmanager
def showing() -> Iterator[list[Any]]:
    """Callbacks that show the progress of a training."""
    from transformers.utils.logging import disable_progress_bar

    from unmask.training.progress import LiveProgress

    disable_progress_bar()  # of files being written; ours is enough
    bar = LiveProgress()
    try:
        yield [bar]
    finally:
        bar.close()
