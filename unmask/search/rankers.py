"""Rankers: each ranks the documents for a query in its own way. A search takes one ranking, or fuses those of several."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from unmask.encoding.quantization import unit_cosines
from unmask.search.fusion import Ranking, Rows, best
from unmask.search.keywords import Keywords
from unmask.search.queries import Queries
from unmask.search.stores.store import BLOCK, Layout, Store
from unmask.search.vectors import Stored, Vectors, restored, stored

_KEPT = 2**30
"""Bytes of vectors that stay in memory between searches; more are read from the disk for each."""
_CANDIDATES, _TIMES = 100, 10
"""An approximate index is asked for ten times as many documents as are wanted, and at least for 100."""


class Ranker(Protocol):
    """Ranks documents for queries."""

    def rank(self, queries: Queries, number: int, allowed: Rows | None) -> list[Ranking]:
        """For each query the best `number` documents. allowed: the rows that may be found; None for all."""


class DenseRanker:
    """Ranks by the cosine of vectors. Exact: every allowed document is compared, in float32."""

    def __init__(self, store: Store, layout: Layout, *, approximate: bool = False) -> None:
        """approximate: where all documents are allowed, compare only those that the store's approximate index proposes."""
        self.store, self.layout, self.approximate = store, layout, approximate
        self._kept: Stored | None = None

    def rank(self, queries: Queries, number: int, allowed: Rows | None) -> list[Ranking]:
        """The nearest documents of each query."""
        if self.approximate and allowed is None:
            return [self._rank_proposed(vector, number) for vector in queries.vectors]
        return self.nearest(queries.vectors, number, allowed)

    def nearest(self, vectors: Vectors, number: int, allowed: Rows | None = None) -> list[Ranking]:
        """The nearest documents of each vector, by comparing all."""
        nothing = Ranking(np.empty(0, np.int64), np.empty(0, np.float64))
        found = [nothing] * len(vectors)
        for rows, kept in self._blocks(allowed):
            decoded = restored(kept, self.layout.precision)
            for place, vector in enumerate(vectors):
                before = found[place]
                (cosines,) = unit_cosines(vector[None], decoded)  # one query at a time: alone as among others
                scores = np.concatenate([before.scores, cosines])
                found[place] = best(np.concatenate([before.rows, rows]), scores, number)
        return found

    def proposed(self, vector: Vectors, number: int) -> Rows:
        """The rows that the store's approximate index proposes for a vector."""
        (query,) = stored(vector[None], self.layout.precision)
        return np.unique(self.store.nearest(query, max(_CANDIDATES, _TIMES * number)))

    def _rank_proposed(self, vector: Vectors, number: int) -> Ranking:
        rows = self.proposed(vector, number)
        (cosines,) = unit_cosines(vector[None], restored(self.store.vectors(rows), self.layout.precision))
        return best(rows, cosines, number)

    def _blocks(self, allowed: Rows | None) -> Iterator[tuple[Rows, Stored]]:
        """The allowed rows and their stored vectors, block after block."""
        if self._kept is None and self._bytes() <= _KEPT:
            self._kept = np.concatenate(list(self.store.vector_blocks()))
        if allowed is not None or self._kept is not None:
            rows = np.arange(len(self.store)) if allowed is None else allowed
            for start in range(0, len(rows), BLOCK):
                block = rows[start : start + BLOCK]
                yield block, self.store.vectors(block) if self._kept is None else self._kept[block]
            return
        row = 0
        for kept in self.store.vector_blocks():
            yield np.arange(row, row + len(kept)), kept
            row += len(kept)

    def _bytes(self) -> int:
        return len(self.store) * self.store.vectors(np.zeros(1, np.int64)).nbytes


class KeywordRanker:
    """Ranks by BM25. A document without any word of the query is not found."""

    def __init__(self, keywords: Keywords, documents: int) -> None:
        """documents: how many there are."""
        self.keywords, self.documents = keywords, documents

    def rank(self, queries: Queries, number: int, allowed: Rows | None) -> list[Ranking]:
        """The documents with the highest scores for each query."""
        rankings = []
        for query in queries.texts:
            scores = self.keywords.scores(query, self.documents)
            rows = np.flatnonzero(scores) if allowed is None else allowed[scores[allowed] > 0]
            rankings.append(best(rows, scores[rows], number))
        return rankings
