"""Readout: how much of the labels of texts a linear probe, or a grouping without labels, reads off a vector for each text."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Int

from unmask.io.array_types import NDArray

FOLDS = 5

Vectors = Float[NDArray[Any], "text dim"]
Labels = Int[NDArray[Any], " text"]


def probe_correct(vectors: Vectors, labels: Labels, seed: int = 0) -> Float[NDArray[np.float64], " text"] | None:
    """For each text, whether logistic regression that was fitted on other texts tells its label (1 or 0).

    Five folds with the same labels in each; dimensions are standardised on the texts that are fitted. None if a label has fewer than five
    texts.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    counts = np.bincount(labels)
    if counts[counts > 0].min() < FOLDS or (counts > 0).sum() < 2:
        return None
    correct = np.zeros(len(labels))
    for fit, test in StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(vectors, labels):
        probe = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=2000))
        probe.fit(vectors[fit], labels[fit])
        correct[test] = probe.predict(vectors[test]) == labels[test]
    return correct


def chance_accuracy(labels: Labels) -> float:
    """The accuracy of always guessing the most frequent label."""
    return float(np.bincount(labels).max() / len(labels))


def clusters(vectors: Vectors, number: int, seed: int = 0) -> Int[NDArray[np.int64], " text"]:
    """The cluster of each text, by k-means on standardised vectors (ten starts)."""
    from sklearn.cluster import KMeans

    spread = vectors.std(axis=0)
    standard = (vectors - vectors.mean(axis=0)) / np.where(spread > 1e-12, spread, 1.0)
    return np.asarray(KMeans(min(number, len(vectors)), n_init=10, random_state=seed).fit_predict(standard), np.int64)
