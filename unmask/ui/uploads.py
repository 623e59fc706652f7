"""Uploads: files that the browser sends, in a private folder that goes with the page."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from unmask.errors import UnmaskError
from unmask.ui.reports import Report, read_report

_SUFFIXES = re.compile(r"((?:\.[A-Za-z0-9]{1,10}){0,2})$")


class Uploads:
    """The files of one page. Their names on disk are ours: of a name from the browser, only the suffixes reach the file system."""

    def __init__(self) -> None:
        """Create nothing until the first file comes."""
        self._folder: TemporaryDirectory[str] | None = None
        self._numbers, self._lock = count(), threading.Lock()

    @contextmanager
    def saved(self, name: str, content: bytes) -> Iterator[Path]:
        """A file with this content while the block runs. Errors in the block speak of the file by the name that the user knows."""
        file = self._write(name, content)
        try:
            yield file
        except UnmaskError as error:
            raise UnmaskError(str(error).replace(str(file), name)) from None
        finally:
            file.unlink(missing_ok=True)

    def add_report(self, name: str, content: bytes) -> Report:
        """Keep a report. Raises UnmaskError for another file."""
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
