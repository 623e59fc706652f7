"""Formats: how each kind of file becomes rows. A row that cannot be read is a fault, and the rows after it are read.

A format reads from any row on, without parsing what lies before, and says where every n-th row begins. Memory holds one row of a text
file, and of a parquet file 1 024 rows, or fewer if they are large.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from unmask.io.compressed import DAMAGE, is_damage, open_unpacked
from unmask.io.csv_lines import CsvLines, TsvLines
from unmask.io.lines import BadLine, Lines, Start

Row = dict[str, Any]
_BATCH = 1024
_BUFFER = 1 << 20
_BYTES = 1 << 25
"""Bytes of a parquet file that are rows at once, unless one row has more."""
_FIELD = 1 << 27
"""Most characters of a field of a csv, where lines have no limit."""


@dataclass(frozen=True)
class Fault:
    """Why a row cannot be read. told: what follows the file's name in an error; text: how the row begins."""

    told: str
    text: str = ""


Item = tuple[int, Row | Fault]
"""Line number, and what is there."""


class Format(Protocol):
    """One kind of file."""

    def read(self, file: Path, start: Start, longest: int | None, columns: Sequence[str] | None) -> Iterator[Item]:
        """Rows and faults from a start on. longest: most bytes of a line; columns: a hint which columns are needed."""
        ...

    def starts(self, file: Path, every: int, longest: int | None) -> tuple[list[Start], int]:
        """Where the rows 0, every, 2 * every ... begin, and the number of rows with the faulty ones."""
        ...


Items = Callable[[Any, Start, bool], Iterator[Item]]  # each takes the kind of Lines that stands beside it


@dataclass(frozen=True)
class TextFormat:
    """Rows in lines, compressed or not. items: yields the rows; without the flag, only that there is one; lines: how lines are read."""

    items: Items
    lines: type[Lines] = Lines

    def read(self, file: Path, start: Start, longest: int | None, columns: Sequence[str] | None) -> Iterator[Item]:
        """Rows and faults. A file whose rest cannot be unpacked ends with a fault."""
        with closing(open_unpacked(file)) as stream:
            yield from _to_the_damage(self.lines(stream, longest), start, True, self.items)

    def starts(self, file: Path, every: int, longest: int | None) -> tuple[list[Start], int]:
        """Where every n-th row begins, and the number of rows."""
        starts, rows = [], 0
        with closing(open_unpacked(file)) as stream:
            lines = self.lines(stream, longest)
            here = Start()
            for _ in _to_the_damage(lines, here, False, self.items):
                if rows % every == 0:
                    starts.append(here)
                rows += 1
                here = Start(rows, lines.number, lines.offset)
        return starts, rows


def _to_the_damage(lines: Lines, start: Start, parsed: bool, items: Items) -> Iterator[Item]:
    try:
        yield from items(lines, start, parsed)
    except DAMAGE as error:
        if not is_damage(error):
            raise
        yield lines.number + 1, Fault(f" cannot be unpacked after line {lines.number}: {str(error).rstrip('.')}.")


def _each_line(lines: Lines, start: Start) -> Iterator[tuple[int, str | Fault]]:
    if start.row:
        lines.go_to(start)
    while True:
        try:
            yield lines.number + 1, next(lines)
        except StopIteration:
            return
        except BadLine as bad:
            yield bad.line, Fault(bad.told, bad.text)


def _txt(lines: Lines, start: Start, parsed: bool) -> Iterator[Item]:
    for number, line in _each_line(lines, start):
        yield number, line if isinstance(line, Fault) else {"text": line.rstrip("\r\n")}


def _jsonl(lines: Lines, start: Start, parsed: bool) -> Iterator[Item]:
    for number, line in _each_line(lines, start):
        if isinstance(line, Fault):
            yield number, line
        elif line.strip():
            yield number, _object(number, line) if parsed else {}


def _object(number: int, line: str) -> Row | Fault:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        return Fault(f", line {number}, column {error.colno}: no JSON: {error.msg}.", line)
    except RecursionError:
        return Fault(f", line {number}: lists or objects lie too deep in each other.", line)
    except ValueError as error:  # a number of thousands of digits
        return Fault(f", line {number}: no JSON: {error}.", line)
    if not isinstance(row, dict):
        return Fault(f", line {number}: expected a JSON object, found {type(row).__name__}.", line)
    return row


def _delimited(lines: CsvLines, start: Start, parsed: bool) -> Iterator[Item]:
    limit = min(_FIELD, lines.longest or _FIELD)
    csv.field_size_limit(limit)
    reader = csv.reader(lines, delimiter=lines.delimiter, strict=True)
    header, reading = None, True
    while reading:
        begin = lines.number + 1
        lines.begin_record()
        cells, fault = list[str](), None
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            lines.finish_record()
            fault = Fault(f", line {begin}: {_told(error, limit)}")
        if lines.bad is not None:
            begin, fault = lines.bad.line, Fault(lines.bad.told, lines.bad.text)
        if fault is not None:
            yield begin, fault
            reading = header is not None  # without a header, the rest says nothing
        elif cells and header is None:
            if twice := _name_of_two(cells):
                told = f", line {begin}: the header has two columns '{twice}'. Rename one of them."
                yield begin, Fault(told, lines.delimiter.join(cells))
                return
            header = cells
            if start.row:
                lines.go_to(start)
        elif header is not None and len(cells) == len(header):
            yield lines.number, dict(zip(header, cells, strict=True))
        elif cells:
            told = f", line {lines.number}: expected {len(header or ())} columns."
            yield lines.number, Fault(told, lines.delimiter.join(cells))


def _name_of_two(header: Sequence[str]) -> str | None:
    """A name that two columns have. Columns without a name do not count: programs write such columns at the end of a line."""
    return next((name for place, name in enumerate(header) if name and name in header[:place]), None)


def _told(error: csv.Error, limit: int) -> str:
    """What is wrong with a record, in words."""
    too_large = "field limit" in str(error)
    return f"a field has more than {limit} characters: is a quote left open?" if too_large else f"{error}."


class Parquet:
    """Rows in columns. The line of a row is its number, from 1."""

    def read(self, file: Path, start: Start, longest: int | None, columns: Sequence[str] | None) -> Iterator[Item]:
        """Rows and faults. A file that cannot be read further ends with a fault."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        number = start.row
        try:
            with pq.ParquetFile(
                file, buffer_size=_BUFFER
            ) as table:  # without a buffer, a column of a row group is read at once
                names = set(table.schema_arrow.names)
                known = list(columns) if columns is not None and names.issuperset(columns) else None
                groups, skip = _groups_from(table, start.row)
                for batch in _batches(table, groups, known):
                    for item in _rows(batch, number - skip):
                        if skip:
                            skip -= 1
                            continue
                        number += 1
                        yield number, item
        except (pa.ArrowException, OSError) as error:
            if getattr(error, "errno", None) and not isinstance(error, pa.ArrowException):
                raise
            yield number + 1, Fault(f" cannot be read as a parquet file: {str(error).rstrip('.')}.")

    def starts(self, file: Path, every: int, longest: int | None) -> tuple[list[Start], int]:
        """Where every n-th row begins, and the number of rows."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            rows = pq.read_metadata(file).num_rows
        except (pa.ArrowException, OSError):
            return [Start()], 1  # which reads as one fault
        return [Start(row, row, 0) for row in range(0, rows, every)], rows


def _groups_from(table: Any, row: int) -> tuple[list[int], int]:
    """The row groups that hold this row and all after it, and how many rows of theirs come before."""
    sizes = [table.metadata.row_group(group).num_rows for group in range(table.num_row_groups)]
    first = 0
    while first < len(sizes) and row >= sizes[first]:
        row -= sizes[first]
        first += 1
    return list(range(first, len(sizes))), row


def _batches(table: Any, groups: Sequence[int], columns: list[str] | None) -> Iterator[Any]:
    """The rows of row groups, as many at once as memory should hold, by the average row of their group."""
    for group in groups:
        about = table.metadata.row_group(group)
        size = sum(part.total_uncompressed_size for part in _columns(about) if columns is None or _root(part) in columns)
        rows = _BYTES * about.num_rows // max(1, size)
        yield from table.iter_batches(max(1, min(rows, _BATCH)), row_groups=[group], columns=columns)


def _columns(group: Any) -> Iterator[Any]:
    return (group.column(place) for place in range(group.num_columns))


def _root(column: Any) -> str:
    """The column of the table that a column of a row group belongs to."""
    return str(column.path_in_schema).split(".", 1)[0]


def _rows(batch: Any, before: int) -> list[Row | Fault]:
    """The rows of a batch; one by one if a value in it cannot be read."""
    try:
        return list(batch.to_pylist())
    except (ValueError, OverflowError):
        return [_row(batch, place, before + place + 1) for place in range(batch.num_rows)]


def _row(batch: Any, place: int, number: int) -> Row | Fault:
    try:
        row: Row = batch.slice(place, 1).to_pylist()[0]
        return row
    except UnicodeDecodeError:
        return Fault(f", line {number}: a string is not UTF-8.")
    except (ValueError, OverflowError) as error:  # a date that Python does not have, such as one of the year 0
        return Fault(f", line {number}: a value cannot be read: {error}.")


FORMATS: dict[str, Format] = {
    ".jsonl": TextFormat(_jsonl),
    ".csv": TextFormat(_delimited, CsvLines),
    ".tsv": TextFormat(_delimited, TsvLines),
    ".parquet": Parquet(),
    ".txt": TextFormat(_txt),
}
