"""The LanceDB table of an index: documents, columns, vectors, a full-text index (BM25) and, for many documents, an approximate one.

LanceDB's defaults are for English: its tokenizers know no words in Chinese without a dictionary, and it drops accents, endings and stop
words of English. So the column `_words` holds words that we cut ourselves, in lower case and NFC: runs of letters and digits in any script,
and every two neighbouring characters in scripts without spaces. Accents stay. Stems are an option.
"""

from __future__ import annotations

import os
import warnings
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unmask.encoding.words import composed, keyword_spans
from unmask.errors import require_package
from unmask.search.record import DIGEST, ID, KEY, TEXT, TITLE, VECTOR, WORDS, IndexRecord, Language

if TYPE_CHECKING:
    import pyarrow as pa

_TABLE = "documents"
_BUILDING = timedelta(hours=24)


def create_table(data: Path, record: IndexRecord) -> Any:
    """An empty table in the folder of the data."""
    import pyarrow as pa

    types = {"integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_(), "text": pa.string()}
    fields = [(name, pa.string()) for name in (ID, TITLE, TEXT, WORDS)]
    fields += [(name, pa.binary(16)) for name in (KEY, DIGEST)]
    fields += [(name, types[holds]) for name, holds in record.columns.items()]
    schema = pa.schema([*fields, (VECTOR, pa.list_(pa.float32(), record.dim))])
    return _connect(data).create_table(_TABLE, schema=schema)


def open_table(data: Path) -> Any:
    """The table in the folder of the data."""
    return _connect(data).open_table(_TABLE)


def add_rows(table: Any, rows: list[dict[str, Any]], vectors: NDArray[np.float32]) -> None:
    """Add rows, which have all columns but the vector, and their vectors, shape (row, dim)."""
    import pyarrow as pa

    schema = table.schema
    without_vectors = pa.Table.from_pylist(rows, schema.remove(schema.get_field_index(VECTOR)))
    flat = pa.array(np.ascontiguousarray(vectors).reshape(-1))
    column = pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
    table.add(without_vectors.append_column(schema.field(VECTOR), column))


def vectors_in(rows: pa.Table) -> NDArray[np.float32]:
    """The vectors of rows of the table, shape (row, dim)."""
    column = rows[VECTOR].combine_chunks()
    return np.asarray(column.flatten(), np.float32).reshape(len(column), -1)


def index_words(table: Any, language: Language) -> None:
    """Build the full-text index."""
    from lancedb.index import FTS

    stems = {"stem": True, "language": language.capitalize()} if language != "none" else {"stem": False}
    config = FTS(
        base_tokenizer="whitespace",
        lower_case=False,  # `keywords` has done it
        ascii_folding=False,
        remove_stop_words=False,
        max_token_length=None,  # the default counts bytes: words of 14 letters in Hindi would be dropped
        **stems,
    )
    table.create_index(WORDS, config=config, wait_timeout=_BUILDING)


def index_vectors(table: Any) -> None:
    """Build the approximate index: vectors in partitions, of which a search reads the nearest (IVF)."""
    from lancedb.index import IvfFlat

    table.create_index(VECTOR, config=IvfFlat(distance_type="cosine"), wait_timeout=_BUILDING)


def search_vectors(
    table: Any, vector: NDArray[np.float32], number: int, where: str | None = None, *, exact: bool = False
) -> list[dict[str, Any]]:
    """The rows with the highest cosine, best first, with `_distance` (1 - cosine). exact: do not use the approximate index.

    where: SQL; then all rows that pass it are compared.
    """
    query = table.search(vector, vector_column_name=VECTOR).distance_type("cosine")
    if exact or where:
        query = query.bypass_vector_index()
    return _fetch(table, query, number, where, "_distance")


def search_words(table: Any, query: str, number: int, where: str | None = None) -> list[dict[str, Any]]:
    """The rows that share words with a query, by BM25, best first, with `_score`."""
    from lancedb.query import MatchQuery

    return _fetch(table, table.search(MatchQuery(keywords(query), WORDS), query_type="fts"), number, where, "_score")


def keywords(text: str) -> str:
    """The words of a text as they are indexed, separated by spaces."""
    text = composed(composed(text).casefold())
    return " ".join(text[start:end] for start, end in keyword_spans(text))


def _fetch(table: Any, query: Any, number: int, where: str | None, score: str) -> list[dict[str, Any]]:
    if where:
        query = query.where(where, prefilter=True)
    names = [name for name in table.schema.names if name not in (VECTOR, WORDS, KEY, DIGEST)]
    rows: list[dict[str, Any]] = query.limit(number).select([*names, score]).to_list()
    return rows


def _connect(data: Path) -> Any:
    require_package("lancedb")
    os.environ.setdefault("LANCEDB_LOG", "error")  # its Rust part would warn on the terminal of every empty partition
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import lancedb

    return lancedb.connect(data)
