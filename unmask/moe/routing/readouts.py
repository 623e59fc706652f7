"""Readouts: how much of the labels of texts a linear probe and a clustering read off routing weights, compared with hidden states."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Int

from unmask.io.array_types import NDArray
from unmask.moe.routing.text_bootstrap import Draws, Measured, bootstrap_texts, measured
from unmask.statistics.information import adjusted_mutual_information

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


def clusters(vectors: Vectors, number: int, seed: int = 0) -> Int[NDArray[np.int64], " text"]:
    """The cluster of each text, by k-means on standardised vectors (ten starts)."""
    from sklearn.cluster import KMeans

    spread = vectors.std(axis=0)
    standard = (vectors - vectors.mean(axis=0)) / np.where(spread > 1e-12, spread, 1.0)
    return np.asarray(KMeans(min(number, len(vectors)), n_init=10, random_state=seed).fit_predict(standard), np.int64)


_READ = 2000


def texts_to_read(number: int, seed: int) -> NDArray[np.int64]:
    """The places of the texts that probes are fitted on: all, or a sample of 2 000."""
    if number <= _READ:
        return np.arange(number)
    return np.sort(np.random.default_rng(seed).choice(number, _READ, replace=False))


def read_out(
    routing: NDArray[np.float32], hidden: NDArray[np.float32], labels: NDArray[np.int64], draws: Draws
) -> dict[str, Any]:
    """Read the labels of texts off two vectors of each, as JSON. routing, hidden: (text, dim).

    probes: accuracy of a linear probe on held-out texts; empty if a label has fewer than five texts. difference: routing minus hidden,
    paired by text. groups: AMI of as many clusters as there are labels. majority: accuracy of the most frequent label.
    """
    labels = np.unique(labels, return_inverse=True)[1].astype(np.int64)
    vectors = {"routing": routing, "hidden": hidden}
    correct = {name: probe_correct(features, labels, draws.seed) for name, features in vectors.items()}
    probed = {name: hits for name, hits in correct.items() if hits is not None}
    return {
        "texts": len(labels),
        "majority": float(np.bincount(labels).max() / len(labels)),
        "probes": {name: _mean(hits, draws).as_json() for name, hits in probed.items()},
        "difference": _mean(probed["routing"] - probed["hidden"], draws).as_json() if probed else None,
        "groups": {
            name: _agreement(clusters(features, int(labels.max()) + 1, draws.seed), labels, draws).as_json()
            for name, features in vectors.items()
        },
    }


def _mean(values: NDArray[np.float64], draws: Draws) -> Measured:
    samples = bootstrap_texts(
        lambda weights: weights @ values / len(values), len(values), resamples=draws.resamples, seed=draws.seed
    )
    return measured(float(values.mean()), samples)


def _agreement(groups: NDArray[np.int64], labels: NDArray[np.int64], draws: Draws) -> Measured:
    """AMI, and its resamples with fixed clusters."""
    size = int(max(groups.max(), labels.max())) + 1

    def statistic(weights: NDArray[np.float64]) -> NDArray[np.float64]:
        tables = [np.bincount(groups * size + labels, row, minlength=size * size).reshape(size, size) for row in weights]
        return np.array([adjusted_mutual_information(table) for table in tables])

    samples = bootstrap_texts(statistic, len(labels), resamples=draws.token_resamples, seed=draws.seed)
    return measured(float(statistic(np.ones((1, len(labels))))[0]), samples)
