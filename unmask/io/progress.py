"""A progress bar with an ETA, on standard error, on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(what: str, total: int, show: bool | None = None) -> Iterator[Callable[[int], None] | None]:
    """Yield a function that takes the number of units done since its last call, or None where no bar is shown."""
    if not (sys.stderr.isatty() if show is None else show):
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from unmask.io.terminal import console, visible

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(visible(what), total=total)
        yield lambda done: bar.advance(task, done)
