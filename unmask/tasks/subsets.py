"""Parts of a task: its first items in an order that its seed draws, and two halves without a common item."""

from __future__ import annotations

from dataclasses import replace

from unmask.tasks.kinds import KINDS
from unmask.tasks.task import LocalTask


def subset(task: LocalTask, size: int) -> LocalTask:
    """A task on its first `size` items, or the task itself if it has no more.

    Every class of the task is in each subset, so a subset has at least as many items as there are classes. Classification keeps its
    training texts. Retrieval keeps the documents that are relevant to its queries, and ten others for each query: the task grows with
    its items, so small subsets are easier than large ones, equally for all designs.
    """
    kind = KINDS[task.kind]
    size = max(size, kind.number_of_classes(task.data))
    if size >= task.size:
        return task
    return replace(task, name=f"{task.name}@{size}", data=kind.first_items(task.data, size, task.seed))


def halves(task: LocalTask) -> tuple[LocalTask, LocalTask]:
    """A task on two halves of its items: one to choose a design on, and one to estimate the score of the chosen design."""
    parts = KINDS[task.kind].halves(task.data, task.seed)
    names = f"{task.name}/chosen-on", f"{task.name}/held-out"
    first, second = (replace(task, name=name, data=data) for name, data in zip(names, parts, strict=True))
    return first, second
