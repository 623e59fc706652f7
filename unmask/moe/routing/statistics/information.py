"""Information: how much the choice of an expert tells about a label, and how far the experts of a label differ from those of all.

| measure | formula | range |
|---|---|---|
| information | I(L; E) / H(L), I = sum p(l, e) log p(l, e) / (p(l) p(e)) | 0 (independent) to 1 (the expert determines the label) |
| specialisation | mean over labels of 1/2 sum over e of abs(p(e given l) - p(e)) | 0 (all labels use the same experts) to 1 - 1/L |

Every label of texts has the same weight, and so has every text of a label: a large domain or a long text counts no more than others.
Labels of tokens (tags) weigh as much as they occur. p(e given l) is the domain specialisation of OLMoE (arXiv 2409.02060, section 5.3).
Both measures are above 0 by chance. They are measured on first choices ("hard") or on probabilities ("soft") alike.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Int

from unmask.io.array_types import NDArray
from unmask.statistics.information import entropy, mutual_information

Shares = Float[NDArray[Any], "text point expert"]
"""The share of each text's tokens that each expert gets, at each routing point."""
Joint = Float[NDArray[Any], "*batch label expert"]
"""Probabilities of label and expert together; they sum to 1."""


def joint_of_texts(
    shares: Shares, labels: Int[NDArray[Any], " text"], weights: Float[NDArray[Any], "resample text"]
) -> Float[NDArray[np.float64], "resample point label expert"]:
    """Label and expert together, where a text has one label. Every label has the same weight, whatever the number of its texts."""
    texts, points, experts = shares.shape
    flat, known = shares.reshape(texts, -1), np.unique(labels)
    parts = []
    for label in known:
        own = labels == label
        drawn = weights[:, own]
        parts.append(drawn @ flat[own] / drawn.sum(axis=1, keepdims=True) / len(known))
    return np.stack(parts, axis=1).reshape(len(weights), len(known), points, experts).swapaxes(1, 2)


def joint_of_tokens(
    tables: Float[NDArray[Any], "text label expert"], weights: Float[NDArray[Any], "resample text"]
) -> Float[NDArray[np.float64], "resample label expert"]:
    """Label and expert together, where each token has a label. tables: for each text, how often they occur together."""
    sums = (weights @ tables.reshape(len(tables), -1)).reshape(len(weights), *tables.shape[1:])
    return np.asarray(sums / np.maximum(sums.sum(axis=(1, 2), keepdims=True), 1e-300))


def normalised_information(joint: Joint) -> Float[NDArray[np.float64], "*batch"]:
    """I(L; E) / H(L); 0 if all labels are the same."""
    most = entropy(joint.sum(axis=-1))
    return np.asarray(np.where(most > 1e-12, mutual_information(joint) / np.maximum(most, 1e-12), 0.0))


def specialisation(joint: Joint) -> Float[NDArray[np.float64], "*batch"]:
    """How far the experts of one label differ from those of all labels: total variation, the mean over labels by their weight."""
    label = joint.sum(axis=-1, keepdims=True)
    apart = label * joint.sum(axis=-2, keepdims=True)
    return np.asarray(np.abs(joint - apart).sum(axis=(-2, -1)) / 2)


def information(shares: Shares, labels: Int[NDArray[Any], " text"]) -> Float[NDArray[np.float64], " point"]:
    """I(L; E) / H(L) at each routing point, from each text's shares of experts and its label. Every label has the same weight."""
    joint = joint_of_texts(shares, labels, np.ones((1, len(labels))))
    return np.asarray(normalised_information(joint)[0])
