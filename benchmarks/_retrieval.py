"""A small retrieval task for benchmarks: documents of SciFact, and the queries whose relevant documents are all among them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks import _inputs
from unmask.tasks.folder import open_folder
from unmask.tasks.kinds.retrieval import Retrieval
from unmask.tasks.mteb.ranking import ndcg


@dataclass(frozen=True)
class SmallRetrieval:
    """Documents and queries by id. relevant: gains of documents, by query."""

    documents: dict[str, str]
    queries: dict[str, str]
    relevant: dict[str, dict[str, int]]

    def ndcg(self, scores: NDArray[np.floating]) -> float:
        """nDCG@10, the mean over queries. scores: shape (query, document)."""
        names = list(self.documents)
        rows = (dict(zip(names, row.tolist(), strict=True)) for row in scores)
        return float(np.mean([ndcg(row, self.relevant[query], 10) for query, row in zip(self.queries, rows, strict=True)]))


def small_retrieval(documents: int, smoke: bool) -> SmallRetrieval:
    """Documents that queries need, as many as fit, then others, in the order of the file. A smoke run uses bundled texts."""
    folder = _inputs.retrieval("scifact", smoke)
    data = Retrieval().read(open_folder(folder))
    relevant: dict[str, dict[str, int]] = {}
    for row in data["qrels"]:
        if row["score"] > 0:
            relevant.setdefault(row["query-id"], {})[row["corpus-id"]] = int(row["score"])
    kept: dict[str, dict[str, int]] = {}
    needed: set[str] = set()
    for query, gains in relevant.items():
        if len(needed | gains.keys()) <= documents:
            kept[query] = gains
            needed |= gains.keys()
    others = [row["_id"] for row in data["corpus"] if row["_id"] not in needed][: documents - len(needed)]
    chosen = needed | set(others)
    texts = {row["_id"]: f"{row['title']} {row['text']}".strip() for row in data["corpus"] if row["_id"] in chosen}
    return SmallRetrieval(texts, {row["_id"]: row["text"] for row in data["queries"] if row["_id"] in kept}, kept)
