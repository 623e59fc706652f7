"""Pages with tables of kept results.

A table stands between two comments. The first names a kept result and how it is shown (`SHOWN`):

    <!-- table: measured/results/demo.json by-kind -->
    <!-- end -->

A section of a study's report is taken over whole, by its heading:

    <!-- section: measured/routers-smollm2.md Conclusion -->
    <!-- end -->

Goals that were set beforehand stand beside what kept results say of them:

    <!-- goals: measured/goals.toml all -->
    <!-- end -->
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from tools.results import choices, comparisons
from tools.results.benchmark import benchmark
from tools.results.goals import goals
from tools.results.kept import FOLDER, Kept, keep

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = ("docs/results.md", "docs/router-study.md", "README.md")
SHOWN: Final[Mapping[str, Callable[[Kept], str]]] = {
    "by-kind": comparisons.by_kind,
    "grid": comparisons.grid,
    "scores": comparisons.scores,
    "differences": comparisons.differences,
    "published": comparisons.published,
    "choice": choices.choice,
    "rounds": choices.rounds,
    "prompt": choices.prompt,
    "benchmark": benchmark,
}
_BLOCK: Final = re.compile(r"(<!-- (table|section|goals): (\S+) ([^\n]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_NOT_TYPED: Final = re.compile(r"```.*?^```|`[^`\n]+`|\]\([^)]*\)|^#.*?$", re.DOTALL | re.MULTILINE)
"""Commands, code, targets of links, and headings."""
_VERSION: Final = re.compile(r"\d+(?:\.\d+){2,}|\b(?:Python|arXiv|Apache)[ -]\d+\.\d+")
_NUMBER: Final = re.compile(r"^\|.*\d.*$|\d+\.\d+|\d+(?:[ ,]\d{3})+\b|\d+ ?(?:%|percent|points?|times|x)(?!\w)", re.MULTILINE)
"""A row of a table, a decimal, a number of thousands, a share, a difference, or a ratio."""


def page(text: str, root: Path = ROOT) -> str:
    """A page with its tables and sections written again."""
    return _BLOCK.sub(lambda found: found[1] + _content(root, *found.group(2, 3, 4)) + found[5], text)


def _content(root: Path, kind: str, name: str, part: str) -> str:
    file = root / "docs" / name
    if kind == "goals":
        return goals(file, root / FOLDER)
    return SHOWN[part](_read(file)) if kind == "table" else _section(file, part)


def _section(report: Path, heading: str) -> str:
    """What stands below a heading of a report."""
    after = re.split(rf"(?m)^## {re.escape(heading)}\n", report.read_text(encoding="utf-8"))
    if len(after) != 2:
        sys.exit(f"'{report.name}' has no section '{heading}', or several.")
    return re.split(r"(?m)^## ", after[1])[0].strip() + "\n"


def _read(file: Path) -> Kept:
    if not file.exists():
        sys.exit(f"A page shows {file.name}, which is not kept yet. Keep it before its table is put into the page.")
    content: Kept = json.loads(file.read_text(encoding="utf-8"))
    return content


def shown(root: Path = ROOT) -> Iterator[Path]:
    """The files of kept results that the pages show."""
    for name in PAGES:
        blocks = _BLOCK.finditer((root / name).read_text(encoding="utf-8"))
        yield from (root / "docs" / found[3] for found in blocks if found[2] == "table")


def typed_numbers(text: str) -> list[str]:
    """What looks like a measured number and does not come from a kept result. Commands, code and versions may hold numbers."""
    prose = _VERSION.sub("", _NOT_TYPED.sub("", _BLOCK.sub("", text)))
    return [found[0] for found in _NUMBER.finditer(prose)]


def main(given: Sequence[str], root: Path = ROOT) -> None:
    """Keep a result if one is given, and write the tables."""
    if given:
        name, output, *command = given
        keep(root, name, Path(output), command[0] if command else None)
    for name in PAGES:
        file = root / name
        file.write_text(page(file.read_text(encoding="utf-8"), root), encoding="utf-8")
