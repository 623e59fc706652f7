"""The loss of each precision: nDCG@10 on abstracts of SciFact and Spearman's correlation on STSB, of the same vectors.

    python -m benchmarks.precisions [--model smollm2] [--designs mean,prompteol-z] [--documents 300] [--pairs 1379] [--smoke]

Queries and documents (and both sentences of a pair) have the same precision. `binary, queries in float32` rounds the documents alone. The
last two columns are what `unmask embed` prints, on 200 of the documents: the rank correlation of cosines with those in float32, and how
many of the ten nearest neighbours stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from benchmarks._common import head, retrieval, retrieval_folder, row, rows, start
from unmask import Embedder
from unmask.encoding.quantization import PRECISIONS, finish, measure_loss, sample_rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Load the model once and measure each design."""
    args = start(__file__, __doc__, arguments, designs="mean,prompteol-z", documents=(300, 12), pairs=1379)
    task = retrieval(retrieval_folder("scifact", args.smoke), args.documents)
    pairs = rows("stsb/test.jsonl", args.smoke)[: args.pairs]
    texts = (task.documents.values(), task.queries.values(), *([pair[f"sentence{n}"] for pair in pairs] for n in (1, 2)))
    loaded = Embedder.from_pretrained(args.model, "mean")
    head("design", "precision", "bytes", "nDCG@10", "STSB", "ranks", "nearest")
    for design in args.designs.split(","):
        embedder = loaded.with_design(design)
        vectors = [np.asarray(embedder.encode(list(of_part), show_progress=False), np.float32) for of_part in texts]
        ways: list[tuple[str, Any, Any]] = [(name, name, name) for name in PRECISIONS]
        for name, precision, query_precision in [*ways, ("binary, queries in float32", "binary", "float32")]:
            documents, second = (finish(vectors[n], None, True, precision) for n in (0, 3))
            queries, first = (finish(vectors[n], None, True, query_precision) for n in (1, 2))
            spearman = spearmanr(Embedder.similarity_pairwise(first, second), [pair["score"] for pair in pairs]).statistic
            loss = measure_loss(vectors[0][sample_rows(len(vectors[0]))], precision) if precision == query_precision else None
            row(
                f"`{design}`",
                name,
                f"{documents[:1].nbytes:,}",
                f"{task.mean_ndcg(Embedder.similarity(queries, documents)):.1f}",
                f"{100 * spearman:.1f}",
                *((f"{loss.spearman:.4f}", f"{loss.neighbours:.1%}") if loss else ("", "")),
            )


if __name__ == "__main__":
    main()
