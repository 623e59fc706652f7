"""Records of an index: what its vectors depend on, so that a search embeds with the same embedder, and what lies where."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from unmask.encoding.quantization import Precision
from unmask.errors import UnmaskError, unknown
from unmask.io.records import Record
from unmask.io.seals import Damaged, open_line
from unmask.search.filters import Column, ColumnType
from unmask.search.stores import STORES
from unmask.search.stores.store import Layout

RECORD = "index.json"
KEYWORDS, STORE, FIT, LEXICAL = "keywords", "store", "fit.safetensors", "lexical.npy"
"""Parts of a folder of data."""
ID, TITLE, TEXT, KEY, DIGEST = "id", "title", "text", "key", "digest"
"""Names of the columns that every store has."""


class EmbedderRecord(BaseModel):
    """The embedder of an index: how it is loaded, and what shows that it is still the same.

    fingerprint: the identity of the weights. fit: a hash of what was fitted; the values lie in the index. tokens, head: hashes of how the
    package's sentences are tokenized, and of a trained head's weights; None in an index of an earlier version.
    """

    model_config = ConfigDict(frozen=True)

    model: str
    revision: str | None = None
    adapters: tuple[str, ...] = ()
    fingerprint: str
    design: str
    max_length: int
    dtype: str
    attn_implementation: str | None = None
    instructions: dict[str, str] = {}
    alpha: float | None = None
    fit: str | None = None
    tokens: str | None = None
    head: str | None = None


class ColumnRecord(BaseModel):
    """A column of the documents. field: its name in the store, since a user's name may be one that a store cannot hold."""

    model_config = ConfigDict(frozen=True)

    name: str
    field: str
    holds: ColumnType


class IndexRecord(Record):
    """What `index.json` holds. data: the folder of the documents and vectors; an update writes a new one and then this record.

    keywords: the number of the rules that cut its texts into words; 1 if the index does not say.
    lexical: whether each document has a lexical vector too. recall: the share of the ten nearest documents that the approximate index
    finds, on a sample; None without such an index.
    """

    format: Literal[1] = 1
    data: str = Field(pattern="^data-[1-9][0-9]*$")
    store: str
    documents: int
    dim: int
    precision: Precision
    approximate: bool = False
    recall: float | None = None
    language: str
    keywords: int = 1
    lexical: bool = False
    columns: tuple[ColumnRecord, ...] = ()
    embedder: EmbedderRecord
    versions: dict[str, str]

    @field_validator("store")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in STORES:
            raise ValueError(str(unknown("store", name, STORES)))
        return name

    @property
    def types(self) -> dict[str, ColumnType]:
        """What each column holds."""
        return {column.name: column.holds for column in self.columns}

    @property
    def filterable(self) -> dict[str, Column]:
        """The columns that a filter may name. A column of the documents comes before ours of the same name."""
        own = {name: Column(name, "text") for name in (ID, TITLE)}
        return own | {column.name: Column(column.field, column.holds) for column in self.columns}

    @property
    def layout(self) -> Layout:
        """What the store holds."""
        import pyarrow as pa

        types = {"integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_(), "text": pa.large_string()}
        texts = [(name, pa.large_string()) for name in (ID, TITLE, TEXT)]
        hashes = [(name, pa.binary(16)) for name in (KEY, DIGEST)]
        columns = [(column.field, types[column.holds]) for column in self.columns]
        return Layout(pa.schema([*texts, *hashes, *columns]), self.dim, self.precision)


def read_index(folder: Path) -> IndexRecord:
    """The record of an index. Raises UnmaskError for a folder that is none, and Damaged for a record that was changed."""
    record = find_index(folder)
    if record is None:
        raise UnmaskError(f"'{folder}' is no index. Make one: unmask index TEXTS -o {folder} -m MODEL.")
    return record


def find_index(folder: Path) -> IndexRecord | None:
    """The record of an index; None if there is none. Raises Damaged: a damaged record must not pass for a folder without an index."""
    file = folder / RECORD
    try:
        content = open_line(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except Damaged as error:
        raise Damaged(f"'{file}' is damaged: {error}. {remedy(folder)}") from error
    return IndexRecord.checked(content, file)


def remedy(folder: Path) -> str:
    """What to do about a damaged index, in words."""
    return f"Make the index again in another folder, or remove '{folder}' first."


def columns_of(types: dict[str, ColumnType]) -> tuple[ColumnRecord, ...]:
    """Columns, with plain names for the store."""
    return tuple(ColumnRecord(name=name, field=f"c{place}", holds=holds) for place, (name, holds) in enumerate(types.items()))
