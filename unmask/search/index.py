"""An index on disk: opened, and searched by vectors, by words, or by both."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from unmask.errors import UnmaskError, unknown
from unmask.io.paths import expanded
from unmask.search.documents import DocumentSource, Value, join_title
from unmask.search.record import ID, TEXT, TITLE, IndexRecord, Mode, check_data, find_index, read_index
from unmask.search.snippets import snippet
from unmask.search.table import open_table, search_vectors, search_words

if TYPE_CHECKING:
    from unmask.embedder import Embedder
    from unmask.search.build import IndexChanges

_FUSED = 100
"""Documents that each ranking gives to a fusion, or more if more are requested."""
_RANK_CONSTANT = 60
"""The k of reciprocal rank fusion, as in Cormack, Clarke and Buettcher (2009)."""
_SNIPPET = 160


@dataclass(frozen=True)
class Hit:
    """A document that a search returns. rank: from 1. snippet: the passage of its title and text that holds most words of the query."""

    rank: int
    score: float
    id: str
    title: str
    text: str
    snippet: str
    columns: dict[str, Value]

    def as_json(self) -> dict[str, Any]:
        """Everything but the text, which may have megabytes."""
        return {name: value for name, value in vars(self).items() if name != "text"}


class Index:
    """An index of documents. The embedder is loaded when the first query needs it.

    record: the content of `index.json`. An open Index does not see an update by another process: open it again.
    """

    def __init__(
        self, folder: Path, record: IndexRecord, embedder: Embedder | None, device: str, trust_remote_code: bool
    ) -> None:
        """Open the data that the record names. `Index.open` does this for a folder."""
        self.folder, self.record = folder, record
        self._embedder, self._device, self._trust = embedder, device, trust_remote_code
        self._data = check_data(folder, record)
        self._table = open_table(self._data)

    @classmethod
    def open(
        cls,
        folder: str | Path,
        *,
        embedder: Embedder | None = None,
        device: str = "auto",
        trust_remote_code: bool = False,
    ) -> Index:
        """Open an index. embedder: one that is loaded already; by default the index loads its own, on `device`.

        trust_remote_code: run the code that comes with the model, if UNMASK_TRUST_CODE_OF lists the model. Raises UnmaskError for a
        folder that is not an index or is damaged.
        """
        folder = expanded(folder)
        return cls(folder, read_index(folder), embedder, device, trust_remote_code)

    def __len__(self) -> int:
        """Number of documents."""
        return self.record.documents

    def __repr__(self) -> str:
        """Folder, size and design."""
        return f"Index('{self.folder}', documents={len(self)}, design='{self.record.embedder.design}')"

    def search(
        self, query: str, k: int = 10, *, mode: Mode = "dense", where: str | None = None, exact: bool = False
    ) -> list[Hit]:
        """The k best documents for a query, best first.

        mode: "dense" ranks by the cosine of vectors, "bm25" by shared words, "hybrid" fuses both rankings by reciprocal rank.
        where: a filter in SQL such as "year >= 2020 and tag = 'a'". exact: compare all documents even if the index is approximate; with
        a filter this is always so. Raises UnmaskError for a mistake in these, and if the embedder has changed.
        """
        (hits,) = self.search_all([query], k, mode=mode, where=where, exact=exact)
        return hits

    def search_all(
        self, queries: Sequence[str], k: int = 10, *, mode: Mode = "dense", where: str | None = None, exact: bool = False
    ) -> list[list[Hit]]:
        """As `search`, for several queries, which are embedded together."""
        if k < 1:
            raise UnmaskError(f"k must be at least 1, not {k}.")
        if mode not in get_args(Mode):
            raise unknown("mode", mode, get_args(Mode))
        if isinstance(queries, str):
            raise UnmaskError("search_all takes a list of queries, not one string: search_all([query]).")
        try:
            if where is not None:
                self._check_filter(where)
            if mode == "bm25":
                return [self._hits(query, search_words(self._table, query, k, where)) for query in queries]
            vectors = np.asarray(self.embedder.encode_query(queries, normalize=True, show_progress=False), np.float32)
            number = max(k, _FUSED) if mode == "hybrid" else k
            rankings = [search_vectors(self._table, vector, number, where, exact=exact) for vector in vectors]
            if mode == "hybrid":
                by_words = [search_words(self._table, query, number, where) for query in queries]
                rankings = [fuse(both)[:k] for both in zip(rankings, by_words, strict=True)]
            return [self._hits(query, rows) for query, rows in zip(queries, rankings, strict=True)]
        except UnmaskError:
            raise
        except Exception as error:
            if find_index(self.folder) == self.record:
                raise
            raise UnmaskError(f"'{self.folder}' has been updated since it was opened: open it again.") from error

    def add(self, documents: Iterable[Mapping[str, Any]]) -> IndexChanges:
        """Add documents, or replace those with the same ids, and save the index. Only new and changed texts are embedded.

        documents: each with `id` (or `_id`) and `text`, and optionally `title` and columns to filter by, as a row of a file has them.
        Like any update, this writes the data of the index again: add many documents at once. Raises UnmaskError for a document without
        an id or a text, and if the embedder has changed.
        """
        rows = tuple(map(dict, documents))
        return self._update(DocumentSource((), id="_id" if rows and "_id" in rows[0] else "id", rows=rows))

    def delete(self, ids: Iterable[str]) -> IndexChanges:
        """Remove the documents with these ids, and save the index. Raises UnmaskError for an id that the index does not have."""
        if isinstance(ids, str):
            raise UnmaskError("delete takes a list of ids, not one string: delete([id]).")
        removed = frozenset(map(str, ids))
        stored = {name for batch in self._table.search().select([ID]).to_batches() for name in batch[ID].to_pylist()}
        if missing := sorted(removed - stored):
            raise UnmaskError(f"'{self.folder}' has no document {missing[0]!r}, so nothing was deleted.")
        return self._update(DocumentSource(()), removed)

    def _update(self, corpus: DocumentSource, removed: frozenset[str] = frozenset()) -> IndexChanges:
        """Change the index on disk, and open it again."""
        from unmask.search.build import IndexJob, build

        embedder, made_with = self.embedder, self.record.embedder
        source = made_with.model, made_with.revision, made_with.adapters
        report = build(IndexJob(corpus, self.folder, *source, keep_missing=True, removed=removed), lambda: embedder)
        newest = Index(self.folder, read_index(self.folder), embedder, self._device, self._trust)
        vars(self).clear()
        vars(self).update(vars(newest))
        return report

    @cached_property
    def embedder(self) -> Embedder:
        """The embedder that the index was made with. Raises UnmaskError if it has changed since."""
        from unmask.search.embedding import load_embedder, require_same_embedder

        if self._embedder is not None:
            return require_same_embedder(self.record.embedder, self._embedder)
        return load_embedder(self.record.embedder, self._data, device=self._device, trust_remote_code=self._trust)

    def _check_filter(self, where: str) -> None:
        """Raise UnmaskError for a mistake in a filter, before a model is loaded."""
        try:
            self._table.count_rows(where)
        except (ValueError, RuntimeError) as error:
            reason = re.sub(r", /\S+\.rs:[\d:]+", "", str(error)).rstrip(".")  # a line of LanceDB's source
            raise UnmaskError(f"--filter: {reason}. For example: year >= 2020 and tag in ('a', 'b')") from error

    def _hits(self, query: str, rows: list[dict[str, Any]]) -> list[Hit]:
        return [
            Hit(
                rank,
                score=row["_score"] if "_score" in row else 1 - row["_distance"],
                id=row[ID],
                title=row[TITLE],
                text=row[TEXT],
                snippet=snippet(join_title(row[TITLE], row[TEXT]), query, _SNIPPET),
                columns={name: row[name] for name in self.record.columns},
            )
            for rank, row in enumerate(rows, start=1)
        ]


def fuse(rankings: Iterable[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Reciprocal rank fusion: rows by the sum of 1 / (60 + rank) over the rankings that hold them, which becomes their `_score`."""
    rows: dict[str, dict[str, Any]] = {}
    for ranking in rankings:
        for rank, row in enumerate(ranking, start=1):
            before = rows[row[ID]]["_score"] if row[ID] in rows else 0.0
            rows[row[ID]] = row | {"_score": before + 1 / (_RANK_CONSTANT + rank)}
    return sorted(rows.values(), key=lambda row: -row["_score"])
