"""An index on disk: opened, and searched by vectors, by words, by the words that a model predicts, or by all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from unmask.errors import UnmaskError, require_package, unknown
from unmask.io.paths import expanded
from unmask.search.data import open_data
from unmask.search.documents import Corpus, joined
from unmask.search.filters import parse_filter
from unmask.search.fusion import Ranking, Rows, fuse
from unmask.search.hits import Hit
from unmask.search.keywords import Keywords
from unmask.search.queries import Embedded, Queries
from unmask.search.rankers import DenseRanker, KeywordRanker, Ranker
from unmask.search.record import ID, KEYWORDS, LEXICAL, TEXT, TITLE, IndexRecord, read_index
from unmask.search.snippets import snippet
from unmask.search.stores import STORES

if TYPE_CHECKING:
    from unmask.embedder import Embedder
    from unmask.search.build import Done

Mode = Literal["dense", "bm25", "lexical", "hybrid"]
MODES = get_args(Mode)
_FUSED = 100
"""Documents that each ranking gives to a fusion, or more if more are wanted."""
_SNIPPET = 160


class Index:
    """An index of documents. The embedder is loaded when the first query needs it.

    record: what `index.json` says. An update of the index by another process is not seen by an Index that is open: open it again.
    """

    def __init__(
        self, folder: Path, record: IndexRecord, embedder: Embedder | None, device: str, trust_remote_code: bool
    ) -> None:
        """Open the data that the record names. `Index.open` does this for a folder."""
        self.folder, self.record = folder, record
        self._embedder, self._device, self._trust = embedder, device, trust_remote_code
        require_package(STORES[record.store].needs)
        self._data = folder / record.data
        self._store = open_data(folder, record)

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
        folder that is no index or is damaged.
        """
        place = expanded(folder)
        record = read_index(place)
        while True:
            try:
                return cls(place, record, embedder, device, trust_remote_code)
            except Exception:
                if (newest := read_index(place)) == record:
                    raise
                record = newest  # an update removed the data while they were opened

    def __len__(self) -> int:
        """Number of documents."""
        return len(self._store)

    def __repr__(self) -> str:
        """Folder, size and design."""
        return f"Index('{self.folder}', documents={len(self)}, design='{self.record.embedder.design}')"

    def search(
        self, query: str, k: int = 10, *, mode: Mode = "dense", where: str | None = None, exact: bool = False
    ) -> list[Hit]:
        """The k best documents for a query, best first.

        mode: "dense" ranks by the cosine of vectors, "bm25" by shared words, "lexical" by lexical vectors, if the index has them.
        "hybrid" fuses all these rankings by reciprocal rank.
        where: a filter such as "year >= 2020 and tag = 'a'". exact: compare all documents even if the index is approximate; with
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
        if mode not in MODES:
            raise unknown("mode", mode, MODES)
        if mode == "lexical" and not self.record.lexical:
            raise UnmaskError(
                f"'{self.folder}' has no lexical vectors. Make an index with them in another folder: unmask index --lexical."
            )
        if isinstance(queries, str):
            raise UnmaskError("search_all takes a list of queries, not one string: search_all([query]).")
        try:
            allowed = None if where is None else self._allowed(where)  # a mistake in it is told before a model is loaded
            rankers = self._rankers(mode, exact)
            number = k if len(rankers) == 1 else max(k, _FUSED)
            asked = Queries(queries, partial(self._embed, lexical=self._uses_words(mode)))
            ranked = [ranker.rank(asked, number, allowed) for ranker in rankers]
            fused = [together[0] if len(rankers) == 1 else fuse(together, k) for together in zip(*ranked, strict=True)]
            return [self._hits(query, ranking) for query, ranking in zip(queries, fused, strict=True)]
        except Exception as error:
            if self._data.is_dir():
                raise
            raise UnmaskError(f"'{self.folder}' has been updated since it was opened: open it again.") from error

    def add(self, documents: Iterable[Mapping[str, Any]]) -> Done:
        """Add documents, or replace those with the same ids, and save the index. Only new and changed texts are embedded.

        documents: each with `id` (or `_id`) and `text`, and optionally `title` and columns to filter by, as a row of a file has them.
        Like any update, this writes the data of the index again: add many documents at once. Raises UnmaskError for a document without
        an id or a text, and if the embedder has changed.
        """
        rows = tuple(map(dict, documents))
        column = "_id" if rows and "_id" in rows[0] else "id"
        return self._update(Corpus((), id=column, rows=rows))

    def delete(self, ids: Iterable[str]) -> Done:
        """Remove the documents with these ids, and save the index. Raises UnmaskError for an id that the index does not have."""
        if isinstance(ids, str):
            raise UnmaskError("delete takes a list of ids, not one string: delete([id]).")
        removed = frozenset(map(str, ids))
        stored = {name for batch in self._store.batches([ID]) for name in batch[ID].to_pylist()}
        if missing := sorted(removed - stored):
            raise UnmaskError(f"'{self.folder}' has no document {missing[0]!r}, so nothing was deleted.")
        if removed and removed == stored:
            raise UnmaskError(
                f"An index needs a document, and these are all of them: remove the folder '{self.folder}' instead."
            )
        return self._update(Corpus(()), removed)

    def _update(self, corpus: Corpus, removed: frozenset[str] = frozenset()) -> Done:
        """Change the index on disk, and open it again."""
        from unmask.search.build import build
        from unmask.search.job import Job

        embedder, made_with = self.embedder, self.record.embedder
        source = made_with.model, made_with.revision, made_with.adapters
        job = Job(corpus, self.folder, *source, keep_missing=True, design=made_with.design, removed=removed)
        done = build(embedder, job.check())
        newest = Index(self.folder, read_index(self.folder), embedder, self._device, self._trust)
        vars(self).clear()
        vars(self).update(vars(newest))
        return done

    @cached_property
    def embedder(self) -> Embedder:
        """The embedder that the index was made with. Raises UnmaskError if it has changed since."""
        from unmask.search.embedding import load, require_same

        if self._embedder is not None:
            return require_same(self.record.embedder, self._embedder)
        return load(self.record.embedder, self._data, device=self._device, trust_remote_code=self._trust)

    def _allowed(self, where: str) -> Rows:
        """The rows of the documents that pass a filter."""
        import pyarrow as pa

        passes = parse_filter(where, self.record.filterable)
        fields = [column.field for column in self.record.filterable.values()]
        found, row = [np.empty(0, np.int64)], 0
        for batch in self._store.batches(list(dict.fromkeys(fields))):
            table = pa.Table.from_batches([batch]).append_column("row", pa.array(np.arange(row, row + len(batch))))
            found.append(table.filter(passes)["row"].to_numpy())
            row += len(batch)
        return np.concatenate(found)

    def _uses_words(self, mode: Mode) -> bool:
        return self.record.lexical and mode in ("lexical", "hybrid")

    def _rankers(self, mode: Mode, exact: bool) -> list[Ranker]:
        """The rankers of a mode; the rankings of several are fused."""
        dense = self._exact if exact or not self.record.approximate else self._approximate
        lexical = [self._lexical] if self._uses_words(mode) else []
        return {
            "dense": lambda: [dense],
            "bm25": lambda: [self._words],
            "lexical": lambda: lexical,
            "hybrid": lambda: [dense, self._words, *lexical],
        }[mode]()

    @cached_property
    def _exact(self) -> Ranker:
        return DenseRanker(self._store, self.record.layout)

    @cached_property
    def _approximate(self) -> Ranker:
        return DenseRanker(self._store, self.record.layout, approximate=True)

    @cached_property
    def _keywords(self) -> Keywords:
        return Keywords.open(self._data / KEYWORDS, self.record.language)

    @cached_property
    def _words(self) -> Ranker:
        return KeywordRanker(self._keywords, len(self))

    @cached_property
    def _lexical(self) -> Ranker:
        from unmask.search.lexical import LexicalRanker, read_packed

        return LexicalRanker(read_packed(self._data / LEXICAL))

    def _embed(self, queries: Sequence[str], lexical: bool) -> Embedded:
        from unmask.search.embedding import query_vectors

        return query_vectors(self.embedder, queries, lexical)

    def _hits(self, query: str, ranking: Ranking) -> list[Hit]:
        columns = {column.field: column.name for column in self.record.columns}
        rows = self._store.table(ranking.rows, [ID, TITLE, TEXT, *columns]).to_pylist()
        return [
            Hit(
                rank,
                float(score),
                row[ID],
                row[TITLE],
                row[TEXT],
                snippet(joined(row[TITLE], row[TEXT]), query, _SNIPPET, self._keywords.stem),
                {name: row[field] for field, name in columns.items()},
            )
            for rank, (score, row) in enumerate(zip(ranking.scores, rows, strict=True), start=1)
        ]
