"""Tables of studies, for a terminal and as Markdown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Sheet:
    """A table: title, column headers, cells, and a note below it."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def markdown(self) -> str:
        """The table as Markdown, with numbers aligned to the right."""
        lines = [self.columns, ("---", *("--:" for _ in self.columns[1:])), *self.rows]
        body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"## {self.title}\n{body}\n" + (f"\n{self.note}\n" if self.note else "")

    def rich(self) -> Table:
        """The table for a terminal."""
        from unmask.io.terminal import table as empty_table

        table = empty_table(self.title, caption=self.note or None, caption_justify="left", pad_edge=True)
        for place, column in enumerate(self.columns):
            table.add_column(column, justify="right" if place else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        return table
