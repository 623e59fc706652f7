"""Labels of classification tasks, as lists: mteb asks `datasets` for a column, which makes a row for every look at one of its labels.

It looks at each training label in each of ten experiments, and at each test label for each of its scores: that was most of the time
that scoring took.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def read_labels_once(task: Any) -> None:
    """Let an mteb classification task draw and score as it does, with labels in memory; nothing for one that does so in another way."""
    for name, wrap in (("_undersample_data", _drawing), ("_calculate_scores", _scoring)):
        if hasattr(task, name):
            setattr(task, name, wrap(task, getattr(task, name)))


def _drawing(task: Any, draw: Callable[..., Any]) -> Callable[..., Any]:
    held: dict[int, WithLabels] = {}

    def drawn(dataset: Any, *given: Any, **named: Any) -> Any:
        if id(dataset) not in held:
            held[id(dataset)] = WithLabels(dataset, task.label_column_name)
        return draw(held[id(dataset)], *given, **named)

    return drawn


def _scoring(_: Any, score: Callable[..., Any]) -> Callable[..., Any]:
    return lambda gold, *given, **named: score(gold[:], *given, **named)


class WithLabels:
    """A data set one of whose columns is a list; in all else it is the data set itself."""

    def __init__(self, dataset: Any, column: str) -> None:
        self._dataset, self._column, self._labels = dataset, column, list(dataset[column][:])

    def __len__(self) -> int:
        """Its rows."""
        return len(self._dataset)

    def __getitem__(self, column: Any) -> Any:
        """A column, or rows."""
        return self._labels if column == self._column else self._dataset[column]

    def __getattr__(self, name: str) -> Any:
        """Whatever else a data set can do."""
        return getattr(self._dataset, name)
