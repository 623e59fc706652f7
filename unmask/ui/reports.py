"""Reports: the HTML pages of this program in the folders that the user named, found once, when the page starts.

A request names a report by its number, and a file beside it by its name in a table that is made here. No path of a request reaches the
file system. A report has scripts inside, so it is served into a sandbox: an origin of its own, which sees no token and fetches nothing.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError

MOST_REPORTS = 200
_DEEP = 3  # folders below one that was named
_MOST_FILES = 20_000  # that are looked at
_BEGINNING = 8192  # bytes that hold a title
_TITLE = re.compile(rb"<title>\s*(unmask [^<]{0,300}?)\s*</title>")
KINDS = {
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".csv": "text/csv; charset=utf-8",
    ".json": "application/json",
    ".tex": "text/plain; charset=utf-8",
}
"""Endings of the files beside a report that it links to, and their types."""
POLICY = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@dataclass(frozen=True)
class Report:
    """A page. files: what may be asked for below it, by name."""

    file: Path
    title: str
    changed: datetime
    files: dict[str, Path] = field(default_factory=dict)


def find_reports(folders: Sequence[Path]) -> list[Report]:
    """The reports in folders and below them, in the order of the folders. Links are not followed.

    Raises UnmaskError for a folder that does not exist, or in which there is no report.
    """
    found: dict[Path, Report] = {}
    for folder in folders:
        if not folder.is_dir():
            raise UnmaskError(f"There is no folder '{folder}'.")
        titled = [(page, title) for page in sorted(_pages(folder)) if (title := _title(page))]
        for page, title in titled[: MOST_REPORTS - len(found)]:
            changed = datetime.fromtimestamp(page.stat().st_mtime, UTC)
            found.setdefault(page.resolve(), Report(page, title, changed, _beside(page)))
        if not titled:
            raise UnmaskError(f"There is no report in '{folder}'. `unmask report FOLDER` writes one for a folder of results.")
    return list(found.values())


def as_json(reports: Iterable[Report], key: str) -> list[dict[str, Any]]:
    """What the page lists."""
    return [
        {
            "address": f"/reports/{key}/{number}/",
            "title": report.title,
            "file": str(report.file),
            "changed": report.changed.isoformat(timespec="minutes"),
        }
        for number, report in enumerate(reports)
    ]


def _pages(folder: Path) -> Iterator[Path]:
    waiting, looked = [(folder, 0)], 0
    while waiting:
        at, depth = waiting.pop()
        for entry in at.iterdir():
            looked += 1
            if looked > _MOST_FILES:
                return
            if entry.is_symlink():
                continue
            if entry.is_dir() and depth < _DEEP:
                waiting.append((entry, depth + 1))
            elif entry.suffix == ".html" and entry.is_file():
                yield entry


def _title(page: Path) -> str | None:
    with page.open("rb") as stream:
        named = _TITLE.search(stream.read(_BEGINNING))
    return html.unescape(named[1].decode("utf-8", "replace")) if named else None


def _beside(page: Path) -> dict[str, Path]:
    """The figures and data of a report, by the names under which it links to them."""
    return {
        f"{name}/{file.name}": file
        for name in ("figures", "data")
        if (page.parent / name).is_dir() and not (page.parent / name).is_symlink()
        for file in sorted((page.parent / name).iterdir())
        if file.suffix in KINDS and file.is_file() and not file.is_symlink()
    }
