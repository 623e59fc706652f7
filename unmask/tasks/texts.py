"""Scored texts: what a task puts before a model, so that training data can be held against it."""

from __future__ import annotations

from unmask.tasks.task import LocalTask

Scored = tuple[list[str], list[tuple[int, int]]]
"""Texts that a task scores, and the positions of those that it compares."""


def scored_texts(task: LocalTask) -> Scored:
    """The texts of a task's test part, its documents included, and which of them it compares."""
    texts: list[str] = []
    pairs: list[tuple[int, int]] = []
    if task.kind == "retrieval":
        places = {}
        for part in ("queries", "corpus"):
            for row in task.data[part]:
                places[part, row["_id"]] = len(texts)
                texts.append(f"{row.get('title', '')} {row['text']}".strip())
        for row in task.data["qrels"]:
            if row["score"] > 0:
                pairs.append((places["queries", row["query-id"]], places["corpus", row["corpus-id"]]))
        return texts, pairs
    for row in task.data["test"]:
        start = len(texts)
        if task.kind in ("sts", "pair-classification"):
            texts += [row["sentence1"], row["sentence2"]]
            pairs.append((start, start + 1))
        elif task.kind == "reranking":
            texts += [row["query"], *row["positive"], *row["negative"]]
            pairs += [(start, start + place) for place in range(1, len(row["positive"]) + 1)]
        elif task.kind == "summarization":
            texts += [row["source"], *row["references"], *(summary for summary, _ in row["summaries"])]
        else:
            texts.append(" ".join(row["tokens"]) if task.kind == "word-level" else row["text"])
    return texts, pairs
