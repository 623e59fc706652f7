"""What chunks and late chunking are worth on retrieval: nDCG@10 of whole documents, of chunks, and of late chunks.

    python -m benchmarks.chunks [--model smollm2] [--documents 200] [--size 64] [--overlap 16] [--smoke]

Documents are abstracts of SciFact (title and text), queries those whose relevant documents are all among them. A document scores what its
best chunk scores. A whole document is cut to 512 tokens. Designs of one prompt share their forward passes. PromptEOL cannot chunk late.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks import _inputs
from benchmarks._retrieval import SmallRetrieval, small_retrieval
from unmask import Design, Embedder
from unmask.encoding.chunk_vectors import Chunks, encode_chunks
from unmask.encoding.chunking import Chunking
from unmask.encoding.encode import Tally, encode_designs, fit_designs
from unmask.starter import reference_texts

GROUPS = (
    ["causal/plain/mean", "causal/plain/weighted-mean", "causal/plain/mean/zscore", "causal/plain/weighted-mean/zscore"],
    ["prompteol-z"],
)


def best_chunks(queries: np.ndarray, chunks: Chunks) -> np.ndarray:
    """The cosine of each query with the best chunk of each document, shape (query, document)."""
    cosines = Embedder.similarity(queries, chunks.vectors)
    firsts = np.flatnonzero(chunks.numbers == 0)
    return np.asarray(np.maximum.reduceat(cosines, firsts, axis=1))


def measure(embedder: Embedder, designs: Sequence[Design], task: SmallRetrieval, size: int, overlap: int) -> None:
    """Print a line for each design, and how many tokens each way computes."""
    backbone, prompt, budget = embedder.backbone, embedder.prompt, embedder.batch_tokens
    fits = fit_designs(backbone, prompt, designs, reference_texts(), batch_tokens=budget)
    documents, queries = list(task.documents.values()), list(task.queries.values())
    asked = encode_designs(backbone, prompt, fits, queries, batch_tokens=budget)
    tallies = {"whole": Tally()}
    whole = encode_designs(backbone, prompt, fits, documents, batch_tokens=budget, tally=tallies["whole"])
    chunked: dict[str, dict[Design, Chunks]] = {}
    for way in ("chunks", "late") if prompt.ends_with_text() else ("chunks",):
        tallies[way] = Tally()
        chunking = Chunking(size, overlap, way == "late")
        chunked[way] = encode_chunks(backbone, prompt, fits, documents, chunking, batch_tokens=budget, tally=tallies[way])
    for design in fits:
        scores = {"whole": task.ndcg(Embedder.similarity(asked[design], whole[design]))}
        scores |= {way: task.ndcg(best_chunks(asked[design], chunks[design])) for way, chunks in chunked.items()}
        columns = "".join(f"{100 * scores[way]:8.1f}" if way in scores else "       -" for way in ("whole", "chunks", "late"))
        print(f"{design.name:36}{columns}", flush=True)
    counts = ", ".join(f"{way} {tally.tokens}" for way, tally in tallies.items())
    print(f"  tokens computed: {counts}; {len(next(iter(chunked['chunks'].values())))} chunks", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Load the model once and measure each group of designs."""
    parser = _inputs.parser(__doc__)
    parser.add_argument("--documents", type=int, default=200)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--overlap", type=int, default=16)
    given = parser.parse_args(arguments)
    task = small_retrieval(12 if given.smoke else given.documents, given.smoke)
    size, overlap = (8, 2) if given.smoke else (given.size, given.overlap)
    print(f"{len(task.documents)} documents, {len(task.queries)} queries, chunks of {size} tokens that overlap by {overlap}")
    print(f"{'nDCG@10 x 100':36}{'whole':>8}{'chunks':>8}{'late':>8}")
    loaded = Embedder.from_pretrained(_inputs.model_of(given), GROUPS[0][0])
    for group in GROUPS:
        designs = [Design.parse(name) for name in group]
        measure(loaded.with_design(designs[0]), designs, task, size, overlap)


if __name__ == "__main__":
    main()
