"""Text rows: rows of files, checked one by one. A row that cannot be embedded becomes a dead letter that says why."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

from unmask.bulk.job import LONGEST, EmbedJob
from unmask.io.formats import Fault
from unmask.io.lines import Start
from unmask.io.rows import Row, fault_of_field, read_items

WINDOW_ROWS = 4096
"""Maximum number of texts encoded at once: enough for texts of similar length to share batches."""
WINDOW_CHARACTERS = 4_000_000
"""Most characters of texts that are encoded at once, unless one has more: their tokens take some hundred megabytes."""
_MAX_TEXT, _MAX_REASON = 200, 500
_BEGINNING = Start()


@dataclass(frozen=True)
class TextRow:
    """A row with a text to embed. index: of the row in its file, from 0; kept: the values of the columns to keep."""

    index: int
    line: int
    id: str
    text: str
    kept: tuple[str | None, ...] = ()

    @property
    def characters(self) -> int:
        """Characters of the text, the id and the values to keep."""
        return len(self.text) + len(self.id) + sum(len(value) for value in self.kept if value)


@dataclass(frozen=True)
class DeadLetter:
    """A row that was not embedded. reason: what follows the file's name in an error; text: how the text or the row begins."""

    row: int
    line: int
    reason: str
    text: str

    def as_json(self, file: str) -> dict[str, Any]:
        """A line of a file of dead letters."""
        return {"file": file, "line": self.line, "reason": self.reason.lstrip(", "), "text": self.text}


def dead_letter(row: int, line: int, reason: str, text: str) -> DeadLetter:
    """A dead letter that holds no more of a long text than its beginning."""
    return DeadLetter(row, line, reason[:_MAX_REASON], text[:_MAX_TEXT])


def read_text_rows(
    file: Path, job: EmbedJob, start: Start = _BEGINNING, rows: int | None = None
) -> Iterator[TextRow | DeadLetter]:
    """The rows of a file from a start on, each with a text or a dead letter. Of two equal ids, the second is a dead letter."""
    job = job.for_file(file)
    items = read_items(file, start, longest=LONGEST if job.to_folder else None, columns=job.columns)
    ids: set[str] = set()
    for row, (line, item) in enumerate(islice(items, rows), start.row):
        fault = item if isinstance(item, Fault) else _fault(job, line, item, ids)
        if fault is not None:
            text = item.get(job.column, "") if isinstance(item, dict) else fault.text
            yield dead_letter(row, line, fault.reason, text if isinstance(text, str) else str(text))
        elif isinstance(item, dict):
            # several files meet in a folder of vectors
            name = str(item[job.id_column]) if job.id_column else f"{file}:{row}" if job.to_folder else str(row)
            if job.id_column:
                ids.add(name)  # a dead letter takes no id away
            yield TextRow(row, line, name, item[job.column], tuple(_as_text(item.get(column)) for column in job.keep))


def _fault(job: EmbedJob, line: int, row: Row, ids: set[str]) -> Fault | None:
    """Why a row that was read cannot be embedded."""
    if job.id_column:
        if fault := fault_of_field(line, row, job.id_column, (str, int)):
            return fault
        name = str(row[job.id_column])
        if name != _replace_surrogates(name):
            return Fault(
                f", line {line}, column '{job.id_column}': half of a surrogate pair, which no file of vectors can hold."
            )
        if name in ids:
            return Fault(f", line {line}, column '{job.id_column}': the id '{name}' comes twice.")
    fault = fault_of_field(line, row, job.column)
    if fault is None and job.to_folder and len(row[job.column]) > LONGEST:
        return Fault(f", line {line}: the text has {len(row[job.column])} characters; {LONGEST} are allowed.")
    return fault


def _as_text(value: Any) -> str | None:
    """A kept value as a string (JSON for other types), so that a column has one type in every file."""
    if value is None:
        return None
    return _replace_surrogates(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))


def _replace_surrogates(text: str) -> str:
    """The text with '?' for each half of a surrogate pair, which JSON may hold and UTF-8 may not."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


class _HasCharacters(Protocol):
    @property
    def characters(self) -> int: ...


_Item = TypeVar("_Item", bound=_HasCharacters)


def windows(items: Iterable[_Item]) -> Iterator[list[_Item]]:
    """Texts in groups that memory holds at once."""
    window: list[_Item] = []
    characters = 0
    for item in items:
        if window and (len(window) == WINDOW_ROWS or characters + item.characters > WINDOW_CHARACTERS):
            yield window
            window, characters = [], 0
        window.append(item)
        characters += item.characters
    if window:
        yield window
