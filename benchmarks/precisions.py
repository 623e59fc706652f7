"""The loss of each precision: nDCG@10 on abstracts of SciFact and Spearman's correlation on STSB, of the same vectors.

    python -m benchmarks.precisions [--model smollm2] [--design mean --design prompteol-z] [--documents 300] [--pairs 1379] [--keep FILE]

Queries and documents (and both sentences of a pair) have the same precision. `binary, queries in float32` keeps the queries as they
are. The last two columns are what `unmask embed` prints, on 200 of the documents: the rank correlation of cosines with float32, and the
share of the ten nearest neighbours that stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks import _inputs, _report
from benchmarks._report import Report, Table
from benchmarks._retrieval import SmallRetrieval, small_retrieval
from unmask import Embedder
from unmask.encoding.quantization import PRECISIONS, Vectors, finish, measure_loss, sample_rows
from unmask.statistics.correlations import spearman_matrix

COLUMNS = {
    "design": "`{}`",
    "precision": "{}",
    "bytes": "{:,}",
    "nDCG@10": "{:.1f}",
    "STSB": "{:.1f}",
    "ranks": "{:.4f}",
    "nearest": "{:.1%}",
}


def sts(pairs: int, smoke: bool) -> tuple[list[str], list[str], list[float]]:
    """Sentences and scores of STSB's test pairs."""
    rows = _inputs.rows("stsb/test.jsonl", smoke)[:pairs]
    return [row["sentence1"] for row in rows], [row["sentence2"] for row in rows], [row["score"] for row in rows]


def measure(
    table: Table, name: str, embedder: Embedder, task: SmallRetrieval, pairs: tuple[list[str], list[str], list[float]]
) -> None:
    """Add a row for each precision."""
    documents, queries, one, other = (
        np.asarray(embedder.encode(texts, show_progress=False), np.float32)
        for texts in (list(task.documents.values()), list(task.queries.values()), pairs[0], pairs[1])
    )

    def add(label: str, precision: Any, query: Any) -> None:
        retrieval = task.ndcg(Embedder.similarity(finish(queries, None, True, query), finish(documents, None, True, precision)))
        cosines = Embedder.similarity_pairwise(finish(one, None, True, query), finish(other, None, True, precision))
        spearman = spearman_matrix(np.stack([cosines, np.array(pairs[2])], axis=1))[0, 1]
        loss = measure_loss(_sample(documents), precision) if precision == query else None
        kept = (None, None) if loss is None else (loss.spearman, loss.neighbours)
        size = finish(documents[:1], None, True, precision).nbytes
        table.add(name, label, size, 100 * retrieval, 100 * float(spearman), *kept)

    for precision in PRECISIONS:
        add(precision, precision, precision)
    add("binary, queries in float32", "binary", "float32")


def _sample(vectors: Vectors) -> Vectors:
    return vectors[sample_rows(len(vectors))]


def main(arguments: Sequence[str] | None = None) -> None:
    """Load the model once and measure each design."""
    parser = _report.parser(__doc__)
    parser.add_argument("--design", action="append")
    parser.add_argument("--documents", type=int, default=300)
    parser.add_argument("--pairs", type=int, default=1379)
    given = parser.parse_args(arguments)
    task = small_retrieval(12 if given.smoke else given.documents, given.smoke)
    pairs = sts(given.pairs, given.smoke)
    loaded = Embedder.from_pretrained(_inputs.model_of(given), "mean")
    inputs = f"{len(task.documents)} documents and {len(task.queries)} queries of SciFact, and {len(pairs[0])} pairs of STSB"
    with Report(__file__, arguments) as report:
        report.note(f"{_inputs.model_of(given)} in {str(loaded.backbone.dtype).removeprefix('torch.')}. {inputs}.")
        table = report.table("nDCG@10 and Spearman x 100", COLUMNS)
        for design in given.design or ["mean", "prompteol-z"]:
            measure(table, design, loaded.with_design(design), task, pairs)


if __name__ == "__main__":
    main()
