"""The loss of each precision: nDCG@10 on abstracts of SciFact and Spearman's correlation on STSB, of the same vectors.

    python -m benchmarks.precisions [--model smollm2] [--design mean --design prompteol-z] [--documents 300] [--pairs 1379] [--smoke]

Queries and documents (and both sentences of a pair) have the same precision. `binary, queries float32` keeps the queries as they are. The
last two columns are what `unmask embed` prints: the rank correlation of cosines with float32, and the share of the ten nearest neighbours
that stay, on 200 of the documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks import _inputs
from benchmarks._retrieval import SmallRetrieval, small_retrieval
from unmask import Embedder
from unmask.encoding.precision import PRECISIONS
from unmask.encoding.quantization import Vectors, finish, measure_loss, sample_rows
from unmask.statistics.correlations import spearman_matrix


def sts(pairs: int, smoke: bool) -> tuple[list[str], list[str], list[float]]:
    """Sentences and scores of STSB's test pairs."""
    rows = _inputs.rows("stsb/test.jsonl", smoke)[:pairs]
    return [row["sentence1"] for row in rows], [row["sentence2"] for row in rows], [row["score"] for row in rows]


def measure(embedder: Embedder, task: SmallRetrieval, pairs: tuple[list[str], list[str], list[float]]) -> None:
    """Print a line for each precision."""
    documents, queries, one, other = (
        np.asarray(embedder.encode(texts, show_progress=False), np.float32)
        for texts in (list(task.documents.values()), list(task.queries.values()), pairs[0], pairs[1])
    )

    def line(name: str, precision: Any, query: Any) -> None:
        retrieval = task.ndcg(Embedder.similarity(finish(queries, None, True, query), finish(documents, None, True, precision)))
        cosines = Embedder.similarity_pairwise(finish(one, None, True, query), finish(other, None, True, precision))
        spearman = spearman_matrix(np.stack([cosines, np.array(pairs[2])], axis=1))[0, 1]
        loss = measure_loss(_sample(documents), precision) if precision == query else None
        measured = "" if loss is None else f"{loss.spearman:10.4f}{loss.neighbours:10.1%}"
        size = finish(documents[:1], None, True, precision).nbytes
        print(
            f"{embedder.design.name[-28:]:28} {name:24}{size:6}{100 * retrieval:8.1f}{100 * spearman:8.1f}{measured}",
            flush=True,
        )

    for precision in PRECISIONS:
        line(precision, precision, precision)
    line("binary, queries float32", "binary", "float32")


def _sample(vectors: Vectors) -> Vectors:
    return vectors[sample_rows(len(vectors))]


def main(arguments: Sequence[str] | None = None) -> None:
    """Load the model once and measure each design."""
    parser = _inputs.parser(__doc__)
    parser.add_argument("--design", action="append")
    parser.add_argument("--documents", type=int, default=300)
    parser.add_argument("--pairs", type=int, default=1379)
    given = parser.parse_args(arguments)
    task = small_retrieval(12 if given.smoke else given.documents, given.smoke)
    pairs = sts(given.pairs, given.smoke)
    print(f"{len(task.documents)} documents and {len(task.queries)} queries of SciFact, {len(pairs[0])} pairs of STSB")
    print(f"{'design':28} {'precision':24}{'bytes':>6}{'nDCG@10':>8}{'STSB':>8}{'ranks':>10}{'nearest':>10}")
    loaded = Embedder.from_pretrained(_inputs.model_of(given), "mean")
    for design in given.design or ["mean", "prompteol-z"]:
        measure(loaded.with_design(design), task, pairs)


if __name__ == "__main__":
    main()
