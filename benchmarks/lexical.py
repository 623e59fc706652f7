"""What lexical vectors find beside dense vectors and words: nDCG@10 of each ranking, and of rankings that are fused.

python -m benchmarks.lexical [--model smollm2] [--task cranfield] [--design prompteol-z] [--max-length 256] [--dtype bfloat16] [--keep FILE]

One index holds a dense and a lexical vector of each document, from one forward pass. Each way of searching is compared with BM25 by a
paired bootstrap over queries. Rankings are fused by reciprocal rank, as `unmask search --mode hybrid` does. The task is a folder below the
data folder.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks import _inputs, _report
from benchmarks._report import Report
from unmask import Embedder
from unmask.models.loading import dtype_name
from unmask.search.build import build
from unmask.search.documents import Corpus
from unmask.search.fusion import Ranking, fuse
from unmask.search.index import Index, Mode
from unmask.search.job import Job
from unmask.statistics.bootstrap import Items
from unmask.statistics.paired import paired_bootstrap, with_holm
from unmask.tasks.folder import open_folder
from unmask.tasks.kinds.retrieval import Retrieval
from unmask.tasks.mteb.ranking import ndcg

WAYS: Final[tuple[Mode, ...]] = ("dense", "lexical", "bm25")
DEPTH = 100
"""Documents of a ranking that are fused: as many as a hybrid search takes."""
COLUMNS = {
    "ranking": "{}",
    "nDCG@10": "{:.1f}",
    "minus BM25": "{:+.1f}",
    "from": "{:+.1f}",
    "to": "{:+.1f}",
    "p": "{:.3f}",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Index the documents once, rank them in each way, and fuse each set of rankings."""
    parser = _report.parser(__doc__)
    parser.add_argument("--task", default="cranfield")
    parser.add_argument("--design", default="prompteol-z")
    parser.add_argument("--max-length", type=int, default=256)
    parser.add_argument("--dtype", default="bfloat16")
    given = parser.parse_args(arguments)
    task = _inputs.retrieval(given.task, given.smoke)
    model = _inputs.model_of(given)
    embedder = Embedder.from_pretrained(
        model, given.design, dtype="float32" if given.smoke else given.dtype, max_length=given.max_length
    )
    with tempfile.TemporaryDirectory() as folder, Report(__file__, arguments) as report:
        documents, queries, relevant = parts(task)
        index = indexed(embedder, task / "corpus.jsonl", Path(folder) / "index", model)
        report.note(
            f"{model} in {dtype_name(embedder.backbone.model)} with `{given.design}`, texts cut to {given.max_length} tokens. "
            f"{len(index)} documents and {len(queries)} queries of {task.name}."
        )
        found = {way: rankings(index, documents, queries, way) for way in WAYS}
        score(report, documents, found, [relevant[query] for query in queries])


def indexed(embedder: Embedder, corpus: Path, folder: Path, model: str) -> Index:
    """An index with dense and lexical vectors of a corpus."""
    build(embedder, Job(Corpus((corpus,)), folder, model, lexical=True).check())
    return Index.open(folder, embedder=embedder)


def parts(task: Path) -> tuple[list[str], dict[str, str], dict[str, dict[str, int]]]:
    """The ids of the documents, the queries that have a relevant document, and the gains of documents for each query."""
    data = Retrieval().read(open_folder(task))
    relevant: dict[str, dict[str, int]] = {}
    for row in data["qrels"]:
        relevant.setdefault(row["query-id"], {})[row["corpus-id"]] = int(row["score"])
    queries = {row["_id"]: row["text"] for row in data["queries"] if row["_id"] in relevant}
    return [row["_id"] for row in data["corpus"]], queries, relevant


def rankings(index: Index, documents: Sequence[str], queries: Mapping[str, str], way: Mode) -> list[Ranking]:
    """For each query, the places of the first documents in the corpus, best first."""
    places = {name: place for place, name in enumerate(documents)}
    found = index.search_all(list(queries.values()), DEPTH, mode=way, exact=True)
    return [Ranking(np.array([places[hit.id] for hit in hits]), np.array([hit.score for hit in hits])) for hits in found]


def score(
    report: Report, documents: Sequence[str], found: Mapping[Mode, list[Ranking]], relevant: Sequence[dict[str, int]]
) -> None:
    """Add a row for each ranking, and for each fusion of two or three."""
    ways = [way for number in range(1, len(found) + 1) for way in combinations(found, number)]
    values = {
        way: _values([fused(one) for one in zip(*(found[part] for part in way), strict=True)], documents, relevant)
        for way in ways
    }
    words = values["bm25",]
    others = [way for way in ways if way != ("bm25",)]
    tests = with_holm([paired_bootstrap([_items(values[way])], [_items(words)]) for way in others])
    table = report.table("nDCG@10 x 100, and its difference from BM25 with the interval of Holm's correction", COLUMNS)
    by_way = dict(zip(others, tests, strict=True))
    for way in ways:
        test = by_way.get(way)
        shown = [None] * 4 if test is None else [100 * test.difference, *(100 * end for end in test.interval), test.p_holm]
        table.add(" + ".join(way), 100 * float(values[way].mean()), *shown)


def fused(rankings: Sequence[Ranking]) -> Ranking:
    """Several rankings as one, as `unmask search --mode hybrid` fuses them."""
    return fuse(rankings, DEPTH)


def _values(ranked: Sequence[Ranking], documents: Sequence[str], relevant: Sequence[dict[str, int]]) -> NDArray[np.float64]:
    """nDCG@10 of each query. Documents of equal score keep the order of their ranking."""
    orders = ({documents[row]: -place for place, row in enumerate(one.rows)} for one in ranked)
    return np.array([ndcg(order, gains, 10) for order, gains in zip(orders, relevant, strict=True)])


def _items(values: NDArray[np.float64]) -> Items:
    """The scores of queries, to be resampled."""
    return Items("mean", {"value": values})


if __name__ == "__main__":
    main()
