"""The gain of chunks and of late chunking on retrieval: nDCG@10 of whole documents, of chunks, and of late chunks.

    python -m benchmarks.chunks [--model smollm2] [--documents 200] [--size 64] [--overlap 16] [--smoke]

Documents are abstracts of SciFact (title and text), queries those whose relevant documents are all among them. A document scores as its
best chunk does. A whole document is cut to 512 tokens. PromptEOL cannot chunk late.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks._common import head, retrieval, retrieval_folder, row, start
from unmask import Embedder

DESIGNS = (
    "causal/plain/mean",
    "causal/plain/weighted-mean",
    "causal/plain/mean/zscore",
    "causal/plain/weighted-mean/zscore",
    "prompteol-z",
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Load the model once and measure each design."""
    args = start(__file__, __doc__, arguments, documents=(200, 12), size=(64, 8), overlap=(16, 2))
    task = retrieval(retrieval_folder("scifact", args.smoke), args.documents)
    loaded = Embedder.from_pretrained(args.model, DESIGNS[0])
    documents = list(task.documents.values())
    head("design, nDCG@10 x 100", "whole", "chunks", "late")
    for design in DESIGNS:
        embedder = loaded.with_design(design)
        queries = embedder.encode(list(task.queries.values()), show_progress=False)
        whole = embedder.encode(documents, show_progress=False)
        scores = [task.mean_ndcg(Embedder.similarity(queries, whole))]
        for late in (False, True) if embedder.prompt.ends_with_text() else (False,):
            chunks = embedder.encode_chunks(documents, size=args.size, overlap=args.overlap, late=late)
            cosines = Embedder.similarity(queries, chunks.vectors)
            best = np.maximum.reduceat(cosines, np.flatnonzero(chunks.numbers == 0), axis=1)
            scores.append(task.mean_ndcg(best))
        row(f"`{design}`", *(f"{score:.1f}" for score in scores), *[""] * (3 - len(scores)))


if __name__ == "__main__":
    main()
