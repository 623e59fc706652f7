"""Pair classification: two sentences, and whether they mean the same."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import numpy as np

from unmask.io.rows import Row
from unmask.statistics.bootstrap import Items, score
from unmask.tasks import columns
from unmask.tasks.columns import ColumnReader
from unmask.tasks.kinds.kind import Data, TextKind
from unmask.tasks.mteb.scored import ScoredSubset
from unmask.tasks.mteb.tables import split_table

# what mteb calls a similarity -> where it saves it, and the sign with which larger means nearer
_NEARNESS: Final = {
    "similarity": ("similarity_scores", 1),
    "cosine": ("cosine_scores", 1),
    "dot": ("dot_scores", 1),
    "manhattan": ("manhattan_distances", -1),
    "euclidean": ("euclidean_distances", -1),
}


class PairClassification(TextKind):
    """Sentence pairs with a label of 0 or 1: how well cosines separate them."""

    name = "pair-classification"
    heading = "pairs"
    layout = "test.jsonl: sentence1, sentence2, label (0/1)"
    metric = "average precision"
    example: ClassVar[dict[str, Row]] = {
        "test.jsonl": {"sentence1": "How do I reset my password?", "sentence2": "I forgot my password.", "label": 1}
    }
    readers: ClassVar[dict[str, ColumnReader]] = {
        "sentence1": columns.text,
        "sentence2": columns.text,
        "label": columns.zero_or_one,
    }
    gold = "label"
    named = frozenset({"label"})
    mteb_types = ("PairClassification",)
    mteb_class = "AbsTaskPairClassification"
    main_score = "cosine_ap"

    def texts_of(self, row: Row) -> tuple[list[str], list[int]]:
        """Both sentences, which are compared."""
        return [row["sentence1"], row["sentence2"]], [1]

    def mteb_settings(self, data: Data) -> dict[str, Any]:
        """The names of the columns."""
        return {"input1_column_name": "sentence1", "input2_column_name": "sentence2", "label_column_name": "label"}

    def mteb_data(self, data: Data) -> Any:
        """Pairs with whole numbers for labels."""
        return split_table([{**row, "label": int(row["label"])} for row in data["test"]])

    def items(self, scored: ScoredSubset) -> Items | None:
        """Pairs, by the similarity that the main score names; `max_ap` means the similarity that separates best."""
        table = scored.data
        labels = table[scored.task.label_column_name]
        labels = np.array(labels[0] if len(labels) == 1 else labels, int)  # mteb's older sets hold all pairs in one row
        similarity, _, measure = scored.metric.rpartition("_")
        if measure != "ap":
            return None
        choices = [
            Items("average-precision", {"predicted": sign * np.array(scored.predicted[key], float), "label": labels})
            for name, (key, sign) in _NEARNESS.items()
            if similarity in ("max", name)
        ]
        return max(choices, key=score)
