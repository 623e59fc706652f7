"""Lexical search: documents ranked by what the model predicts of their words and of those of a query (PromptReps).

An index keeps a packed vector of 256 numbers for each document (see unmask/encoding/lexical.py). A search multiplies each value of each
document with that of the query and with the word's IDF among the documents of the index.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.designs.design import Design
from unmask.encoding.lexical import KEPT, Packed, inverse_frequencies
from unmask.search.fusion import Ranking, Rows, best
from unmask.search.queries import Queries
from unmask.search.stores.store import BLOCK


def lexical_design(design: Design) -> Design:
    """The lexical design that shares the forward passes of a dense one.

    Raises UnmaskError for a design with several prompts, and for another pooling than `last`: only the last token has seen the whole text.
    """
    return Design(design.attention, design.require_one_prompt("A lexical vector"), design.pooling, features="lexical")


def write_packed(file: Path, blocks: Iterable[Packed], documents: int) -> None:
    """Write the packed vectors of all documents, in the order of rows."""
    with file.open("wb") as stream:
        header = np.lib.format.header_data_from_array_1_0(np.empty((0, 2 * KEPT), np.float32))
        np.lib.format.write_array_header_1_0(stream, {**header, "shape": (documents, 2 * KEPT)})
        for block in blocks:
            stream.write(np.ascontiguousarray(block, np.float32).tobytes())


def read_packed(file: Path) -> Packed:
    """What `write_packed` wrote. It stays on the disk until it is needed."""
    packed: Packed = np.load(file, mmap_mode="r")
    return packed


class LexicalRanker:
    """Ranks by the dot product of lexical vectors, with the IDF of each word. A document without any word of the query is not found."""

    def __init__(self, packed: Packed) -> None:
        """packed: of all documents, by row."""
        self.packed = packed

    def rank(self, queries: Queries, number: int, allowed: Rows | None) -> list[Ranking]:
        """The documents with the highest scores for each query."""
        rankings = []
        for query in queries.words:
            rows, scores = self._scores(query, allowed)
            found = scores > 0
            rankings.append(best(rows[found], scores[found], number))
        return rankings

    def _scores(self, query: Packed, allowed: Rows | None) -> tuple[Rows, NDArray[np.float64]]:
        ids = query[:KEPT].astype(np.int64)
        weights = np.zeros(max(len(self._idf), int(ids.max()) + 1))  # of each token; 0 for those that the query does not have
        np.add.at(weights, ids, query[KEPT:] * self._idf[np.minimum(ids, len(self._idf) - 1)])
        rows = np.arange(len(self.packed)) if allowed is None else allowed
        scores = [self._block(rows[start : start + BLOCK], weights) for start in range(0, len(rows), BLOCK)]
        return rows, np.concatenate([np.empty(0), *scores])

    def _block(self, rows: Rows, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        block = self.packed[rows]
        return np.asarray((weights[block[:, :KEPT].astype(np.int64)] * block[:, KEPT:]).sum(axis=1))

    @cached_property
    def _idf(self) -> NDArray[np.float32]:
        """IDF of each token among the documents; the last is that of all tokens with a larger id."""
        blocks = (self.packed[start : start + BLOCK] for start in range(0, len(self.packed), BLOCK))
        idf: NDArray[np.float32] = inverse_frequencies(torch.from_numpy(np.array(block)) for block in blocks).numpy()
        return idf
