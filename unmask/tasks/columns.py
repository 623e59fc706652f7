"""Columns of task files: readers that check a value, with errors that name file, line, column and what was expected."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError
from unmask.io.rows import Row, field, read_rows

ColumnReader = Callable[[Path, int, Row, str], Any]
"""The value of a column, checked: takes file, line, row and what the file calls the column. Raises UnmaskError."""


def read_columns(file: Path, columns: Mapping[str, ColumnReader], names: dict[str, str] | None = None) -> list[Row]:
    """Rows with exactly these columns, each checked; names maps a column to what the file calls it."""
    names = names or {}
    return [
        {column: reader(file, line, row, names.get(column, column)) for column, reader in columns.items()}
        for line, row in read_rows(file)
    ]


def _wrong(file: Path, line: int, column: str, problem: str) -> UnmaskError:
    return UnmaskError(f"{file}, line {line}, column '{column}': {problem}.")


def text(file: Path, line: int, row: Row, column: str) -> str:
    """A string."""
    return str(field(file, line, row, column))


def label(file: Path, line: int, row: Row, column: str) -> str:
    """A class, by name or by number."""
    return str(field(file, line, row, column, (str, int)))


def number(file: Path, line: int, row: Row, column: str) -> float:
    """A finite number; csv files hold it as text."""
    value = field(file, line, row, column, (int, float, str))
    try:
        parsed = float(value)
    except ValueError:
        parsed = math.nan
    if not math.isfinite(parsed):
        raise _wrong(file, line, column, f"expected a number, found {value!r}")
    return parsed


def zero_or_one(file: Path, line: int, row: Row, column: str) -> float:
    """The label of a pair."""
    if (value := number(file, line, row, column)) not in (0, 1):
        raise _wrong(file, line, column, f"expected 0 or 1, found {value:g}")
    return value


def gain(file: Path, line: int, row: Row, column: str) -> int:
    """How relevant a document is: a whole number, since trec_eval, which scores, knows no other."""
    if (value := number(file, line, row, column)) % 1:
        raise _wrong(file, line, column, f"expected a whole number, found {value:g}")
    return int(value)


def judged_once(reader: ColumnReader) -> ColumnReader:
    """The same column, with one value for each query and document, however often a file judges them."""
    scores: dict[tuple[Any, Any], Any] = {}

    def check(file: Path, line: int, row: Row, column: str) -> Any:
        value, pair = reader(file, line, row, column), (row.get("query-id"), row.get("corpus-id"))
        if (before := scores.setdefault(pair, value)) != value:
            message = f"query '{pair[0]}' and document '{pair[1]}' have {value:g} here and {before:g} above. Keep one of these judgements"
            raise _wrong(file, line, column, message)
        return value

    return check


def title(file: Path, line: int, row: Row, column: str) -> str:
    """A string that may be absent."""
    return "" if row.get(column) is None else text(file, line, row, column)


def texts(file: Path, line: int, row: Row, column: str) -> list[str]:
    """A list of strings."""
    value: list[str] = field(file, line, row, column, list)
    if wrong := [entry for entry in value if not isinstance(entry, str)]:
        raise _wrong(file, line, column, f"expected a list of str, found {type(wrong[0]).__name__} in it")
    return value


def some(reader: ColumnReader) -> ColumnReader:
    """The same column, with at least one entry in its list."""

    def check(file: Path, line: int, row: Row, column: str) -> Any:
        if not (value := reader(file, line, row, column)):
            raise _wrong(file, line, column, "expected at least one, found none")
        return value

    return check


def identifier(file: Path, line: int, row: Row, column: str) -> str:
    """An id. In JSON and parquet it may be a whole number, which files of judgements hold as text."""
    return str(field(file, line, row, column, (str, int)))


def new_id() -> ColumnReader:
    """An id that no row above it has."""
    ids: set[str] = set()

    def check(file: Path, line: int, row: Row, column: str) -> str:
        name = identifier(file, line, row, column)
        if name in ids:
            raise _wrong(file, line, column, f"'{name}' comes twice")
        ids.add(name)
        return name

    return check


def id_of(noun: str, table: list[Row], home: Path) -> ColumnReader:
    """The `_id` of a row of another table. noun: the name of such a row in errors; home: the file of that table."""
    ids = {row["_id"] for row in table}

    def check(file: Path, line: int, row: Row, column: str) -> str:
        name = identifier(file, line, row, column)
        if name not in ids:
            raise _wrong(file, line, column, f"no {noun} '{name}' in {home}")
        return name

    return check


def summaries(file: Path, line: int, row: Row, column: str) -> list[tuple[str, float]]:
    """Machine summaries with their human scores."""
    return [_summary(file, line, system) for system in field(file, line, row, column, list)]


def _summary(file: Path, line: int, system: Any) -> tuple[str, float]:
    """A machine summary and its human score: one number, or the mean over the dimensions that humans scored."""
    if not isinstance(system, dict):
        raise _wrong(file, line, "systems", "expected objects with 'summary' and 'scores' or 'score'")
    summary = field(file, line, system, "summary")
    scores = system.get("scores", system.get("score"))
    entries = list(scores.values()) if isinstance(scores, dict) else [scores]
    values = [float(value) for value in entries if isinstance(value, int | float) and not isinstance(value, bool)]
    if not values or len(values) < len(entries) or not all(map(math.isfinite, values)):
        raise _wrong(file, line, "systems", f"expected human scores as numbers, found {scores!r}")
    return summary, sum(values) / len(values)
