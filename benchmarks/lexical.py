"""What lexical vectors find next to dense vectors and BM25: nDCG@10 of each ranking, and of rankings that are fused.

    python -m benchmarks.lexical [--model smollm2] [--task cranfield] [--design prompteol-z] [--max-length 256] [--dtype bfloat16] [--smoke]

Lexical vectors are of the same prompt as the dense ones, and are compared by their dot product with the IDF of the corpus. Each ranking is
compared with BM25 by a paired bootstrap over queries. Rankings are fused by reciprocal rank, as in `unmask search --mode hybrid`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np

from benchmarks._common import RetrievalTask, head, retrieval, retrieval_folder, row, start
from benchmarks.search import build_index, rank
from unmask import Embedder
from unmask.search import Index
from unmask.statistics.bootstrap import Items
from unmask.statistics.paired import paired_bootstrap, with_holm

WAYS = ("dense", "lexical", "bm25")
DEPTH = 100


def main(arguments: Sequence[str] | None = None) -> None:
    """Rank the documents in each way, and fuse each set of rankings."""
    args = start(
        __file__, __doc__, arguments, task="cranfield", design="prompteol-z", max_length=256, dtype=("bfloat16", "float32")
    )
    task = retrieval(retrieval_folder(args.task, args.smoke))
    with tempfile.TemporaryDirectory() as folder:
        model = ["-m", args.model, "-d", args.design, "--dtype", args.dtype, "--max-length", str(args.max_length)]
        build_index(task, Path(folder) / "index", *model)
        index = Index.open(Path(folder) / "index")
        rankings = {
            "dense": rank(index, task),
            "lexical": rank_lexical(index.embedder, task),
            "bm25": rank(index, task, mode="bm25"),
        }
    scores = {
        ways: task.ndcg([fused(of_query) for of_query in zip(*(rankings[way] for way in ways), strict=True)])
        for number in range(1, len(WAYS) + 1)
        for ways in combinations(WAYS, number)
    }
    bm25 = [Items("mean", {"value": scores["bm25",]})]
    others = [ways for ways in scores if ways != ("bm25",)]
    tests = with_holm([paired_bootstrap([Items("mean", {"value": scores[ways]})], bm25) for ways in others])
    by_ways = dict(zip(others, tests, strict=True))
    print(f"\n{args.model} in {args.dtype}, {len(task.documents)} documents and {len(task.queries)} queries of {args.task}.")
    head("ranking", "nDCG@10 x 100", "minus BM25", "interval", "p (Holm)")
    for ways, values in scores.items():
        test = by_ways.get(ways)
        low, high = test.interval if test else (0.0, 0.0)
        tested = (
            (f"{100 * test.difference:+.1f}", f"[{100 * low:+.1f}, {100 * high:+.1f}]", f"{test.p_holm:.3f}")
            if test
            else ("",) * 3
        )
        row(" + ".join(ways), f"{100 * values.mean():.1f}", *tested)


def rank_lexical(embedder: Embedder, task: RetrievalTask) -> list[dict[str, float]]:
    """The documents with the highest dot products of lexical vectors, with the IDF of the corpus, for each query."""
    design = embedder.design
    lexical = embedder.with_design(f"{design.attention}/{design.prompt}/{design.pooling}/lexical")
    documents, queries = (lexical.encode_sparse(list(texts.values())) for texts in (task.documents, task.queries))
    frequencies = (documents > 0).sum(axis=0)
    idf = np.log1p((len(task.documents) - frequencies + 0.5) / (frequencies + 0.5))
    scores = (queries * idf @ documents.T).toarray()
    names = list(task.documents)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :DEPTH]
    return [{names[n]: row[n] for n in order if row[n] > 0} for row, order in zip(scores, best, strict=True)]


def fused(rankings: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Reciprocal rank fusion with the constant 60; documents of equal score keep the order of the first ranking."""
    gains: dict[str, float] = {}
    for ranking in rankings:
        for number, document in enumerate(ranking, 1):
            gains[document] = gains.get(document, 0) + 1 / (60 + number)
    best = sorted(gains, key=lambda document: -gains[document])[:DEPTH]
    return {document: -number for number, document in enumerate(best)}


if __name__ == "__main__":
    main()
