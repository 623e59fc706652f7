"""The view of a benchmark's report."""

from __future__ import annotations

from benchmarks._report import cells
from tools.results.cells import command, markdown
from tools.results.kept import Kept


def benchmark(kept: Kept) -> str:
    """The command, and all notes and tables."""
    parts = [f"{part}\n" if isinstance(part, str) else _table(part) for part in kept["parts"]]
    return "\n".join([command(kept), *parts])


def _table(table: Kept) -> str:
    rows = [cells(table["columns"], row) for row in table["rows"]]
    return f"{table['title']}:\n\n{markdown(tuple(table['columns']), rows)}"
