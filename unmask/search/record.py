"""Records of an index: what its vectors depend on, so that a search embeds with the same embedder, and where the data are."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from unmask.errors import UnmaskError
from unmask.io.records import Record
from unmask.io.seals import Damaged, check_seal, open_line

RECORD = "index.json"
ID, TITLE, TEXT, VECTOR, WORDS, KEY, DIGEST = "_id", "_title", "_text", "_vector", "_words", "_key", "_digest"
"""Columns of every table, next to those of the documents."""
RESERVED = {
    ID, TITLE, TEXT, VECTOR, WORDS, KEY, DIGEST,
    "_distance", "_score", "_rowid", "_rowaddr", "_rowoffset", "_row_last_updated_at_version", "_row_created_at_version",
}  # fmt: skip
Mode = Literal["dense", "bm25", "hybrid"]
ColumnType = Literal["integer", "number", "boolean", "text"]
Language = Literal[
    "none", "arabic", "danish", "dutch", "english", "finnish", "french", "german", "greek", "hungarian", "italian", "norwegian",
    "portuguese", "romanian", "russian", "spanish", "swedish", "tamil", "turkish",
]  # fmt: skip
"""Languages in which LanceDB can reduce words to their stems."""


class EmbedderRecord(BaseModel):
    """The embedder of an index: how it is loaded, and digests that show whether it is still the same."""

    model_config = ConfigDict(frozen=True)

    model: str
    revision: str | None = None
    adapters: tuple[str, ...] = ()
    attn_implementation: str | None = None
    dtype: str
    design: str
    max_length: int
    instructions: dict[str, str] = {}
    weights: str
    tokens: str
    """Digest of the tokenizer and the prompts."""
    head: str | None = None
    """Digest of a trained head."""
    fit: str | None = None
    """Digest of what was fitted; the values are stored with the vectors."""


class IndexRecord(Record):
    """The content of `index.json`."""

    format: Literal[2] = 2
    data: str = Field(pattern="^data-[1-9][0-9]*$")
    """Folder of the table. An update writes a new one and then this record."""
    documents: int
    dim: int
    columns: dict[str, ColumnType]
    language: Language
    approximate: bool
    recall: float | None = None
    """Share of the ten nearest documents that the approximate index finds, on a sample; None without such an index."""
    embedder: EmbedderRecord
    versions: dict[str, str]


def read_index(folder: Path) -> IndexRecord:
    """The record of an index. Raises UnmaskError for a folder without one, and Damaged for a record that was changed."""
    record = find_index(folder)
    if record is None:
        raise UnmaskError(f"'{folder}' is not an index. Make one: unmask index TEXTS -o {folder} -m MODEL.")
    return record


def find_index(folder: Path) -> IndexRecord | None:
    """The record of an index; None if there is none. Raises Damaged: a damaged record must not pass for a folder without an index."""
    file = folder / RECORD
    try:
        return IndexRecord.parse(open_line(file.read_bytes()), file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except Damaged as error:
        raise Damaged(f"'{file}' is damaged: {error}. {_remedy(folder)}") from error


def check_data(folder: Path, record: IndexRecord) -> Path:
    """The folder of the data of an index. Raises Damaged if a file in it is missing or was changed."""
    data = folder / record.data
    if not data.is_dir():
        raise Damaged(f"'{folder}' is damaged: '{record.data}' is missing. {_remedy(folder)}")
    try:
        check_seal(data)
    except Damaged as error:
        raise Damaged(f"{error} {_remedy(folder)}") from error
    return data


def _remedy(folder: Path) -> str:
    return f"Make the index again in another folder, or remove '{folder}' first."
