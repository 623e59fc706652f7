"""Reports: the HTML pages of this program in the folders that the user named, found once, when the page starts.

A request names a report by its number, and a file beside it by its name in a table that is made here. No path of a request reaches the
file system. A report has scripts inside, so it is served into a sandbox: an origin of its own, which sees no token and fetches nothing.
"""

from __future__ import annotations

import html
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError
from unmask.io.terminal import say

MOST_REPORTS = 200
_DEEP = 3  # folders below one that was named
_MOST_LOOKED_AT = 20_000  # folders and pages
_BEGINNING = 8192  # bytes that hold a title
_TITLE = re.compile(rb"<title>\s*(unmask [^<]{0,300}?)\s*</title>")
KINDS = {
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".pdf": "application/pdf",
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
    """A page. files: what may be asked for below it, by name. shown: what the list says of where it is."""

    file: Path
    title: str
    changed: datetime
    files: dict[str, Path] = field(default_factory=dict)
    shown: str = ""


def find_reports(folders: Sequence[Path]) -> list[Report]:
    """The reports in folders and below them, in the order of the folders. Links are not followed, and what cannot be read is passed over.

    Raises UnmaskError for a folder that does not exist, or in which there is no report.
    """
    found: dict[Path, Report] = {}
    for folder in folders:
        if not folder.is_dir():
            raise UnmaskError(f"There is no folder '{folder}'.")
        pages, whole = _pages(folder)
        titled = [(page, title) for page in sorted(pages) if (title := _title(page))]
        searched = f"'{folder}'" if whole else f"the first {_MOST_LOOKED_AT} folders and pages of '{folder}'"
        if not titled:
            raise UnmaskError(
                f"There is no report that can be read in {searched}. `unmask report FOLDER` writes one for a folder of results."
            )
        if not whole:
            say(f"reports: only {searched} were searched")
        for page, title in titled[: MOST_REPORTS - len(found)]:
            changed = datetime.fromtimestamp(page.stat().st_mtime, UTC)
            found.setdefault(page.resolve(), Report(page, title, changed, _beside(page)))
    return list(found.values())


def as_json(reports: Iterable[Report], key: str) -> list[dict[str, Any]]:
    """What the page lists."""
    return [
        {
            "address": f"/reports/{key}/{number}/",
            "title": report.title,
            "file": report.shown or str(report.file),
            "changed": report.changed.isoformat(timespec="minutes"),
        }
        for number, report in enumerate(reports)
    ]


def _pages(folder: Path) -> tuple[list[Path], bool]:
    """The HTML files in a folder and below it, and whether they are all of them. A report near the top is found first."""
    pages: list[Path] = []
    level, looked_at = [folder], 0
    for _ in range(_DEEP + 1):
        below: list[Path] = []
        for at in level:
            if looked_at >= _MOST_LOOKED_AT:
                return pages, False
            folders, files = _children(at)
            looked_at += 1 + len(files)
            pages += files
            below += folders
        level = below
    return pages, True


def _children(folder: Path) -> tuple[list[Path], list[Path]]:
    """The folders and the HTML files in a folder; none if it cannot be read."""
    folders, files = [], []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(Path(entry.path))
            elif entry.name.endswith(".html") and entry.is_file(follow_symlinks=False):
                files.append(Path(entry.path))
    return sorted(folders), files


def read_report(page: Path, shown: str) -> Report:
    """A single report without the files beside it. Raises UnmaskError for a file that this program has not written."""
    title = _title(page)
    if title is None:
        raise UnmaskError(f"'{shown}' is not a report of unmask. Choose the HTML file that `unmask report` wrote.")
    return Report(page, title, datetime.now(UTC), shown=shown)


def _title(page: Path) -> str | None:
    named = None
    with suppress(OSError), page.open("rb") as stream:
        named = _TITLE.search(stream.read(_BEGINNING))
    return html.unescape(named[1].decode("utf-8", "replace")) if named else None


def _beside(page: Path) -> dict[str, Path]:
    """The figures and data of a report, by the names under which it links to them."""
    files: dict[str, Path] = {}
    for folder in (page.parent / "figures", page.parent / "data"):
        with suppress(OSError):
            if folder.is_dir() and not folder.is_symlink():
                own = (file for file in sorted(folder.iterdir()) if file.suffix in KINDS)
                files |= {f"{folder.name}/{file.name}": file for file in own if file.is_file() and not file.is_symlink()}
    return files
