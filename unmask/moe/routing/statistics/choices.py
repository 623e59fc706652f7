"""Choices: what the chosen expert goes with beside labels: the token's word, the expert before it, its partners, the next layer.

| measure | formula | range |
|---|---|---|
| vocabulary specialisation | mean over tokens of max over e of p(e given token id), ids seen ten times or more | chance to 1 |
| repetition | (r - c) / (1 - c): r = P(first choice = that of the token before), c = sum over e of p(e)^2 | below 0 to 1 |
| layer agreement | I(E; E') / sqrt(H(E) H(E')) of first choices at two routing points | 0 to 1 |
| co-activation | mean over e of max over e' of p(e' chosen given e chosen), for k of 2 or more | chance to 1 |

Vocabulary specialisation and co-activation are OLMoE's (arXiv 2409.02060, sections 5.2 and 5.4), with the largest value as the summary of
each row. Repetition is table 5 of Mixtral (arXiv 2401.04088), with chance as the loads give it in place of 1/n.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Real

from unmask.io.array_types import NDArray
from unmask.statistics.information import entropy, mutual_information

SEEN = 10
"""Token ids that occur less often are left out of vocabulary specialisation, as in OLMoE."""


def vocabulary_specialisation(table: Float[NDArray[Any], "*batch id expert"]) -> Float[NDArray[np.float64], "*batch"]:
    """The mean over tokens of the largest share that an expert has of their id. table: how often id and expert occur together."""
    total = table.sum(axis=(-2, -1))
    return np.asarray(np.where(total > 0, table.max(axis=-1).sum(axis=-1) / np.maximum(total, 1e-300), np.nan))


def frequent(ids: Int[NDArray[Any], " token"]) -> Int[NDArray[np.int64], " token"]:
    """Ids numbered from 0 in ascending order; -1 for those that occur less than ten times."""
    _, codes, counts = np.unique(ids, return_inverse=True, return_counts=True)
    kept = counts >= SEEN
    return np.where(kept, np.cumsum(kept) - 1, -1)[codes]


def follows(texts: Int[NDArray[Any], " token"], positions: Int[NDArray[Any], " token"]) -> Bool[NDArray[np.bool_], " token"]:
    """Whether the token before is that of the position before in the same text."""
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
    one, other = entropy(joint.sum(axis=-1)), entropy(joint.sum(axis=-2))
    varies = np.minimum(one, other) > 1e-9
    return np.asarray(np.where(varies, mutual_information(joint) / np.sqrt(np.where(varies, one * other, 1.0)), 0.0))


def coactivation(pairs: Float[NDArray[Any], "*batch expert expert"]) -> Float[NDArray[np.float64], "*batch expert expert"]:
    """p(e' is chosen, given that e is chosen). pairs: tokens that chose both; on the diagonal, tokens that chose e. 0 if e never acts."""
    alone = np.diagonal(pairs, axis1=-2, axis2=-1)[..., None]
    return np.asarray(np.where(alone > 0, pairs / np.maximum(alone, 1e-300), 0.0))


def strongest_partner(pairs: Float[NDArray[Any], "*batch expert expert"]) -> Float[NDArray[np.float64], "*batch"]:
    """The mean over experts that act of the largest co-activation with another expert; nan if none acts."""
    rates = coactivation(pairs) * (1 - np.eye(pairs.shape[-1]))
    acts = np.diagonal(pairs, axis1=-2, axis2=-1) > 0
    return np.asarray(np.where(acts.any(-1), rates.max(axis=-1).sum(axis=-1) / np.maximum(acts.sum(axis=-1), 1), np.nan))


def pair_codes(
    chosen: Int[NDArray[Any], "token k"], experts: int
) -> tuple[Int[NDArray[np.int64], " pair"], Int[NDArray[np.int64], " pair"]]:
    """Every two experts that act together, as one x experts + other, and the token of each. -1 in `chosen` stands for no choice.

    Each token has a pair of an expert with itself, too: on the diagonal of a table, how often an expert acts.
    """
    codes, tokens = [], []
    for one in range(chosen.shape[1]):
        for other in range(chosen.shape[1]):
            real = np.flatnonzero((chosen[:, one] >= 0) & (chosen[:, other] >= 0))
            codes.append(chosen[real, one].astype(np.int64) * experts + chosen[real, other])
            tokens.append(real)
    return np.concatenate(codes), np.concatenate(tokens)
