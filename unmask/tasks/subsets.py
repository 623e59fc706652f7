"""Subsets: the first items of a task in an order that its seed draws. A larger subset holds every smaller one."""

from __future__ import annotations

from dataclasses import replace

from unmask.tasks.kinds import KINDS
from unmask.tasks.task import LocalTask


def subset(task: LocalTask, size: int) -> LocalTask:
    """A task on its first `size` items, or the task itself if it has no more.

    Every class of the task is in each subset, so a subset has at least as many items as there are classes. Classification keeps its
    training texts. Retrieval keeps the documents that are relevant to its queries, and ten others for each query: the task grows with
    its items, so small subsets are easier than large ones, for all designs alike.
    """
    kind = KINDS[task.kind]
    size = max(size, kind.number_of_classes(task.data))
    if size >= task.size:
        return task
    return replace(task, name=f"{task.name}@{size}", data=kind.first_items(task.data, size, task.seed))
