"""The page about statistics shows what its code prints, and its tables what the functions say."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from unmask.statistics.paired import fewest_tasks

PAGE = (Path(__file__).parents[2] / "docs" / "statistics.md").read_text(encoding="utf-8")
FAMILIES: dict[str, Callable[[int], int]] = {
    "tasks for all pairs": lambda k: k * (k - 1) // 2,
    "tasks against a baseline": lambda k: k - 1,
}


def test_the_example_prints_what_the_page_says() -> None:
    [(code, said)] = re.findall(r"```python\n(.*?)```\nprints\n```\n(.*?)```", PAGE, flags=re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "docs/statistics.md", "exec"), {})
    assert printed.getvalue() == said


def test_the_table_of_fewest_tasks_is_right() -> None:
    rows = {row[0]: [int(cell) for cell in row[1:]] for row in cells() if row[0] in ("designs", *FAMILIES)}
    for name, pairs in FAMILIES.items():
        assert rows[name] == [fewest_tasks(pairs(designs)) for designs in rows["designs"]]


def test_every_function_of_the_first_table_exists() -> None:
    named = [name for row in cells() if len(row) == 4 for name in re.findall(r"`([\w.]+)\.(\w+)`", row[1])]
    assert len(named) == 6
    for module, function in named:
        assert callable(getattr(import_module(f"unmask.{module}"), function))


def cells() -> list[list[str]]:
    """Rows of the page's tables."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| ")]
