"""Labels of classification tasks in memory, because mteb reads them one by one from `datasets`, which is slow.

mteb reads each training label in each of ten experiments, and each test label for each of its scores. This took most of the time. Then
came the scores themselves: mteb computes nine in each experiment, and two are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def read_labels_once(task: Any) -> None:
    """Keep the labels of an mteb classification task in memory, and compute no score that is not kept.

    Tasks with a custom protocol are left unchanged.
    """
    from mteb.abstasks import AbsTaskClassification

    if hasattr(task, "_undersample_data"):
        task._undersample_data = _drawing(task, task._undersample_data)
    if hasattr(task, "_calculate_scores"):
        usual = type(task)._calculate_scores is AbsTaskClassification._calculate_scores
        enough = usual and task.metadata.main_score in ("accuracy", "f1")
        task._calculate_scores = _scoring(_accuracy_and_f1 if enough else task._calculate_scores)


def _drawing(task: Any, draw: Callable[..., Any]) -> Callable[..., Any]:
    cache: dict[int, WithLabels] = {}

    def drawn(dataset: Any, *args: Any, **options: Any) -> Any:
        if id(dataset) not in cache:
            cache[id(dataset)] = WithLabels(dataset, task.label_column_name)
        return draw(cache[id(dataset)], *args, **options)

    return drawn


def _accuracy_and_f1(gold: Sequence[Any], predicted: Any) -> dict[str, float]:
    """Accuracy, and the mean of F1 over the labels that occur (scikit-learn's macro F1): 2 hits / (texts + predictions) of each."""
    texts = len(gold)
    _, codes = np.unique(np.concatenate([np.asarray(gold), np.asarray(predicted)]), return_inverse=True)
    right = codes[:texts] == codes[texts:]
    hits = np.bincount(codes[:texts][right], minlength=codes.max() + 1)
    return {"accuracy": float(right.mean()), "f1": float(np.mean(2 * hits / np.bincount(codes)))}


def _scoring(score: Callable[..., Any]) -> Callable[..., Any]:
    def scored(gold: Any, predicted: Any, *args: Any, **options: Any) -> Any:
        labels = gold[:]
        if np.ndim(labels) == 1 and len(set(labels)) == 2 and 1 not in labels:
            labels, predicted = _numbered(labels, predicted)
        return score(labels, predicted, *args, **options)

    return scored


def _numbered(gold: Sequence[Any], predicted: Any) -> tuple[list[int], NDArray[np.int64]]:
    """The same labels, renumbered so that the labels of the test texts are 0 and 1. This changes neither accuracy nor F1.

    mteb takes test texts of two labels for a binary task, and asks for the average precision of label 1. Three classes of which the
    test texts hold 0 and 2 have none.
    """
    labels = np.asarray(predicted).tolist()
    order = [*sorted(set(gold)), *sorted(set(labels) - set(gold))]
    number = {label: index for index, label in enumerate(order)}
    return [number[label] for label in gold], np.array([number[label] for label in labels])


class WithLabels:
    """A data set with its labels as a list. Everything else is passed to the data set."""

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
