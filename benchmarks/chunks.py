"""What chunks and late chunking are worth on retrieval: nDCG@10 of whole documents, of chunks, and of late chunks.

    python -m benchmarks.chunks [--model smollm2] [--documents 200] [--size 64] [--overlap 16] [--keep FILE] [--smoke]

Documents are abstracts of SciFact (title and text), queries those whose relevant documents are all among them. A document scores what its
best chunk scores. A whole document is cut to 512 tokens. Designs of one prompt share their forward passes. PromptEOL cannot chunk late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from benchmarks import _inputs, _report
from benchmarks._report import Report, Table
from benchmarks._retrieval import SmallRetrieval, small_retrieval
from unmask import Design, Embedder
from unmask.encoding.chunking import Chunking, Chunks, encode_chunks
from unmask.encoding.encoder import Tally
from unmask.starter import reference_texts

GROUPS = (
    ["causal/plain/mean", "causal/plain/weighted-mean", "causal/plain/mean/zscore", "causal/plain/weighted-mean/zscore"],
    ["prompteol-z"],
)
WAYS = ("whole", "chunks", "late")


def best_chunks(queries: np.ndarray, chunks: Chunks) -> np.ndarray:
    """The cosine of each query with the best chunk of each document, shape (query, document)."""
    cosines = Embedder.similarity(queries, chunks.vectors)
    firsts = np.flatnonzero(chunks.numbers == 0)
    return np.asarray(np.maximum.reduceat(cosines, firsts, axis=1))


def measure(
    table: Table, embedder: Embedder, designs: Mapping[str, Design], task: SmallRetrieval, chunking: Chunking
) -> list[int | None]:
    """Add a row of scores for each design. Returns the tokens that each way computes, None for a way that cannot be."""
    encoder, prompt = embedder.encoder, embedder.prompt
    fits = encoder.fit(designs.values(), reference_texts())
    documents, queries = list(task.documents.values()), list(task.queries.values())
    asked = encoder.encode(queries, fits)
    tallies = {"whole": Tally()}
    whole = encoder.encode(documents, fits, tally=tallies["whole"], share_text=False)
    chunked: dict[str, dict[Design, Chunks]] = {}
    for way in ("chunks", "late") if prompt.ends_with_text() else ("chunks",):
        tallies[way] = Tally()
        of_way = replace(chunking, late=way == "late")
        chunked[way] = encode_chunks(encoder, fits, documents, of_way, tally=tallies[way])
    for name, design in designs.items():
        scores = {"whole": task.ndcg(Embedder.similarity(asked[design], whole[design]))}
        scores |= {way: task.ndcg(best_chunks(asked[design], chunks[design])) for way, chunks in chunked.items()}
        table.add(name, *(100 * scores[way] if way in scores else None for way in WAYS))
    return [tallies[way].tokens if way in tallies else None for way in WAYS]


def main(arguments: Sequence[str] | None = None) -> None:
    """Load the model once and measure each group of designs."""
    parser = _report.parser(__doc__)
    parser.add_argument("--documents", type=int, default=200)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--overlap", type=int, default=16)
    given = parser.parse_args(arguments)
    task = small_retrieval(12 if given.smoke else given.documents, given.smoke)
    size, overlap = (8, 2) if given.smoke else (given.size, given.overlap)
    loaded = Embedder.from_pretrained(_inputs.model_of(given), GROUPS[0][0])
    with Report(__file__, arguments) as report:
        report.note(
            f"{_inputs.model_of(given)}, {len(task.documents)} documents and {len(task.queries)} queries of SciFact. "
            f"Chunks have {size} tokens and overlap by {overlap}."
        )
        scores = report.table("nDCG@10 x 100", {"design": "`{}`", **dict.fromkeys(WAYS, "{:.1f}")})
        counts = {}
        for group in GROUPS:
            designs = {name: Design.parse(name) for name in group}
            embedder = loaded.with_design(designs[group[0]])
            counts[embedder.prompt.name] = measure(scores, embedder, designs, task, Chunking(size, overlap))
        tokens = report.table("Tokens computed", {"prompt": "`{}`", **dict.fromkeys(WAYS, "{:,}")})
        for prompt, row in counts.items():
            tokens.add(prompt, *row)


if __name__ == "__main__":
    main()
