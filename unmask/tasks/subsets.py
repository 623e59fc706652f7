"""Subsets: the first so many items of a task in an order that the seed draws, so that a larger subset holds a smaller one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace

from unmask.io.rows import Row
from unmask.tasks.task import LocalTask

DOCUMENTS_PER_QUERY = 10
"""Documents of a retrieval corpus that a subset draws for each query, beside the relevant ones."""


def subset(task: LocalTask, size: int) -> LocalTask:
    """A task on its first `size` items (queries, for retrieval), in their drawn order; the task itself if it has no more.

    Items that have a class are drawn class by class: every class of the task is in each of its subsets, which are made as large as
    that takes. Of a retrieval corpus the documents that are relevant to these queries stay, and others that the seed draws up to ten a
    query, so that the task grows with its items; that makes small subsets easier than large ones, for every design alike.
    Classification keeps its training texts.
    """
    labels = None if task.kind == "retrieval" else [row.get("label") for row in task.data["test"]]
    size = max(size, len(set(labels or ())))
    if size >= task.size:
        return task
    data = dict(task.data)
    if task.kind == "retrieval":
        data["queries"] = _first(task, data["queries"], size)
        asked = {row["_id"] for row in data["queries"]}
        data["qrels"] = [row for row in data["qrels"] if row["query-id"] in asked]
        relevant = {row["corpus-id"] for row in data["qrels"]}
        others = {row["_id"] for row in _first(task, data["corpus"], size * DOCUMENTS_PER_QUERY)}
        data["corpus"] = [row for row in data["corpus"] if row["_id"] in relevant | others]
    else:
        data["test"] = _first(task, data["test"], size, labels)
    return replace(task, name=f"{task.name}@{size}", data=data)


def drawn_order(count: int, seed: int, classes: Sequence[Hashable] | None = None) -> list[int]:
    """Places of so many items in an order that the seed draws.

    With the class of each item, the first of every class come first, and then the classes in proportion to their sizes, so that every
    beginning of the order that is no shorter than the number of classes holds all of them.
    """
    order = random.Random(seed).sample(range(count), count)
    if classes is None:
        return order
    sizes, seen = Counter(classes), Counter[Hashable]()
    share: dict[int, float] = {}
    for place in order:
        share[place] = seen[classes[place]] / sizes[classes[place]]
        seen[classes[place]] += 1
    return sorted(order, key=lambda place: share[place])


def _first(task: LocalTask, table: Sequence[Row], size: int, classes: Sequence[Hashable] | None = None) -> list[Row]:
    return [table[place] for place in drawn_order(len(table), task.seed, classes)[:size]]
