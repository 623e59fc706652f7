"""Retrieval: queries, a corpus, and which documents answer which query."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from unmask.errors import UnmaskError
from unmask.io.rows import Row
from unmask.io.terminal import counted, say
from unmask.statistics.bootstrap import Items
from unmask.tasks import columns
from unmask.tasks.columns import ColumnReader, read_columns
from unmask.tasks.folder import TaskFolder
from unmask.tasks.kinds.kind import Data, Forms, TextKind, TextsAndPairs
from unmask.tasks.mteb.ranking import ranked_items
from unmask.tasks.mteb.scored import ScoredSubset
from unmask.tasks.mteb.tables import search_data
from unmask.tasks.sampling import DOCUMENTS_PER_QUERY, drawn_order, sampled


class Retrieval(TextKind):
    """Queries and documents: how near the top the relevant documents are ranked."""

    name = "retrieval"
    heading = "retr"
    layout = "corpus.jsonl (_id, title, text), queries.jsonl (_id, text), qrels_test.tsv or qrels/test.tsv (query-id, corpus-id, score)"
    metric = "nDCG@10"
    example: ClassVar[dict[str, Row]] = {
        "corpus.jsonl": {"_id": "d1", "title": "Guitars", "text": "A guitar has six strings."},
        "queries.jsonl": {"_id": "q1", "text": "How many strings has a guitar?"},
        "qrels_test.tsv": {"query-id": "q1", "corpus-id": "d1", "score": 1},
    }
    order = 0  # its files differ from the other kinds: there is no test.jsonl with columns to check
    item_part = "queries"
    mteb_types = ("Retrieval", "InstructionRetrieval")
    mteb_class = "retrieval.AbsTaskRetrieval"
    main_score = "ndcg_at_10"
    searches = True

    def recognises(self, folder: TaskFolder) -> bool:
        """A corpus and queries."""
        return all(folder.file(stem) for stem in ("corpus", "queries"))

    def read(self, folder: TaskFolder) -> Data:
        """Documents, judgements, and the queries that have a relevant document."""
        corpus_file, queries_file = folder.table("corpus"), folder.table("queries")
        corpus = read_columns(corpus_file, {"_id": columns.new_id(), "text": columns.text, "title": columns.title})
        queries = read_columns(queries_file, {"_id": columns.new_id(), "text": columns.text})
        judged: dict[str, ColumnReader] = {
            "query-id": columns.id_of("query", queries, queries_file),
            "corpus-id": columns.identifier,
            "score": columns.judged_once(columns.gain),
        }
        judgements = _judgements_of(folder)
        qrels = read_columns(judgements, judged)
        _check_judged_documents(folder, judgements, corpus_file, {row["_id"] for row in corpus}, qrels)
        answered = {row["query-id"] for row in qrels if row["score"] > 0}
        unanswered = {row["query-id"] for row in qrels} - answered
        if answered and unanswered:
            say(
                f"{folder.path.name}: {len(unanswered)} queries are left out, since none of their judged documents is relevant."
            )
        return {"corpus": corpus, "queries": [row for row in queries if row["_id"] in answered], "qrels": qrels}

    def sample(self, data: Data, limit: int, generator: random.Random) -> Data:
        """Queries at random, their relevant documents, and ten others for each query."""
        part = _judged(super().sample(data, limit, generator))
        relevant = _relevant(part)
        irrelevant = [row for row in data["corpus"] if row["_id"] not in relevant]
        distractors = sampled(generator, irrelevant, limit * DOCUMENTS_PER_QUERY)
        return _with_documents(part, {row["_id"] for row in distractors})

    def first_items(self, data: Data, size: int, seed: int) -> Data:
        """The first queries, their relevant documents, and the first documents of the order that the seed draws."""
        documents = drawn_order(len(data["corpus"]), seed)[: size * DOCUMENTS_PER_QUERY]
        part = _judged(super().first_items(data, size, seed))
        return _with_documents(part, {data["corpus"][index]["_id"] for index in documents})

    def halves(self, data: Data, seed: int) -> tuple[Data, Data]:
        """Two halves of the queries. Both keep all documents."""
        first, second = super().halves(data, seed)
        return _judged(first), _judged(second)

    def marks(self, data: Data) -> tuple[str, ...]:
        """Whether queries do not find themselves: in older versions they did."""
        return ("queries do not find themselves",) if _holds_its_queries(data) else ()

    def texts_and_pairs(self, data: Data) -> TextsAndPairs:
        """Queries and documents; a query is compared with each document that is relevant to it.

        Training data may hold a document with a title without it, so such a document has two forms.
        """
        texts: list[Forms] = []
        index_of: dict[tuple[str, str], int] = {}
        for part in ("queries", "corpus"):
            for row in data[part]:
                index_of[part, row["_id"]] = len(texts)
                title, text = row.get("title", ""), row["text"].strip()
                joined = f"{title} {row['text']}".strip()
                texts.append((joined, text) if title and text else joined)
        relevant = [row for row in data["qrels"] if row["score"] > 0 and ("corpus", row["corpus-id"]) in index_of]
        return texts, [(index_of["queries", row["query-id"]], index_of["corpus", row["corpus-id"]]) for row in relevant]

    def mteb_settings(self, data: Data) -> dict[str, Any]:
        """A query that is a document, too, does not find itself."""
        return {"ignore_identical_ids": True} if _holds_its_queries(data) else {}

    def mteb_data(self, data: Data) -> Any:
        """Documents, queries and judgements."""
        relevant: dict[str, dict[str, int]] = {}
        for row in data["qrels"]:
            relevant.setdefault(row["query-id"], {})[row["corpus-id"]] = int(row["score"])
        documents = [{"id": row["_id"], "title": row["title"], "text": row["text"]} for row in data["corpus"]]
        queries = [{"id": row["_id"], "text": row["text"]} for row in data["queries"]]
        return search_data(documents, queries, {row["id"]: relevant[row["id"]] for row in queries})

    def items(self, scored: ScoredSubset) -> Items | None:
        """Queries: the measure of each."""
        return ranked_items(scored)


def _judgements_of(folder: TaskFolder) -> Path:
    """The judgements of a folder's split: `qrels_test.tsv`, or `qrels/test.tsv` in BEIR's own layout, in any format of rows."""
    split = (folder.settings.split or "test").removeprefix("qrels_")  # `FOLDER/qrels_dev.tsv` names the file, not the split
    flat, nested = folder.file(f"qrels_{split}"), replace(folder, path=folder.path / "qrels").file(split)
    if flat and nested:
        raise UnmaskError(f"'{flat}' and '{nested}' both hold judgements of one split. Keep one of the two.")
    return nested or folder.table(f"qrels_{split}")


def _check_judged_documents(
    folder: TaskFolder, judgements: Path, corpus: Path, document_ids: set[str], qrels: Sequence[Row]
) -> None:
    """Report judged documents that the corpus lacks, as in BEIR's ArguAna. Raises UnmaskError if it lacks all relevant ones.

    Their judgements are kept: trec_eval, BEIR and mteb count them as relevant documents that were not retrieved.
    """
    absent = dict.fromkeys(row["corpus-id"] for row in qrels if row["corpus-id"] not in document_ids)
    if not absent:
        return
    example = next(iter(absent))
    if not any(row["corpus-id"] in document_ids and row["score"] > 0 for row in qrels):
        raise UnmaskError(f"{judgements}: no relevant document is in {corpus}; there is no document '{example}', for instance.")
    say(
        f"{folder.path.name}: {counted(len(absent), 'judged document')}, such as '{example}', not in the corpus. They count as documents "
        "that were not retrieved, as in BEIR."
    )


def _holds_its_queries(data: Data) -> bool:
    """Whether queries are documents, too, with the same _id and text, but no answers to themselves (ArguAna and Quora in BEIR)."""
    if any(row["query-id"] == row["corpus-id"] and row["score"] > 0 for row in data["qrels"]):
        return False
    words = {row["_id"]: row["text"].split() for row in data["queries"]}
    return any(row["text"].split() == words[row["_id"]] for row in data["corpus"] if row["_id"] in words)


def _judged(data: Data) -> Data:
    """The same data, with the judgements of its queries only."""
    queries = {row["_id"] for row in data["queries"]}
    return {**data, "qrels": [row for row in data["qrels"] if row["query-id"] in queries]}


def _relevant(data: Data) -> set[str]:
    return {row["corpus-id"] for row in data["qrels"]}


def _with_documents(data: Data, document_ids: set[str]) -> Data:
    """The same data, with the judged documents and these others only."""
    retained = _relevant(data) | document_ids
    return {**data, "corpus": [row for row in data["corpus"] if row["_id"] in retained]}
