"""Items of every metric, with many ties."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from unmask.statistics.bootstrap import Items


def items_of(metric: str, **columns: ArrayLike) -> Items:
    return Items(metric, {name: np.asarray(column) for name, column in columns.items()})


def random_items(metric: str, n: int = 40, seed: int = 0, design: int = 0) -> Items:
    """Items with many ties: what is given depends on the seed, what is made on the design too."""
    task, made = np.random.default_rng([seed, 0]), np.random.default_rng([seed, 1, design])
    if metric == "mean":
        return Items(metric, {"value": made.integers(0, 3, n) / 2})
    if metric == "spearman":
        return Items(metric, {"gold": task.integers(0, 6, n), "predicted": made.integers(0, 9, n) / 8})
    if metric == "average-precision":
        label = task.permutation(np.arange(n) < max(1, n // 3))
        return Items(metric, {"label": label.astype(int), "predicted": made.integers(-4, 5, n) / 8})
    if metric == "ratio":  # entities given and predicted, and how many of them are one
        gold, predicted = task.integers(0, 3, n), made.integers(0, 3, n)
        found = np.minimum(gold, np.minimum(predicted, made.integers(0, 3, n)))
        return Items(metric, {"gold": gold, "above": 2 * found, "below": gold + predicted})
    label = task.integers(0, 4, (n, 3))
    assigned = np.where(made.random((n, 3)) < 0.5, label, made.integers(5, 9, (n, 3)))
    return Items(metric, {"label": label, "assigned": assigned})
