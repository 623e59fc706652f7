"""STS: two sentences and how similar people find them."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from unmask.io.rows import Row
from unmask.statistics.bootstrap import Items
from unmask.tasks import columns
from unmask.tasks.columns import ColumnReader
from unmask.tasks.kinds.kind import Data, TextKind
from unmask.tasks.mteb.scored import ScoredSubset


class Sts(TextKind):
    """Sentence pairs with a score: how well cosines rank them."""

    name = "sts"
    title = "STS"
    layout = "test.jsonl: sentence1, sentence2, score"
    metric = "Spearman of cosine"
    example: ClassVar[dict[str, Row]] = {
        "test.jsonl": {"sentence1": "A man plays a guitar.", "sentence2": "Someone makes music.", "score": 3.8}
    }
    readers: ClassVar[dict[str, ColumnReader]] = {"sentence1": columns.text, "sentence2": columns.text, "score": columns.number}
    gold = "score"
    mteb_types = ("STS",)
    mteb_class = "AbsTaskSTS"
    main_score = "cosine_spearman"

    def texts_of(self, row: Row) -> tuple[list[str], list[int]]:
        """Both sentences, which are compared."""
        return [row["sentence1"], row["sentence2"]], [1]

    def mteb_settings(self, data: Data) -> dict[str, Any]:
        """The range of the scores."""
        scores = [row["score"] for row in data["test"]]
        return {"min_score": min(scores), "max_score": max(scores)}

    def items(self, scored: ScoredSubset) -> Items:
        """Pairs: cosine and human score of each."""
        gold = np.array(scored.data["score"], float)
        return Items("spearman", {"predicted": np.array(scored.predicted["cosine_scores"]), "gold": gold})
