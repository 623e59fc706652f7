"""Reranking: a query with good and bad candidates."""

from __future__ import annotations

from typing import Any, ClassVar

from unmask.io.rows import Row
from unmask.io.terminal import say
from unmask.statistics.bootstrap import Items
from unmask.tasks import columns
from unmask.tasks.columns import ColumnReader
from unmask.tasks.folder import TaskFolder
from unmask.tasks.kinds.kind import Data, TextKind
from unmask.tasks.mteb.ranking import ranked_items
from unmask.tasks.mteb.scored import ScoredSubset
from unmask.tasks.mteb.tables import search_data


class Reranking(TextKind):
    """Queries with candidates: how near the top the good candidates are ranked."""

    name = "reranking"
    heading = "rerank"
    layout = "test.jsonl: query, positive[], negative[]"
    metric = "MAP"
    example: ClassVar[dict[str, Row]] = {
        "test.jsonl": {
            "query": "How many strings has a guitar?",
            "positive": ["It has six strings."],
            "negative": ["Guitars are made of wood.", "A violin has four strings."],
        }
    }
    readers: ClassVar[dict[str, ColumnReader]] = {"query": columns.text, "positive": columns.texts, "negative": columns.texts}
    mteb_types = ("Reranking", "InstructionReranking")
    mteb_class = "retrieval.AbsTaskRetrieval"
    main_score = "map_at_1000"
    searches = True

    def read(self, folder: TaskFolder) -> Data:
        """Queries with at least one good and one bad candidate; any other has the same score under every model."""
        rows = super().read(folder)["test"]
        usable = [row for row in rows if row["positive"] and row["negative"]]
        if usable and len(usable) < len(rows):
            say(
                f"{folder.path.name}: {len(rows) - len(usable)} of {len(rows)} queries lack good or bad candidates and are left out."
            )
        return {"test": usable}

    def texts_of(self, row: Row) -> tuple[list[str], list[int]]:
        """Query and candidates; the query is compared with the good ones."""
        return [row["query"], *row["positive"], *row["negative"]], list(range(1, len(row["positive"]) + 1))

    def mteb_data(self, data: Data) -> Any:
        """Candidates as documents, and the candidates of each query."""
        documents, queries = [], []
        relevant: dict[str, dict[str, int]] = {}
        ranked: dict[str, list[str]] = {}
        for number, row in enumerate(data["test"]):
            query = f"q{number}"
            queries.append({"id": query, "text": row["query"]})
            candidates = [(text, 1) for text in row["positive"]] + [(text, 0) for text in row["negative"]]
            # the names that mteb gives them: ties are ranked by descending name, so a tie never favours a positive
            ids = [f"{'apositive' if good else 'negative'}_{query}_{index}" for index, (_, good) in enumerate(candidates)]
            documents += [{"id": key, "title": "", "text": text} for key, (text, _) in zip(ids, candidates, strict=True)]
            relevant[query] = {key: good for key, (_, good) in zip(ids, candidates, strict=True)}
            ranked[query] = ids
        return search_data(documents, queries, relevant, ranked)

    def items(self, scored: ScoredSubset) -> Items | None:
        """Queries: the measure of each."""
        return ranked_items(scored)
