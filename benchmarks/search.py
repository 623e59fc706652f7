"""What search finds: nDCG@10 of all vectors compared, of an exact and an approximate index, of BM25 and of hybrid search.

    python -m benchmarks.search [--model smollm2] [--design prompteol] [--documents 600] [--max-length 192] [--smoke]

The index embeds the documents itself, in float32. Documents and queries are of SciFact; `--documents 0` takes the whole corpus.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._common import RetrievalTask, head, retrieval, retrieval_folder, row, start
from unmask import Embedder
from unmask.cli import app
from unmask.search import Index


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the score of each way, with the difference of the mean and the largest difference of a query."""
    args = start(__file__, __doc__, arguments, design="prompteol", documents=(600, 40), max_length=(192, 32))
    task = retrieval(retrieval_folder("scifact", args.smoke), args.documents)
    embedder = Embedder.from_pretrained(args.model, args.design, dtype="float32", max_length=args.max_length)
    vectors, queries = (embedder.encode(list(texts.values()), show_progress=False) for texts in (task.documents, task.queries))
    compared = task.ndcg([dict(zip(task.documents, scores, strict=True)) for scores in Embedder.similarity(queries, vectors)])
    print(f"\n{args.model} in float32, {len(task.documents)} documents and {len(task.queries)} queries of SciFact.")
    head("way", "nDCG@10", "difference", "of a query", "ms a query", "KB a document")
    row("all vectors compared", f"{compared.mean():.5f}", "", "", "", "")
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "index"
        model = ["-m", args.model, "-d", args.design, "--dtype", "float32", "--max-length", str(args.max_length)]
        for name, options in (("index", ()), ("approximate index", ("--approximate",))):
            build_index(task, output, *model, *options)
            index = Index.open(output, embedder=embedder)
            index.search("warm up")
            begin = time.perf_counter()
            scores = task.ndcg(rank(index, task))
            milliseconds = 1000 * (time.perf_counter() - begin) / len(scores)
            size = sum(file.stat().st_size for file in output.rglob("*") if file.is_file()) / len(index) / 1000
            difference = f"{scores.mean() / compared.mean() - 1:+.1%}", f"{np.abs(scores - compared).max():.0e}"
            row(name, f"{scores.mean():.5f}", *difference, f"{milliseconds:.1f}", f"{size:.1f}")
        for mode in ("bm25", "hybrid"):
            row(f"`--mode {mode}`", f"{task.ndcg(rank(index, task, mode=mode, exact=True)).mean():.5f}", "", "", "", "")


def build_index(task: RetrievalTask, output: Path, *words: str) -> None:
    """An index of the documents of a task with English stems, made by `unmask index` with these options."""
    corpus = output.with_suffix(".jsonl")
    corpus.write_text("".join(json.dumps({"_id": name, "text": text}) + "\n" for name, text in task.documents.items()), "utf-8")
    with contextlib.redirect_stdout(io.StringIO()):
        app(["index", str(corpus), "-o", str(output), "--quiet", "--language", "english", *words], standalone_mode=False)


def rank(index: Index, task: RetrievalTask, **options: Any) -> list[dict[str, float]]:
    """The first hundred documents for each query, best first, with their scores."""
    return [{hit.id: hit.score for hit in hits} for hits in index.search_all(list(task.queries.values()), 100, **options)]


if __name__ == "__main__":
    main()
