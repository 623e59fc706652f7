"""Tables of studies, for a terminal and as Markdown."""

from __future__ import annotations

import re
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
        """The table as Markdown below its title."""
        return f"## {self.title}\n{self.body()}" + (f"\n{self.note}\n" if self.note else "")

    def body(self) -> str:
        """The table alone as Markdown, with numbers aligned to the right."""
        lines = [
            self.columns,
            tuple("--:" if self._holds_numbers(index) else "---" for index in range(len(self.columns))),
            *self.rows,
        ]
        return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)

    def rich(self) -> Table:
        """The table for a terminal."""
        from unmask.io.terminal import table as empty_table

        table = empty_table(self.title, caption=self.note or None, caption_justify="left", pad_edge=True)
        for index, column in enumerate(self.columns):
            table.add_column(column, justify="right" if self._holds_numbers(index) else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        return table

    def _holds_numbers(self, index: int) -> bool:
        """Whether every cell of a column begins with a number, or is empty. The first column holds names."""
        return index > 0 and all(re.match(r"\W*\d", row[index]) for row in self.rows if row[index])
