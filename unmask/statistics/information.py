"""Entropy and mutual information of discrete distributions, in nats."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Real

from unmask.io.array_types import NDArray


def mutual_information(joint: Float[NDArray[Any], "*batch row column"]) -> Float[NDArray[np.float64], "*batch"]:
    """I(row; column) of joint probabilities that sum to 1."""
    independent = joint.sum(axis=-1, keepdims=True) * joint.sum(axis=-2, keepdims=True)
    terms = np.where(joint > 0, joint * np.log(np.maximum(joint, 1e-300) / np.maximum(independent, 1e-300)), 0.0)
    return np.asarray(terms.sum(axis=(-2, -1)))


def entropy(probabilities: Float[NDArray[Any], "*batch outcome"]) -> Float[NDArray[np.float64], "*batch"]:
    """Entropy over the last axis."""
    return np.asarray(-(probabilities * np.log(np.maximum(probabilities, 1e-300))).sum(axis=-1))


def adjusted_mutual_information(table: Real[NDArray[Any], "row column"]) -> float:
    """AMI of a contingency table, normalised by the mean of the entropies (Vinh et al., 2010); 1 if both labellings have one class."""
    from sklearn.metrics.cluster import expected_mutual_information

    counts = np.rint(table).astype(np.int64)
    counts = counts[counts.any(axis=1)][:, counts.any(axis=0)]
    joint = counts / counts.sum()
    upper = float(entropy(joint.sum(axis=0)) + entropy(joint.sum(axis=1))) / 2
    expected = float(expected_mutual_information(counts, int(counts.sum())))
    return (float(mutual_information(joint)) - expected) / (upper - expected) if upper - expected > 1e-12 else 1.0
