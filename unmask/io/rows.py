"""Rows: reading tables of text (jsonl, csv, tsv, parquet, txt) with errors that name file, line and column."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError

Row = dict[str, Any]


def read_rows(file: Path) -> Iterator[tuple[int, Row]]:
    """Yield (line number, row) of a file by its ending; in a .txt each line is a row {"text": line}.

    Raises UnmaskError with file and line for a row that does not parse, and for an ending that is not known.
    """
    if not file.is_file():
        raise UnmaskError(f"There is no file '{file}'.")
    reader = READERS.get(file.suffix)
    if reader is None:
        raise UnmaskError(f"'{file}': files of rows end with {', '.join(READERS)}, not '{file.suffix}'.")
    try:
        yield from reader(file)
    except UnicodeDecodeError as error:
        raise UnmaskError(_not_utf8(file)) from error


def field(file: Path, line: int, row: Row, column: str, kind: type | tuple[type, ...] = str) -> Any:
    """The value of a column. Raises UnmaskError with file, line, column and what was expected if it is missing or of another type."""
    expected = " or ".join(allowed.__name__ for allowed in (kind if isinstance(kind, tuple) else (kind,)))
    if column not in row:
        raise UnmaskError(
            f"{file}, line {line}: column '{column}' ({expected}) is missing; there is {', '.join(row) or 'nothing'}."
        )
    value = row[column]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise UnmaskError(
            f"{file}, line {line}, column '{column}': expected {expected}, found {type(value).__name__} {str(value)[:40]!r}."
        )
    return value


def _not_utf8(file: Path) -> str:
    """Where a file stops being UTF-8: the error of a decoder counts from the start of its buffer, not of the file."""
    at = 0
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                return f"{file} is not UTF-8 text (line {number}, byte {at + error.start})."
            at += len(line)
    return f"{file} is not UTF-8 text."


def _jsonl(file: Path) -> Iterator[tuple[int, Row]]:
    with file.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise UnmaskError(f"{file}, line {number}, column {error.colno}: no JSON: {error.msg}.") from error
            except RecursionError as error:
                raise UnmaskError(f"{file}, line {number}: lists or objects lie too deep in each other.") from error
            if not isinstance(row, dict):
                raise UnmaskError(f"{file}, line {number}: expected a JSON object, found {type(row).__name__}.")
            yield number, row


def _delimited(delimiter: str) -> Callable[[Path], Iterator[tuple[int, Row]]]:
    def read(file: Path) -> Iterator[tuple[int, Row]]:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.DictReader(lines, delimiter=delimiter, strict=True)
            try:
                for row in reader:
                    if None in row or None in row.values():
                        raise UnmaskError(f"{file}, line {reader.line_num}: expected {len(reader.fieldnames or [])} columns.")
                    yield reader.line_num, dict(row)
            except csv.Error as error:
                # the reader counts rows that ended: this one begins after them, and an open quote runs to the end of the file
                raise UnmaskError(f"{file}, line {reader.line_num + 1}: {error}.") from error

    return read


def _parquet(file: Path) -> Iterator[tuple[int, Row]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        number = 0
        for batch in pq.ParquetFile(file).iter_batches():
            for row in batch.to_pylist():
                number += 1
                yield number, row
    except (pa.ArrowException, OSError) as error:
        raise UnmaskError(f"{file} cannot be read as a parquet file: {error}.") from error


def _txt(file: Path) -> Iterator[tuple[int, Row]]:
    with file.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            yield number, {"text": line.rstrip("\r\n")}


READERS: dict[str, Callable[[Path], Iterator[tuple[int, Row]]]] = {
    ".jsonl": _jsonl,
    ".csv": _delimited(","),
    ".tsv": _delimited("\t"),
    ".parquet": _parquet,
    ".txt": _txt,
}
