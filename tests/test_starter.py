"""The starter tasks: complete, balanced, free of duplicates, consistent, and not solved by counting shared words."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import spearmanr

STARTER = Path(__file__).parents[1] / "unmask" / "starter"
ROWS = {
    "sts/test.jsonl": (120, {"sentence1", "sentence2", "score"}),
    "classification/train.jsonl": (72, {"text", "label"}),
    "classification/test.jsonl": (84, {"text", "label"}),
    "clustering/all.jsonl": (120, {"text", "label"}),
    "retrieval/corpus.jsonl": (80, {"_id", "title", "text"}),
    "retrieval/queries.jsonl": (50, {"_id", "text"}),
}


def rows(file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (STARTER / file).read_text(encoding="utf-8").splitlines()]


def texts(file: str) -> list[str]:
    """Every text to be embedded; a base sentence of the graded pairs, which recurs by design, counts once."""
    if file.startswith("sts"):
        return [*{row["sentence1"] for row in rows(file)}, *(row["sentence2"] for row in rows(file))]
    return [row["text"] for row in rows(file)]


@pytest.mark.parametrize("file", ROWS)
def test_files_are_complete_and_balanced(file: str) -> None:
    count, columns = ROWS[file]
    assert len(rows(file)) == count and all(set(row) == columns for row in rows(file))
    if "label" in columns:
        assert list(Counter(row["label"] for row in rows(file)).values()) == [count // 6] * 6


def test_no_text_occurs_twice() -> None:
    reference = (STARTER / "reference.txt").read_text(encoding="utf-8").splitlines()
    for files in (["sts/test.jsonl"], [name for name in ROWS if not name.startswith("sts")]):
        counts = Counter(text for part in [reference, *map(texts, files)] for text in part)
        assert [text for text, count in counts.items() if count > 1] == []


def test_word_overlap_alone_ranks_the_pairs_badly() -> None:
    def jaccard(row: dict[str, Any]) -> float:
        first, second = (set(re.findall(r"\w+", row[side].lower())) for side in ("sentence1", "sentence2"))
        return len(first & second) / len(first | second)

    pairs = rows("sts/test.jsonl")
    overlap = float(spearmanr([jaccard(row) for row in pairs], [float(row["score"]) for row in pairs]).statistic)
    assert overlap < 0.6
    assert f"Spearman {overlap:.2f} (Jaccard overlap)" in (STARTER / "README.md").read_text(encoding="utf-8")


def test_every_question_has_one_or_two_relevant_passages() -> None:
    queries, passages = ({row["_id"] for row in rows(f"retrieval/{name}.jsonl")} for name in ("queries", "corpus"))
    lines = (STARTER / "retrieval/qrels_test.tsv").read_text(encoding="utf-8").splitlines()[1:]
    judged = [(query, passage) for query, passage, _ in (line.split("\t") for line in lines)]
    assert (len(queries), len(passages), len(set(judged))) == (50, 80, len(judged))
    assert {passage for _, passage in judged} <= passages
    relevant = Counter(query for query, _ in judged)
    assert set(relevant) == queries and set(relevant.values()) <= {1, 2}
