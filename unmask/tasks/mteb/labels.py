"""Labels of classification tasks in memory, because mteb reads them one by one from `datasets`, which is slow.

mteb reads each training label in each of ten experiments, and each test label for each of its scores. This took most of the time. Then
came the scores themselves: mteb computes nine in each experiment, and two are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def read_labels_once(task: Any) -> None:
    """Keep the labels of an mteb classification task in memory, and compute no score that is not kept.

    Tasks with a custom protocol, or with a main score other than accuracy and F1, are scored by mteb's own code.
    """
    from mteb.abstasks import AbsTaskClassification

    if hasattr(task, "_undersample_data"):
        cache: dict[int, _WithLabels] = {}
        draw = task._undersample_data

        def drawn(dataset: Any, *args: Any, **options: Any) -> Any:
            if id(dataset) not in cache:
                cache[id(dataset)] = _WithLabels(dataset, task.label_column_name)
            return draw(cache[id(dataset)], *args, **options)

        task._undersample_data = drawn
    uses_mteb_scoring = getattr(type(task), "_calculate_scores", None) is AbsTaskClassification._calculate_scores
    if uses_mteb_scoring and task.metadata.main_score in ("accuracy", "f1"):
        task._calculate_scores = accuracy_and_f1


def accuracy_and_f1(gold: Sequence[Any], predicted: Any) -> dict[str, float]:
    """Accuracy, and the mean of F1 over the labels that occur (scikit-learn's macro F1): 2 hits / (texts + predictions) of each.

    mteb would also compute the average precision of label 1 where test texts have two labels, and fail if they are 0 and 2.
    """
    labels = np.asarray(gold[:])
    texts = len(labels)
    _, codes = np.unique(np.concatenate([labels, np.asarray(predicted)]), return_inverse=True)
    right = codes[:texts] == codes[texts:]
    hits = np.bincount(codes[:texts][right], minlength=codes.max() + 1)
    return {"accuracy": float(right.mean()), "f1": float(np.mean(2 * hits / np.bincount(codes)))}


class _WithLabels:
    """A data set with its labels as a list. Everything else is passed to the data set."""

    def __init__(self, dataset: Any, column: str) -> None:
        self._dataset, self._column, self._labels = dataset, column, list(dataset[column][:])

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, column: Any) -> Any:
        return self._labels if column == self._column else self._dataset[column]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)
