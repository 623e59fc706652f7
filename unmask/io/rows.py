"""Rows: reading tables of text (JSON, csv, tsv, parquet, feather, txt, compressed or not) with errors that name file, line and column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError
from unmask.io.compressed import COMPRESSIONS, row_ending
from unmask.io.formats import FORMATS, Fault, Format, Item
from unmask.io.formats import Row as Row
from unmask.io.lines import Start

READERS: Sequence[str] = tuple(FORMATS)
"""Endings of files of rows."""
COLUMNAR: Sequence[str] = (".parquet", ".feather", ".arrow")
"""Those that are compressed inside."""
_BEGINNING = Start()


def read_rows(file: Path, columns: Sequence[str] | None = None) -> Iterator[tuple[int, Row]]:
    """Yield (line number, row) of a file by its ending; in a .txt each line is a row {"text": line}.

    Rows are read lazily. All but COLUMNAR formats may be compressed (`a.jsonl.gz`). columns: those that are needed; a
    columnar file that has them all yields no others. Raises UnmaskError with file and line for a row that does not parse, and for an
    ending that is not known.
    """
    for line, item in read_items(file, columns=columns):
        if isinstance(item, Fault):
            raise UnmaskError(f"{file}{item.reason}")
        yield line, item


def read_items(
    file: Path, start: Start = _BEGINNING, *, longest: int | None = None, columns: Sequence[str] | None = None
) -> Iterator[Item]:
    """As `read_rows`, but a row that does not parse is a Fault, and the rows after it are read.

    start: a place that `find_starts` found; longest: most bytes of a line of text. Raises UnmaskError for an ending that is not known.
    """
    yield from _format_of(file).read(file, start, longest, columns)


def find_starts(file: Path, every: int, *, longest: int | None = None) -> tuple[list[Start], int]:
    """Where the rows 0, every, 2 * every ... of a file begin, and its number of rows. Faulty rows count."""
    return _format_of(file).starts(file, every, longest)


def has_rows(file: Path) -> bool:
    """Whether a file has the ending of a file of rows."""
    ending = row_ending(file)
    return ending in READERS and not (ending in COLUMNAR and file.suffix.lower() in COMPRESSIONS)


def has_no_columns(file: Path) -> bool:
    """Whether each line of a file is a text, so that no column of it can be named."""
    return row_ending(file) == ".txt"


def require_rows(file: Path) -> None:
    """Raise UnmaskError for a file that does not end like a file of rows."""
    if has_rows(file):
        return
    ending, remedy = row_ending(file), f"All but {', '.join(COLUMNAR)} may be compressed: {', '.join(COMPRESSIONS)}."
    if ending in (".xlsx", ".xls", ".ods"):
        remedy = "Save the sheet as 'CSV UTF-8'."
    raise UnmaskError(f"'{file}': files of rows end with {', '.join(READERS)}, not '{ending}'. {remedy}")


def field(file: Path, line: int, row: Row, column: str, kind: type | tuple[type, ...] = str) -> Any:
    """The value of a column. Raises UnmaskError with file, line, column and what was expected if it is missing or of another type."""
    fault = fault_of_field(line, row, column, kind)
    if fault is not None:
        raise UnmaskError(f"{file}{fault.reason}")
    return row[column]


def fault_of_field(line: int, row: Row, column: str, kind: type | tuple[type, ...] = str) -> Fault | None:
    """What is wrong with a column, if anything is."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    expected = " or ".join(allowed.__name__ for allowed in kinds)
    if column not in row:
        return Fault(f", line {line}: column '{column}' ({expected}) is missing; there is {', '.join(row) or 'nothing'}.")
    value = row[column]
    if not isinstance(value, kind) or (isinstance(value, bool) and bool not in kinds):
        return Fault(
            f", line {line}, column '{column}': expected {expected}, found {type(value).__name__} {str(value)[:40]!r}.",
            value if isinstance(value, str) else str(value)[:40],
        )
    return None


def _format_of(file: Path) -> Format:
    if not file.is_file():
        raise UnmaskError(f"There is no file '{file}'.")
    require_rows(file)
    return FORMATS[row_ending(file)]
