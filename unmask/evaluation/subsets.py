"""Subsets: the first so many items of a task in an order that the seed draws, so that a larger subset holds a smaller one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from unmask.evaluation.tasks import LocalTask
from unmask.rows import Row

_DOCUMENTS_PER_QUERY = 10


def subset(task: LocalTask, size: int) -> LocalTask:
    """A task on its first `size` items (queries, for retrieval), in their drawn order; the task itself if it has no more.

    Of a retrieval corpus the documents that are relevant to these queries stay, and others that the seed draws up to ten a query, so
    that the task grows with its items; that makes small subsets easier than large ones, for every design alike.
    Classification keeps its training texts.
    """
    if size >= task.size:
        return task
    data = dict(task.data)
    if task.kind == "retrieval":
        data["queries"] = _first(task, data["queries"], size)
        asked = {row["_id"] for row in data["queries"]}
        data["qrels"] = [row for row in data["qrels"] if row["query-id"] in asked]
        relevant = {row["corpus-id"] for row in data["qrels"]}
        others = {row["_id"] for row in _first(task, data["corpus"], size * _DOCUMENTS_PER_QUERY)}
        data["corpus"] = [row for row in data["corpus"] if row["_id"] in relevant | others]
    else:
        data["test"] = _first(task, data["test"], size)
    return replace(task, name=f"{task.name}@{size}", data=data)


def _first(task: LocalTask, table: Sequence[Row], size: int) -> list[Row]:
    order = random.Random(task.seed).sample(range(len(table)), len(table))
    return [table[index] for index in order[:size]]
