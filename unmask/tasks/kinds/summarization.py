"""Summarization: machine summaries with human scores, and summaries by people to hold them against."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from unmask.io.rows import Row
from unmask.statistics.bootstrap import Items
from unmask.tasks import columns
from unmask.tasks.columns import ColumnReader
from unmask.tasks.folder import TaskFolder
from unmask.tasks.kinds.kind import Data, TextKind
from unmask.tasks.mteb.scored import ScoredSubset
from unmask.tasks.mteb.tables import split_table


class Summarization(TextKind):
    """Texts with summaries: how well cosines with the references rank the machine summaries."""

    name = "summarization"
    heading = "summ"
    layout = "test.jsonl: source, references[], systems[{summary, scores}]"
    metric = "Spearman per document"
    example: ClassVar[dict[str, Row]] = {
        "test.jsonl": {
            "source": "The bridge was closed on Monday after a crack was found. It will open again in May.",
            "references": ["A crack closed the bridge until May."],
            "systems": [
                {"summary": "A bridge is closed until May.", "scores": {"relevance": 4.5, "fluency": 5}},
                {"summary": "It is Monday.", "scores": {"relevance": 1, "fluency": 5}},
            ],
        }
    }
    readers: ClassVar[dict[str, ColumnReader]] = {
        "source": columns.text,
        "references": columns.some(columns.texts),
        "summaries": columns.some(columns.summaries),
    }
    mteb_types = ("Summarization",)
    mteb_class = "text.summarization.AbsTaskSummarization"
    main_score = "cosine_spearman"

    def file_columns(self, folder: TaskFolder) -> dict[str, str]:
        """Files call machine summaries systems."""
        return {"summaries": "systems"}

    def nothing_to_tell(self, data: Data) -> str | None:
        """All summaries of each text have one score."""
        is_constant = all(len({score for _, score in row["summaries"]}) < 2 for row in data["test"])
        return "humans gave all summaries of a text the same score, so there is nothing to rank" if is_constant else None

    def texts_of(self, row: Row) -> tuple[list[str], list[int]]:
        """Text, references and summaries."""
        return [row["source"], *row["references"], *(summary for summary, _ in row["summaries"])], []

    def mteb_settings(self, data: Data) -> dict[str, Any]:
        """The range of the human scores."""
        scores = [score for row in data["test"] for _, score in row["summaries"]]
        return {"min_score": min(scores), "max_score": max(scores)}

    def mteb_data(self, data: Data) -> Any:
        """The columns under mteb's names."""
        return split_table(
            [
                {
                    "text": row["source"],
                    "human_summaries": row["references"],
                    "machine_summaries": [summary for summary, _ in row["summaries"]],
                    "relevance": [score for _, score in row["summaries"]],
                }
                for row in data["test"]
            ]
        )

    def items(self, scored: ScoredSubset) -> Items | None:
        """Texts: the correlation over the summaries of each."""
        from scipy.stats import spearmanr

        pairs = list(zip(scored.predicted["human_scores"], scored.predicted["cosine_scores"], strict=True))
        if len(pairs) != sum(len(set(scores)) > 1 for scores in scored.data[scored.task.relevancy_column_name]):
            return None  # mteb skips texts whose summaries have equal vectors, and then designs are not paired
        return Items("mean", {"value": np.array([spearmanr(human, cosine).statistic for human, cosine in pairs])})
