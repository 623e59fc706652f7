"""Documents: rows of files as an index takes them, with an id, a title, a text, and columns to filter by.

A corpus is read twice. The survey reads all of it before a model is loaded: it finds every mistake, gives each document a digest,
and learns what each column holds. Building the index reads it again, so that the texts are never in memory all at once.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from unmask.encoding.vector_store import key_of
from unmask.errors import UnmaskError
from unmask.io.compressed import row_ending
from unmask.io.rows import Row, field, has_no_columns, read_rows
from unmask.io.sources import find_files
from unmask.io.unicode import encodable
from unmask.search.filters import ColumnType, is_int64

Value = str | int | float | bool | None
_IDS = ("_id", "id")
_WORDS_ONLY = (".csv", ".tsv")
"""Endings of files whose values are all texts: a column of numbers is recognised by how they are written."""
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?(e[+-][0-9]+)?")
_EXACT = 2**53
"""Up to here, decimals (float64) hold every whole number."""
ValueType = ColumnType | Literal["large integer"]
_DIGEST = 16
_LONGEST = 24
"""Most characters with which Python writes a float."""


@dataclass(frozen=True)
class Corpus:
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
        """Refuse a column that is given for two things."""
        if self.title == self.text:
            raise UnmaskError(
                f"--column and --title-column both name '{self.text}': leave --title-column out, or name another column."
            )

    @classmethod
    def found(
        cls, given: Sequence[Path], index: Path, text: str = "text", title: str | None = None, id: str | None = None
    ) -> Corpus:
        """The files that names, folders and patterns stand for, without those of the index itself. Raises UnmaskError."""
        return cls(tuple(find_files(given, index)), text, title, id)

    @property
    def title_column(self) -> str | None:
        """The column of titles; None if the texts are in the column that would hold them."""
        if self.title is not None:
            return self.title or None
        return None if self.text == "title" else "title"


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
    def joined(self) -> str:
        """What is embedded and searched: title and text, joined as BEIR, mteb and `unmask compare` join them."""
        return joined(self.title, self.text)

    @property
    def known(self) -> Known:
        """What an index keeps of it beside its text."""
        content = json.dumps([self.id, self.title, self.text, self.columns], sort_keys=True)
        return Known(key_of(self.joined, None), hashlib.sha256(content.encode()).digest()[:_DIGEST])


def joined(title: str, text: str) -> str:
    """Title and text as one."""
    return f"{title} {text}".strip()


@dataclass(frozen=True, slots=True)
class Known:
    """Hashes by which an update tells what changed. key: of what is embedded. digest: of all, columns included."""

    key: bytes
    digest: bytes


@dataclass(frozen=True)
class Survey:
    """What a corpus holds: its documents by id, in their order, and the type of each column; None for one without any value.

    held: the types of the values of each column. numbered: a file whose documents have no id but their line; None if there is none.
    """

    documents: dict[str, Known]
    held: dict[str, set[ValueType]]
    numbered: Path | None

    @property
    def columns(self) -> dict[str, ColumnType | None]:
        """The type of each column; None for one without any value."""
        return {name: common_type(*held) if held else None for name, held in self.held.items()}


def survey(corpus: Corpus) -> Survey:
    """Read all documents once.

    Raises UnmaskError, with file and line, for a row that is no document and for an id that comes twice.
    """
    documents: dict[str, Known] = {}
    places: dict[str, tuple[Path, int]] = {}
    types: dict[str, set[ValueType]] = {}
    numbered: Path | None = None
    for document in read_documents(corpus):
        if document.id in documents:
            first, line = places[document.id]
            raise UnmaskError(
                f"{document.file}, line {document.line}: the id {document.id[:80]!r} comes twice; it is also in {first}, line "
                f"{line}. Every document needs an id of its own (--id-column)."
            )
        documents[document.id] = document.known
        places[document.id] = document.file, document.line
        if numbered is None and document.id == _line_id(document.file, document.line):
            numbered = document.file
        for name, value in document.columns.items():
            held = types.setdefault(name, set())
            if (kind := _type_of(value, row_ending(document.file) in _WORDS_ONLY)) is not None:
                held.add(kind)
    if not documents and corpus.files:
        raise UnmaskError(f"{', '.join(map(str, corpus.files[:3]))}: there is no document to index.")
    return Survey(documents, types, numbered)


def read_documents(corpus: Corpus) -> Iterator[Document]:
    """The documents of all files, and those in memory, in order.

    Raises UnmaskError, with file and line, for a row that is no document, for an id if the first row of the file has none, and at the end
    if no row has the column that was named for titles.
    """
    row: Row = {}
    titled = not corpus.title
    sources = [(file, read_rows(file)) for file in corpus.files]
    if corpus.rows:
        sources.append((Path("documents"), enumerate(corpus.rows, start=1)))
    lines_only = all(has_no_columns(file) for file, _ in sources)
    whole = corpus
    for file, rows in sources:
        # beside files with columns, the lines of a .txt are its texts, whatever columns are named
        corpus = replace(whole, text="text", title="", id=None) if has_no_columns(file) and not lines_only else whole
        column, first = corpus.id, 0
        for line, row in rows:
            found = None if column else next((name for name in _IDS if name in row), None)
            if first and found:
                raise UnmaskError(
                    f"{file}, line {first}: column '{found}' is missing, and line {line} has it. Give every document an id, or none."
                )
            column, first = column or found, first or line
            titled = titled or whole.title in row
            yield _document(file, line, row, corpus, column)
    if row and not titled:
        raise UnmaskError(f"--title-column: no row has the column '{whole.title}'; the last one has {', '.join(row)}.")


def _line_id(file: Path, line: int) -> str:
    return encodable(f"{file}:{line}")


def _document(file: Path, line: int, row: Row, corpus: Corpus, column: str | None) -> Document:
    name = str(field(file, line, row, column, (str, int))) if column else _line_id(file, line)
    titles = corpus.title_column
    title = "" if titles is None or row.get(titles) is None else field(file, line, row, titles)
    text = field(file, line, row, corpus.text)
    others = {encodable(key): _plain(value) for key, value in row.items() if key not in (column, titles, corpus.text)}
    return Document(encodable(name), encodable(title), encodable(text), others, file, line)


def typed(value: Value, holds: ColumnType) -> Value:
    """The value as its column holds it; None for one that is missing. Raises UnmaskError for a number that would be rounded."""
    if value is None or (value == "" and holds != "text"):
        return None
    if holds == "integer":
        return int(value)
    if holds == "number":
        if isinstance(value, int) and abs(value) > _EXACT:
            raise UnmaskError(
                f"A column now has decimals, and a document that is kept has {value} there, which decimals would round. Make the index "
                "again without --keep-missing."
            )
        return float(value)
    if holds == "text" and not isinstance(value, str):
        return json.dumps(value)
    return value


def _plain(value: Any) -> Value:
    """A value that an index can hold: a list, an object, a date or bytes become text."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, list | dict):
        return encodable(json.dumps(value, ensure_ascii=False, default=str))
    return encodable(value.isoformat() if hasattr(value, "isoformat") else str(value))


def _type_of(value: Value, is_word: bool) -> ValueType | None:
    if value is None or (value == "" and is_word):
        return None
    if isinstance(value, str):
        return _type_of_word(value) if is_word else "text"
    if isinstance(value, bool):
        return "boolean"
    return _whole(value) if isinstance(value, int) else "number"


def _type_of_word(word: str) -> ValueType:
    """A number only if it would be written as it was read: 1.10 may be a version, +49 a phone number, and 3E5 a code."""
    if len(word) > _LONGEST or not _NUMBER.fullmatch(word):
        return "text"
    number = int(word) if word.lstrip("-").isdecimal() else float(word)
    if str(number) != word:
        return "text"
    return _whole(number) if isinstance(number, int) else "number"


def _whole(value: int) -> ValueType:
    """The type of a whole number. One that no column of numbers holds stays text, since every digit may matter, as in an id."""
    if not is_int64(value):
        return "text"
    return "integer" if abs(value) <= _EXACT else "large integer"


def common_type(*types: ValueType) -> ColumnType:
    """The one type that holds values of all these types, to the last digit."""
    held = set(types)
    if held <= {"integer", "large integer"}:
        return "integer"
    if held <= {"integer", "number"}:
        return "number"
    return "boolean" if held == {"boolean"} else "text"
