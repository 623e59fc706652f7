"""What search finds: nDCG@10 of a comparison, of an index in each store and precision, of BM25 and of hybrid search.

python -m benchmarks.search [--model smollm2] [--design prompteol] [--documents 600] [--max-length 192] [--vectors FOLDER] [--keep FILE]

The comparison and the index embed every text for themselves, in float32. `--vectors` keeps vectors, so that a run that was stopped
goes on. `--documents 0` takes the whole corpus of scifact; else it is cut to the relevant documents and the first of the others.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import _inputs, _report
from benchmarks._report import Report

if TYPE_CHECKING:
    from unmask.embedder import Embedder
    from unmask.search.index import Index
    from unmask.tasks.task import LocalTask

_BLOCK = 128
COLUMNS = {
    **{"way": "{}", "nDCG@10": "{:.5f}", "difference": "{:+.1%}", "of a query": "{:.0e}", "found": "{:.1%}"},
    **{"ms a query": "{:.1f}", "KB a document": "{:.1f}"},
}
Encode = Callable[[Sequence[str]], NDArray[np.float32]]
Judged = dict[str, dict[str, int]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Score the same documents in every way, with a row for each."""
    from unmask import Embedder

    parser = _report.parser(__doc__)
    parser.add_argument("--design", default="prompteol")
    parser.add_argument("--documents", type=int, default=600)
    parser.add_argument("--max-length", type=int, default=192)
    parser.add_argument("--vectors", type=Path)
    given = parser.parse_args(arguments)
    source = _inputs.retrieval("scifact", given.smoke)
    embedder = Embedder.from_pretrained(
        _inputs.model_of(given), given.design, dtype="float32", max_length=32 if given.smoke else given.max_length
    )
    with tempfile.TemporaryDirectory() as folder, Report(__file__, arguments) as report:
        task = cut_task(source, Path(folder) / "task", 40 if given.smoke else given.documents)
        kept = given.vectors or Path(folder) / "vectors"
        compared = score_by_comparison(task, remembered(embedder, kept / "compare"))
        report.note(
            f"{_inputs.model_of(given)} in float32 with `{given.design}`, texts cut to {embedder.max_length} tokens. "
            f"{len(task.data['corpus'])} documents and {len(task.data['queries'])} queries of SciFact."
        )
        score_by_search(report, embedder, remembered(embedder, kept / "index"), task, Path(folder), compared)


def cut_task(source: Path, folder: Path, documents: int) -> LocalTask:
    """A folder with so many documents of a retrieval task. 0: all."""
    from unmask.tasks.find import find_task
    from unmask.tasks.task import LocalTask

    judged = (source / "qrels_test.tsv").read_text(encoding="utf-8")
    relevant = {line.split("\t")[1] for line in judged.splitlines()[1:]}
    corpus = [json.loads(line) for line in (source / "corpus.jsonl").read_text(encoding="utf-8").splitlines()]
    others = [row["_id"] for row in corpus if row["_id"] not in relevant]
    wanted = relevant | set(others[: max(0, documents - len(relevant))] if documents else others)
    folder.mkdir()
    rows = [json.dumps(row) for row in corpus if row["_id"] in wanted]
    (folder / "corpus.jsonl").write_text("\n".join(rows), encoding="utf-8")
    (folder / "queries.jsonl").write_bytes((source / "queries.jsonl").read_bytes())
    (folder / "qrels_test.tsv").write_text(judged, encoding="utf-8")
    task = find_task(str(folder))
    assert isinstance(task, LocalTask)
    return task


def remembered(embedder: Embedder, folder: Path) -> Encode:
    """Encode texts, and keep their vectors in a folder."""
    from unmask.encoding.vector_store import VectorStore, key_of

    rows = VectorStore(folder).stored(repr(embedder))
    plain = embedder.encode

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        keys = [key_of(text, None) for text in texts]
        missing = list({key: text for key, text in zip(keys, texts, strict=True) if key not in rows}.values())
        for start in range(0, len(missing), _BLOCK):
            block = missing[start : start + _BLOCK]
            rows.add([key_of(text, None) for text in block], plain(block, show_progress=False))
        return np.asarray(rows.get(keys), np.float32)

    return encode


def score_by_comparison(task: LocalTask, encode: Encode) -> NDArray[np.float64]:
    """nDCG@10 of each query, in the order of ids, as `unmask compare` computes it."""
    from unmask.tasks.mteb.evaluator import evaluate

    outcome = evaluate(task, "design", lambda texts, _: encode(texts))
    assert outcome.items is not None
    return outcome.items.columns["value"]


def score_by_search(
    report: Report, embedder: Embedder, encode: Encode, task: LocalTask, folder: Path, compared: NDArray[np.float64]
) -> None:
    """Index the documents in each store and precision, search, and add a row for each way."""
    from unmask.encoding.quantization import PRECISIONS
    from unmask.search.build import build
    from unmask.search.documents import Corpus
    from unmask.search.index import Index
    from unmask.search.job import Job
    from unmask.search.stores import STORES

    let_remember(embedder, encode)
    whole = compared.mean()
    table = report.table(
        "The difference from `compare`: of the mean, and the largest of one query. Found: of the ten nearest, by approximate search",
        COLUMNS,
    )
    table.add("`compare`", float(whole), *[None] * 5)
    for store, kind in STORES.items():
        for precision in PRECISIONS:
            approximate = precision in kind.approximates
            output = folder / f"{store}-{precision}"
            corpus = Corpus((folder / "task" / "corpus.jsonl",))
            job = Job(corpus, output, "benchmark", store=store, precision=precision, approximate=approximate)
            done = build(embedder, job.check())
            index = Index.open(output, embedder=embedder)
            index.search("warm up")
            start = time.perf_counter()
            scores = score(index, task, exact=True)
            spent = 1000 * (time.perf_counter() - start) / len(scores)
            size = sum(file.stat().st_size for file in output.rglob("*") if file.is_file())
            differences = float(scores.mean() / whole - 1), float(np.abs(scores - compared).max())
            table.add(f"{store}, {precision}", float(scores.mean()), *differences, None, spent, size / len(index) / 1000)
            if approximate:
                table.add(
                    f"{store}, {precision}, approximate", float(score(index, task).mean()), None, None, done.recall, None, None
                )
    table.add("`--mode bm25`", float(score(index, task, mode="bm25").mean()), *[None] * 5)
    index = Index.open(folder / f"{next(iter(STORES))}-float32", embedder=embedder)
    hybrid = score(index, task, mode="hybrid", exact=True)
    table.add("`--mode hybrid`, float32", float(hybrid.mean()), *[None] * 5)


def let_remember(embedder: Embedder, encode: Encode) -> None:
    """Let an embedder take vectors that are known, so that every precision needs no forward pass of its own."""
    from unmask.encoding.quantization import finish

    def known(texts: Sequence[str], *, normalize: bool, precision: Any = "float32", tally: Any = None, **_: Any) -> Any:
        return finish(encode(texts), None, normalize, precision)

    embedder.encode_document = known  # type: ignore[method-assign, assignment]
    embedder.encode_query = known  # type: ignore[method-assign, assignment]


def score(index: Index, task: LocalTask, **options: Any) -> NDArray[np.float64]:
    """nDCG@10 of each query, in the order of ids."""
    from unmask.tasks.mteb.ranking import ndcg

    judged: Judged = {}
    for row in task.data["qrels"]:
        judged.setdefault(row["query-id"], {})[row["corpus-id"]] = int(row["score"])
    queries = sorted((row["_id"], row["text"]) for row in task.data["queries"])
    found = index.search_all([text for _, text in queries], 100, **options)
    values = [
        ndcg({hit.id: hit.score for hit in hits}, judged[query], 10) for (query, _), hits in zip(queries, found, strict=True)
    ]
    return np.array(values)


if __name__ == "__main__":
    main()
