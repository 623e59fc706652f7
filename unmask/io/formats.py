"""Formats: how each kind of file becomes rows. A row that cannot be read is a fault, and the rows after it are read.

A format reads from any row on, and says where every n-th row begins. Memory holds one row of a text file, and of a parquet file 1 024
rows, or fewer if they are large. Only a JSON array is held in memory whole and parsed from its beginning.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol

from unmask.io.compressed import DAMAGE, BadLine, explain_binary, is_damage, open_text
from unmask.io.lines import EXCERPT, CsvLines, Lines, Start, TsvLines, UnlimitedLines

Row = dict[str, Any]
_BATCH = 1024
_BUFFER = 1 << 20
_BYTES = 1 << 25
"""Bytes of a parquet file that are rows at once, unless one row has more."""
_FIELD = 1 << 27
"""Most characters of a field of a csv, where lines have no limit."""


@dataclass(frozen=True)
class Fault:
    """Why a row cannot be read. reason: what follows the file's name in an error; text: how the row begins."""

    reason: str
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
        try:
            stream = open_text(file)
        except BadLine as bad:
            yield bad.line, Fault(bad.reason, bad.text)
            return
        with closing(stream):
            lines = self.lines(stream, longest)
            yield from _to_the_damage(lines, start, True, self.items)

    def starts(self, file: Path, every: int, longest: int | None) -> tuple[list[Start], int]:
        """Where every n-th row begins, and the number of rows."""
        starts, rows = [], 0
        try:
            stream = open_text(file)
        except BadLine:
            return [Start()], 1  # which reads as one fault
        with closing(stream):
            lines = self.lines(stream, longest)
            start = Start()
            for _ in _to_the_damage(lines, start, False, self.items):
                if rows % every == 0:
                    starts.append(start)
                rows += 1
                start = Start(rows, lines.number, lines.offset)
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
        lines.seek(start)
    while True:
        try:
            yield lines.number + 1, next(lines)
        except StopIteration:
            return
        except BadLine as bad:
            yield bad.line, Fault(bad.reason, bad.text)


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
        value = _DECODER.decode(line)
    except _RepeatedKeyError as error:
        return Fault(f", line {number}: {error}", line)
    except json.JSONDecodeError as error:
        return Fault(f", line {number}, column {error.colno}: no JSON: {error.msg}.", line)
    except RecursionError:
        return Fault(f", line {number}: lists or objects lie too deep in each other.", line)
    except ValueError as error:  # a number of thousands of digits
        return Fault(f", line {number}: no JSON: {error}.", line)
    return _as_row(number, value, line)


class _RepeatedKeyError(ValueError):
    """An object has a key twice; Python's parser silently keeps the last."""


def _unique(items: list[tuple[str, Any]]) -> Row:
    row = dict(items)
    if len(row) < len(items):
        name = _repeated_name([key for key, _ in items])
        raise _RepeatedKeyError(f"a JSON object has the key '{name}' twice. Keep one of them.")
    return row


_DECODER, _LENIENT = json.JSONDecoder(object_pairs_hook=_unique), json.JSONDecoder()


def _as_row(number: int, value: Any, text: str) -> Row | Fault:
    if not isinstance(value, dict):
        return Fault(f", line {number}: expected a JSON object, found {type(value).__name__}.", text)
    return value


_SPACE = re.compile(r"[ \t\r\n]*")
_NOT_AN_ARRAY = (
    "expected an array of objects ([{...}, ...]) or one object per line. If the rows are the values of a key, extract them: "
    "jq -c '.KEY[]' FILE.json > FILE.jsonl"
)


def _json(lines: Lines, start: Start, parsed: bool) -> Iterator[Item]:
    """The objects of an array, or JSON lines under the name of JSON."""
    yield from islice(_objects(_each_line(lines, Start())), start.row, None)


def _objects(lines: Iterator[tuple[int, str | Fault]]) -> Iterator[Item]:
    for number, line in lines:
        if isinstance(line, Fault):
            yield number, line
        elif line.lstrip().startswith("["):
            yield from _array(number, line, lines)
        elif line.strip():
            row = _object(number, line)
            if isinstance(row, Fault) and line.lstrip().startswith("{"):
                yield number, Fault(f", line {number}: {_NOT_AN_ARRAY}.", line)
                return
            yield number, row


def _array(first: int, line: str, lines: Iterator[tuple[int, str | Fault]]) -> Iterator[Item]:
    parts = [line]
    for number, part in lines:
        if isinstance(part, Fault):
            yield number, part
            return
        parts.append(part)
    text = "".join(parts)
    number, position, separator = first, text.index("[") + 1, ""
    counted_to = 0

    def skip_spaces(position: int) -> int:
        nonlocal number, counted_to
        end = _SPACE.match(text, position).end()  # type: ignore[union-attr]
        number, counted_to = number + text.count("\n", counted_to, end), end
        return end

    while text[(position := skip_spaces(position)) : position + 1] != "]":
        if separator and text[position : position + 1] != separator:
            yield number, Fault(f", line {number}: no JSON: expected ',' or ']'.", text[position : position + EXCERPT])
            return
        position = skip_spaces(position + len(separator))
        separator = ","
        excerpt = text[position : position + EXCERPT]
        item: Row | Fault
        try:
            value, position = _DECODER.raw_decode(text, position)
            item = _as_row(number, value, excerpt)
        except _RepeatedKeyError as error:
            item = Fault(f", line {number}: {error}", excerpt)
            _, position = _LENIENT.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            reason = "lists or objects lie too deep in each other" if isinstance(error, RecursionError) else f"no JSON: {error}"
            yield number, Fault(f", line {number}: {reason}.", excerpt)
            return
        yield number, item
    if text[position + 1 :].strip():
        yield number, Fault(f", line {number}: more text follows the end of the array.", text[position + 1 :])


def _csv(lines: CsvLines, start: Start, parsed: bool) -> Iterator[Item]:
    limit = min(_FIELD, lines.longest_field or _FIELD)
    csv.field_size_limit(limit)
    lines.detect_delimiter()
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if lines.is_quoted else csv.QUOTE_NONE
    reader = csv.reader(lines, delimiter=lines.delimiter, strict=True, quoting=quoting)
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
            is_long = "field limit" in str(error)
            reason = f"a field has more than {limit} characters: is a quote left open?" if is_long else f"{error}."
            fault = Fault(f", line {begin}: {reason}")
        if lines.bad is not None:
            begin, fault = lines.bad.line, Fault(lines.bad.reason, lines.bad.text)
        if fault is not None:
            yield begin, fault
            reading = header is not None  # without a header, the rest says nothing
        elif header is None and cells == ["sep=", ""]:  # Excel's own first line
            continue
        elif cells and header is None:
            if not lines.is_quoted and all(len(name) > 1 and name[0] == name[-1] == '"' for name in cells):
                yield begin, Fault(f", line {begin}: {_QUOTED_TSV}", lines.delimiter.join(cells))
                return
            if twice := _repeated_name(cells):
                reason = f", line {begin}: the header has two columns '{twice}'. Rename one of them."
                yield begin, Fault(reason, lines.delimiter.join(cells))
                return
            header = cells
            if start.row:
                lines.seek(start)
        elif header is not None and len(cells) == len(header):
            yield lines.number, dict(zip(header, cells, strict=True))
        elif cells:
            hint = f" {_QUOTED_TSV}" if not lines.is_quoted and any(cell.startswith('"') for cell in cells) else ""
            reason = f", line {lines.number}: expected {len(header or ())} columns, found {len(cells)}.{hint}"
            yield lines.number, Fault(reason, lines.delimiter.join(cells))


_QUOTED_TSV = (
    "Fields of a .tsv are not quoted. If the fields of this file are quoted, rename it to .csv (tabs are recognised there)."
)


def _repeated_name(names: Sequence[str]) -> str | None:
    """A name that occurs twice. Columns without a name do not count: programs write such columns at the end of a line."""
    return next((name for index, name in enumerate(names) if name and name in names[:index]), None)


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
                names = table.schema_arrow.names
                if fault := _fault_of_names(names):
                    yield 1, fault
                    return
                selected = list(columns) if columns is not None and set(names).issuperset(columns) else None
                ahead = start.row  # rows to skip
                for group in range(table.num_row_groups):
                    metadata = table.metadata.row_group(group)
                    if ahead >= metadata.num_rows:
                        ahead -= metadata.num_rows
                        continue
                    # as many rows at once as memory should hold, by the average row of the group
                    parts = [metadata.column(index) for index in range(metadata.num_columns)]
                    roots = [str(part.path_in_schema).split(".", 1)[0] for part in parts]
                    read = [part for part, root in zip(parts, roots, strict=True) if selected is None or root in selected]
                    size = sum(part.total_uncompressed_size for part in read)
                    rows = max(1, min(_BYTES * metadata.num_rows // max(1, size), _BATCH))
                    for batch in table.iter_batches(rows, row_groups=[group], columns=selected):
                        skipped = min(ahead, batch.num_rows)
                        ahead -= skipped
                        for item in _rows(batch.slice(skipped), number):
                            number += 1
                            yield number, item
        except (pa.ArrowException, OSError) as error:
            yield number + 1, _columnar_fault(file, "parquet", error)

    def starts(self, file: Path, every: int, longest: int | None) -> tuple[list[Start], int]:
        """Where every n-th row begins, and the number of rows."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            metadata = pq.read_metadata(file)
            if _fault_of_names(metadata.schema.to_arrow_schema().names):
                return [Start()], 1  # which reads as one fault
        except (pa.ArrowException, OSError):
            return [Start()], 1
        return _starts_of(metadata.num_rows, every)


class Feather:
    """Feather files and other files of Arrow's IPC format, streams included (as `datasets` saves them). Lines are row numbers."""

    def read(self, file: Path, start: Start, longest: int | None, columns: Sequence[str] | None) -> Iterator[Item]:
        """Rows and faults. A file that cannot be read further ends with a fault."""
        import pyarrow as pa

        number = 0
        try:
            for batch in _record_batches(file):
                if fault := _fault_of_names(batch.schema.names):
                    yield 1, fault
                    return
                if columns is not None and set(batch.schema.names).issuperset(columns):
                    batch = batch.select(list(columns))
                for first in range(max(0, start.row - number), batch.num_rows, _BATCH):
                    part = batch.slice(first, _BATCH)
                    yield from enumerate(_rows(part, number + first), start=number + first + 1)
                number += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            yield number + 1, _columnar_fault(file, "feather", error)

    def starts(self, file: Path, every: int, longest: int | None) -> tuple[list[Start], int]:
        """Where every n-th row begins, and the number of rows."""
        import pyarrow as pa

        rows = 0
        try:
            for batch in _record_batches(file):
                if _fault_of_names(batch.schema.names):
                    return [Start()], 1  # which reads as one fault
                rows += batch.num_rows
        except (pa.ArrowException, OSError):
            rows += 1  # the fault at its end
        return _starts_of(rows, every)


def _record_batches(file: Path) -> Iterator[Any]:
    import pyarrow as pa

    with pa.memory_map(str(file)) as source:
        try:
            reader = pa.ipc.open_file(source)
        except pa.ArrowInvalid:
            source.seek(0)
            yield from pa.ipc.open_stream(source)
        else:
            yield from (reader.get_batch(index) for index in range(reader.num_record_batches))


def _starts_of(rows: int, every: int) -> tuple[list[Start], int]:
    return [Start(row, row, 0) for row in range(0, rows, every)], rows


def _fault_of_names(names: Sequence[str]) -> Fault | None:
    twice = _repeated_name(names)
    return Fault(f": two columns are called '{twice}'. Rename one of them.") if twice else None


def _columnar_fault(file: Path, kind: str, error: Exception) -> Fault:
    """The reason why pyarrow cannot read a file. Raises the error if it comes from the system."""
    import pyarrow as pa

    if getattr(error, "errno", None) and not isinstance(error, pa.ArrowException):
        raise error
    with file.open("rb") as stream:
        reason = explain_binary(stream.read(64), expected=kind)
    return Fault(reason or f" cannot be read as a {kind} file: {str(error).rstrip('.')}.")


def _rows(batch: Any, before: int) -> list[Row | Fault]:
    """The rows of a batch; one by one if a value in it cannot be read."""
    try:
        return list(batch.to_pylist())
    except (ValueError, OverflowError, KeyError) as error:
        if batch.num_rows > 1:
            return [row for index in range(batch.num_rows) for row in _rows(batch.slice(index, 1), before + index)]
        # else a date or a time zone that Python does not have
        reason = "a string is not UTF-8" if isinstance(error, UnicodeDecodeError) else f"a value cannot be read: {error}"
        return [Fault(f", line {before + 1}: {reason}.")]


FORMATS: dict[str, Format] = {
    ".jsonl": TextFormat(_jsonl),
    ".ndjson": TextFormat(_jsonl),
    ".json": TextFormat(_json, UnlimitedLines),
    ".csv": TextFormat(_csv, CsvLines),
    ".tsv": TextFormat(_csv, TsvLines),
    ".parquet": Parquet(),
    ".feather": Feather(),
    ".arrow": Feather(),
    ".txt": TextFormat(_txt),
}
