"""Documents: rows of files as an index takes them, with an id, a title, a text, and columns to filter by.

A corpus is read twice. The survey reads all of it before a model is loaded: it finds every mistake, gives each document a digest,
and learns the type of each column. Building the index reads it again, so that the texts are never in memory all at once.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unmask.encoding.vector_cache import text_key
from unmask.errors import UnmaskError
from unmask.io.compressed import row_ending
from unmask.io.rows import Row, field, has_no_columns, read_rows
from unmask.io.unicode import encodable
from unmask.search.record import RESERVED, ColumnType

Value = str | int | float | bool | None
_IDS = ("_id", "id")
_ONLY_TEXT = (".csv", ".tsv")
"""File endings whose values are all strings: a column of numbers is recognised by how they are written."""
_DIGEST = 16


@dataclass(frozen=True)
class DocumentSource:
    """Files of documents, or rows in memory, and the names of the columns.

    title: None takes `title`, if there is one; empty: no titles. id: None takes `_id` or `id`, and else file and line. Raises UnmaskError
    if a text would be its own title.
    """

    files: tuple[Path, ...]
    text: str = "text"
    title: str | None = None
    id: str | None = None
    rows: tuple[Row, ...] = ()

    def __post_init__(self) -> None:
        """Refuse one column for two purposes."""
        if self.title == self.text:
            raise UnmaskError(
                f"--column and --title-column both name '{self.text}': leave --title-column out, or name another column."
            )


@dataclass(frozen=True)
class Document:
    """One document. columns: everything else that its row holds."""

    id: str
    title: str
    text: str
    columns: dict[str, Value]
    file: Path
    line: int

    @property
    def full_text(self) -> str:
        """The text that is embedded and searched: title and text, joined as BEIR, mteb and `unmask compare` join them."""
        return join_title(self.title, self.text)

    @property
    def characters(self) -> int:
        """The length of its text."""
        return len(self.text)

    @property
    def digests(self) -> tuple[bytes, bytes]:
        """The key of what is embedded, and a digest of the whole document: an update compares them with those of the index."""
        content = json.dumps([self.id, self.title, self.text, self.columns], sort_keys=True)
        return text_key(self.full_text, None), hashlib.sha256(content.encode()).digest()[:_DIGEST]


def join_title(title: str, text: str) -> str:
    """Title and text as one string."""
    return f"{title} {text}".strip()


@dataclass(frozen=True)
class Survey:
    """The content of a corpus: the digests of its documents by id, and the type of each column; None for one without any value.

    numbered: whether a document has no id but its line.
    """

    digests: dict[str, tuple[bytes, bytes]]
    columns: dict[str, ColumnType | None]
    numbered: bool


def survey(corpus: DocumentSource) -> Survey:
    """Read all documents once.

    Raises UnmaskError, with file and line, for a row that is not a document and for a duplicate id.
    """
    digests: dict[str, tuple[bytes, bytes]] = {}
    columns: dict[str, ColumnType | None] = {}
    titled, numbered = not corpus.title, False
    for document in read_documents(corpus):
        if document.id in digests:
            raise UnmaskError(
                f"{document.file}, line {document.line}: the id {document.id[:80]!r} comes twice. Every document needs an id of its own "
                "(--id-column)."
            )
        digests[document.id] = document.digests
        numbered = numbered or document.id == _line_id(document.file, document.line)
        titled = titled or bool(document.title)
        for name, value in document.columns.items():
            columns[name] = common_type(columns.get(name), _type_of(value, row_ending(document.file) in _ONLY_TEXT))
    if not digests and corpus.files:
        raise UnmaskError(f"{', '.join(map(str, corpus.files[:3]))}: there is no document to index.")
    if digests and not titled:
        raise UnmaskError(f"--title-column: no document has a title in the column '{corpus.title}'.")
    return Survey(digests, columns, numbered)


def read_documents(corpus: DocumentSource) -> Iterator[Document]:
    """The documents of all files, or those in memory, in order. Raises UnmaskError, with file and line, for a row that has no text."""
    if corpus.rows:
        yield from (_document(Path("documents"), line, row, corpus) for line, row in enumerate(corpus.rows, start=1))
    only_lines = all(map(has_no_columns, corpus.files))
    for file in corpus.files:
        # next to files with columns, the lines of a .txt are its texts, whatever columns are named
        of_file = replace(corpus, text="text", title="", id=None) if has_no_columns(file) and not only_lines else corpus
        yield from (_document(file, line, row, of_file) for line, row in read_rows(file))


def _document(file: Path, line: int, row: Row, corpus: DocumentSource) -> Document:
    id_column = corpus.id or next((name for name in _IDS if name in row), None)
    title_column = corpus.title
    if title_column is None and corpus.text != "title":
        title_column = "title"
    name = str(field(file, line, row, id_column, (str, int))) if id_column else _line_id(file, line)
    title = field(file, line, row, title_column) if title_column and row.get(title_column) is not None else ""
    text = field(file, line, row, corpus.text)
    others = {key: value for key, value in row.items() if key not in (id_column, title_column, corpus.text)}
    # LanceDB holds no dots in names; pandas writes its index under an empty name, and joins nested names by a dot
    columns = {re.sub(r"[.\0]", "_", encodable(key)) or "unnamed": _plain(value) for key, value in others.items()}
    if conflicts := columns.keys() & RESERVED:
        raise UnmaskError(f"{file}, line {line}: the index has a column '{min(conflicts)}' of its own. Rename yours.")
    if len(columns) < len(others):
        raise UnmaskError(f"{file}, line {line}: two columns have one name, once '.' is replaced by '_': rename one of them.")
    return Document(encodable(name), encodable(title), encodable(text), columns, file, line)


def _line_id(file: Path, line: int) -> str:
    return encodable(f"{file}:{line}")


def _plain(value: Any) -> Value:
    """A value that an index can hold: a list, an object, a date or bytes become text."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | dict):
        value = json.dumps(value, ensure_ascii=False, default=str)
    return encodable(value.isoformat() if hasattr(value, "isoformat") else str(value))


def _type_of(value: Value, only_text: bool) -> ColumnType | None:
    """The type of a value. In a csv, a word is a number if it would be written as it was read: 1.10 may be a version, and 007 a code."""
    if only_text and isinstance(value, str):
        if not value:
            return None
        for parse in (int, float):
            with suppress(ValueError):
                if str(parsed := parse(value)) == value and math.isfinite(parsed):
                    value = parsed
                    break
    if value is None:
        return None
    if isinstance(value, str):
        return "text"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, float):
        return "number"
    return "integer" if -(2**63) <= value < 2**63 else "text"  # text keeps every digit


def common_type(first: ColumnType | None, second: ColumnType | None) -> ColumnType | None:
    """The type that holds values of both types."""
    if first is None or second is None or first == second:
        return first or second
    return "number" if {first, second} == {"integer", "number"} else "text"


def as_type(value: Value, holds: ColumnType) -> Value:
    """The value as its column holds it; None for one that is missing."""
    if value is None or (value == "" and holds != "text"):
        return None
    if holds == "text" and not isinstance(value, str):
        return json.dumps(value)
    return int(value) if holds == "integer" else float(value) if holds == "number" else value
