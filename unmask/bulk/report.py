"""Report: how far a run has got, and how fast: a bar on a terminal, a line every few seconds in a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from unmask.bulk.document_encoder import Counts
from unmask.io.terminal import draws_bars, empty_bar, is_line_due, say


@dataclass
class Report:
    """Counts of a run. rows, shards: all there are to do; begun: when the first work began."""

    rows: int
    shards: int
    done: Counts = field(default_factory=Counts)
    shards_done: int = 0
    begun: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self.begun

    @property
    def speed(self) -> float:
        """Tokens each second."""
        return self.done.tokens / max(self.seconds, 1e-9)

    @property
    def padding(self) -> float:
        """Share of computed tokens that are padding."""
        return 1 - self.done.tokens / self.done.padded if self.done.padded else 0.0

    @property
    def line(self) -> str:
        """How far the run has got."""
        minutes = self.seconds / self.done.rows * (self.rows - self.done.rows) / 60 if self.done.rows else 0
        remaining = f", {minutes:.1f} min left" if 0 < self.done.rows < self.rows else ""
        dead = f", {self.done.dead_letters} dead letters" if self.done.dead_letters else ""
        return (
            f"embedding: {self.done.rows} of {self.rows} rows, {self.shards_done} of {self.shards} shards, {self.speed:.0f} tokens/s"
            f"{dead}{remaining}"
        )

    @property
    def summary(self) -> str:
        """What was done, in sentences."""
        cut = f" Texts that were cut: {self.done.truncated}." if self.done.truncated else ""
        fast = f"{self.done.tokens} tokens in {self.seconds:.0f} s: {self.speed:.0f} tokens/s"
        return f"{fast}, {self.padding:.1%} of the computed tokens were padding.{cut}"


@contextmanager
def shown(report: Report) -> Iterator[Callable[[], None]]:
    """Show a report while a block runs. Yields a function to call when it has changed."""
    if draws_bars():
        with empty_bar() as bar:
            task = bar.add_task("embedding", total=report.rows)

            def draw() -> None:
                description = f"embedding, {report.shards_done} of {report.shards} shards, {report.speed:.0f} tokens/s"
                bar.update(task, completed=report.done.rows, description=description)

            yield draw
        return

    def tell() -> None:
        if is_line_due(report.seconds):
            say(report.line)

    yield tell
