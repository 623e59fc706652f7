"""Formulas of routing statistics: arrays of choices and probabilities in, numbers out. docs/routers.md explains how to read them.

| measure | formula | range |
|---|---|---|
| confidence | mean over tokens of the largest p | 1/n to 1 |
| uncertainty | mean over tokens of H(p) / log n | 0 to 1 |
| balance | H(mean over tokens of p) / log n | 0 (one expert) to 1 (even) |
| distinctness | balance - uncertainty: I(token; expert) / log n | 0 (all tokens are routed in the same way) to 1 |
| max violation | largest load / mean load - 1 (MaxVio, arXiv 2408.15664) | 0 to n/k - 1 |
| vocabulary specialisation | mean over tokens of max over e of p(e given token id), ids seen ten times or more | chance to 1 |
| repetition | (r - c) / (1 - c): r = P(same first choice as the previous token), c = sum over e of p(e)^2 | below 0 to 1 |
| layer agreement | I(E; E') / sqrt(H(E) H(E')) of first choices at two routing points | 0 to 1 |
| information | I(L; E) / H(L), I = sum p(l, e) log p(l, e) / (p(l) p(e)) | 0 (independent) to 1 (the expert determines the label) |
| specialisation | mean over labels of 1/2 sum over e of abs(p(e given l) - p(e)) | 0 (same experts for all labels) to 1 - 1/L |
| AMI | (I - E[I]) / (mean entropy - E[I]) of first choices | about 0 (chance) to 1 |

p are the router's probabilities over n experts. Load counts the tokens that chose an expert among their k. Vocabulary specialisation
and p(e given l) are OLMoE's (arXiv 2409.02060, section 5), with the largest value as the summary of each row. Repetition is table 5 of
Mixtral (arXiv 2401.04088), with chance from the loads instead of 1/n. AMI compares two records (Vinh et al., 2010): experts of two runs
have no common names, and AMI needs no matching.

Every label of texts has the same weight, and so has every text of a label: a large domain or a long text counts no more than others.
Labels of tokens (tags) weigh as much as they occur.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Real

from unmask.io.array_types import NDArray
from unmask.statistics.information import entropy, mutual_information

Load = Float[NDArray[Any], "*batch expert"]


def token_certainty(
    probabilities: Float[NDArray[Any], "token expert"],
) -> Float[NDArray[np.float64], "token 2"]:
    """For each token, the largest probability, and H(p) / log n. With one expert the second is 0."""
    wide = probabilities.astype(np.float64)
    wide /= np.maximum(wide.sum(axis=1, keepdims=True), 1e-300)  # probabilities on disk are rounded to 16 bits
    return np.stack([wide.max(axis=1), entropy(wide) / _most(wide.shape[1])], axis=1)


def balance(load: Load) -> Float[NDArray[np.float64], "*batch"]:
    """H(load) / log n, of loads or of sums of probabilities."""
    share = load / np.maximum(load.sum(axis=-1, keepdims=True), 1e-300)
    return np.asarray(entropy(share) / _most(load.shape[-1]))


def max_violation(load: Load) -> Float[NDArray[np.float64], "*batch"]:
    """The largest load over the mean load, minus 1."""
    return np.asarray(load.max(axis=-1) / np.maximum(load.mean(axis=-1), 1e-300) - 1)


def _most(experts: int) -> float:
    return float(np.log(experts)) if experts > 1 else 1.0


SEEN = 10
"""Token ids that occur less often are left out of vocabulary specialisation, as in OLMoE."""


def vocabulary_specialisation(table: Float[NDArray[Any], "*batch id expert"]) -> Float[NDArray[np.float64], "*batch"]:
    """The mean over tokens of the largest share that an expert has of their id. table: how often id and expert occur together."""
    total = table.sum(axis=(-2, -1))
    return np.asarray(np.where(total > 0, table.max(axis=-1).sum(axis=-1) / np.maximum(total, 1e-300), np.nan))


def frequent(ids: Int[NDArray[Any], " token"]) -> Int[NDArray[np.int64], " token"]:
    """Ids numbered from 0 in ascending order; -1 for those that occur less than ten times."""
    _, codes, counts = np.unique(ids, return_inverse=True, return_counts=True)
    is_frequent = counts >= SEEN
    return np.where(is_frequent, np.cumsum(is_frequent) - 1, -1)[codes]


def follows(texts: Int[NDArray[Any], " token"], positions: Int[NDArray[Any], " token"]) -> Bool[NDArray[np.bool_], " token"]:
    """Whether the previous token is the neighbour in the same text."""
    same = np.zeros(len(texts), bool)
    same[1:] = (texts[1:] == texts[:-1]) & (positions[1:] == positions[:-1] + 1)
    return same


def repetition(
    same: Real[NDArray[Any], "*batch"], pairs: Real[NDArray[Any], "*batch"], load: Real[NDArray[Any], "*batch expert"]
) -> Float[NDArray[np.float64], "*batch"]:
    """How often neighbours have the same first choice, beyond what their loads alone give; nan without neighbours."""
    share = load / np.maximum(load.sum(axis=-1, keepdims=True), 1e-300)
    chance = (share**2).sum(axis=-1)
    observed = np.where(pairs > 0, same / np.maximum(pairs, 1e-300), np.nan)
    return np.asarray(np.where(chance < 1 - 1e-12, (observed - chance) / np.maximum(1 - chance, 1e-12), 0.0))


def layer_agreement(table: Float[NDArray[Any], "*batch expert other"]) -> Float[NDArray[np.float64], "*batch"]:
    """Normalised information of the first choices at two routing points; 0 if either always chooses the same expert."""
    joint = table / np.maximum(table.sum(axis=(-2, -1), keepdims=True), 1e-300)
    first_entropy, second_entropy = entropy(joint.sum(axis=-1)), entropy(joint.sum(axis=-2))
    varies = np.minimum(first_entropy, second_entropy) > 1e-9
    return np.asarray(
        np.where(varies, mutual_information(joint) / np.sqrt(np.where(varies, first_entropy * second_entropy, 1.0)), 0.0)
    )


Shares = Float[NDArray[Any], "text point expert"]
"""The share of each text's tokens that each expert gets, at each routing point."""
Joint = Float[NDArray[Any], "*batch label expert"]
"""Probabilities of label and expert together; they sum to 1."""


def joint_of_texts(
    shares: Shares, labels: Int[NDArray[Any], " text"], weights: Float[NDArray[Any], "resample text"]
) -> Float[NDArray[np.float64], "resample point label expert"]:
    """Label and expert together, where a text has one label. Every label has the same weight, whatever the number of its texts."""
    texts, points, experts = shares.shape
    flat, values = shares.reshape(texts, -1), np.unique(labels)
    parts = []
    for label in values:
        mask = labels == label
        label_weights = weights[:, mask]
        parts.append(label_weights @ flat[mask] / label_weights.sum(axis=1, keepdims=True) / len(values))
    return np.stack(parts, axis=1).reshape(len(weights), len(values), points, experts).swapaxes(1, 2)


def normalised_information(joint: Joint) -> Float[NDArray[np.float64], "*batch"]:
    """I(L; E) / H(L); 0 if all labels are the same."""
    label_entropy = entropy(joint.sum(axis=-1))
    return np.asarray(np.where(label_entropy > 1e-12, mutual_information(joint) / np.maximum(label_entropy, 1e-12), 0.0))


def specialisation(joint: Joint) -> Float[NDArray[np.float64], "*batch"]:
    """How far the experts of one label differ from the average: total variation, the mean over labels by their weight."""
    label = joint.sum(axis=-1, keepdims=True)
    independent = label * joint.sum(axis=-2, keepdims=True)
    return np.asarray(np.abs(joint - independent).sum(axis=(-2, -1)) / 2)


def information(shares: Shares, labels: Int[NDArray[Any], " text"]) -> Float[NDArray[np.float64], " point"]:
    """I(L; E) / H(L) at each routing point, from each text's shares of experts and its label. Every label has the same weight."""
    joint = joint_of_texts(shares, labels, np.ones((1, len(labels))))
    return np.asarray(normalised_information(joint)[0])
