"""HTML reports that the page lists, and files that the browser uploads.

Reports are found when the page starts. A request names a report by its number, and a file next to it by its name in a table; no path of a
request reaches the file system. A report contains scripts, so it is served in a sandbox: a separate origin, without token and network.
"""

from __future__ import annotations

import html
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from unmask.errors import UnmaskError

MAX_REPORTS = 200
_PATTERNS = ("*.html", "*/*.html", "*/*/*.html", "*/*/*/*.html")
_TITLE = re.compile(rb"<title>\s*(unmask [^<]{0,300}?)\s*</title>")
_TITLE_BYTES = 8192
MEDIA_TYPES = {
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".pdf": "application/pdf",
    ".csv": "text/csv; charset=utf-8",
    ".json": "application/json",
    ".tex": "text/plain; charset=utf-8",
}
"""Files that a report links to, by suffix."""
POLICY = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SUFFIXES = re.compile(r"((?:\.[A-Za-z0-9]{1,10}){0,2})$")


@dataclass(frozen=True)
class Report:
    """An HTML report. files: those that it links to, by relative name."""

    file: Path
    title: str
    changed: datetime
    files: dict[str, Path] = field(default_factory=dict)
    label: str = ""
    """Shown in place of the path."""


def find_reports(folders: Sequence[Path]) -> list[Report]:
    """The reports in folders and up to three levels below. Raises UnmaskError for a folder without a report."""
    reports: dict[Path, Report] = {}
    for folder in folders:
        if not folder.is_dir():
            raise UnmaskError(f"There is no folder '{folder}'.")
        root = folder.resolve()  # links that lead out of the folder are ignored
        pages = sorted(page for pattern in _PATTERNS for page in folder.glob(pattern) if page.resolve().is_relative_to(root))
        titles = {page: title for page in pages if (title := _title(page))}
        if not titles:
            raise UnmaskError(f"There is no report in '{folder}'. `unmask report FOLDER` writes one for a folder of results.")
        for page, title in titles.items():
            changed = datetime.fromtimestamp(page.stat().st_mtime, UTC)
            reports.setdefault(page.resolve(), Report(page, title, changed, _linked_files(page)))
    return list(reports.values())[:MAX_REPORTS]


def read_report(page: Path, label: str) -> Report:
    """A single report, without the files that it links to."""
    title = _title(page)
    if title is None:
        raise UnmaskError(f"'{label}' is not a report of unmask. Choose the HTML file that `unmask report` wrote.")
    return Report(page, title, datetime.now(UTC), label=label)


def as_json(reports: Iterable[Report], key: str) -> list[dict[str, Any]]:
    """The list of reports on the page."""
    return [
        {
            "address": f"/reports/{key}/{number}/",
            "title": report.title,
            "file": report.label or str(report.file),
            "changed": report.changed.isoformat(timespec="minutes"),
        }
        for number, report in enumerate(reports)
    ]


def _title(page: Path) -> str | None:
    match = None
    with suppress(OSError), page.open("rb") as stream:
        match = _TITLE.search(stream.read(_TITLE_BYTES))
    return html.unescape(match[1].decode("utf-8", "replace")) if match else None


def _linked_files(page: Path) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for folder in (page.parent / "figures", page.parent / "data"):
        if folder.is_dir() and not folder.is_symlink():
            files |= {
                f"{folder.name}/{file.name}": file
                for file in sorted(folder.iterdir())
                if file.suffix in MEDIA_TYPES and file.is_file() and not file.is_symlink()
            }
    return files


class Uploads:
    """Uploaded files in a private temporary folder. Only the suffixes of a name from the browser reach the file system."""

    def __init__(self) -> None:
        self._folder: TemporaryDirectory[str] | None = None
        self._numbers, self._lock = count(), threading.Lock()

    @contextmanager
    def temporary_file(self, name: str, content: bytes) -> Iterator[Path]:
        """A file with this content; errors in the block show the name that the user knows."""
        file = self._write(name, content)
        try:
            yield file
        except UnmaskError as error:
            raise UnmaskError(str(error).replace(str(file), name)) from None
        finally:
            file.unlink(missing_ok=True)

    def add_report(self, name: str, content: bytes) -> Report:
        """Store a report; other files are refused."""
        file = self._write(".html", content)
        try:
            return read_report(file, name)
        except UnmaskError:
            file.unlink()
            raise

    def close(self) -> None:
        """Remove all files."""
        with self._lock:
            if self._folder:
                self._folder.cleanup()

    def _write(self, name: str, content: bytes) -> Path:
        with self._lock:
            self._folder = self._folder or TemporaryDirectory(prefix="unmask-")
            suffixes = _SUFFIXES.search(name)
            file = Path(self._folder.name) / f"{next(self._numbers)}{suffixes[1] if suffixes else ''}"
        file.write_bytes(content)
        return file
