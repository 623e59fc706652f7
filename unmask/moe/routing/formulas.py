"""Formulas of routing statistics: arrays of choices and probabilities in, numbers out. docs/routers.md explains how to read them.

| measure | formula | range |
|---|---|---|
| confidence | mean over tokens of the largest p | 1/n to 1 |
| uncertainty | mean over tokens of H(p) / log n | 0 to 1 |
| balance | H(mean over tokens of p) / log n | 0 (one expert) to 1 (even) |
| distinctness | balance - uncertainty: I(token; expert) / log n | 0 (all tokens are routed in the same way) to 1 |
| max violation | largest load / mean load - 1 (MaxVio, arXiv 2408.15664) | 0 to n/k - 1 |
| squared variation | variance of load / mean load squared (CV^2, Shazeer 2017, arXiv 1701.06538) | 0 to n/k - 1 |
| vocabulary specialisation | mean over tokens of max over e of p(e given token id), ids seen ten times or more | chance to 1 |
| repetition | (r - c) / (1 - c): r = P(same first choice as the previous token), c = sum over e of p(e)^2 | below 0 to 1 |
| layer agreement | I(E; E') / sqrt(H(E) H(E')) of first choices at two routing points | 0 to 1 |
| co-activation | mean over e of max over e' of p(e' chosen given e chosen), for k of 2 or more | chance to 1 |
| information | I(L; E) / H(L), I = sum p(l, e) log p(l, e) / (p(l) p(e)) | 0 (independent) to 1 (the expert determines the label) |
| specialisation | mean over labels of 1/2 sum over e of abs(p(e given l) - p(e)) | 0 (same experts for all labels) to 1 - 1/L |
| kappa | (a - c) / (1 - c): agreement a of first choices, experts matched one to one, c from the loads | about 0 (chance) to 1 |
| AMI | (I - E[I]) / (mean entropy - E[I]) of first choices (Vinh et al., 2010) | about 0 (chance) to 1 |
| saturation | mean over tokens of the share of the last checkpoint's chosen experts that were chosen before | 0 to 1 |
| output cosine | mean over tokens and pairs of experts of cos(y_e, y_e') | -1 to 1; 1: copies |
| output CKA | mean over pairs of HSIC(e, e') / sqrt(HSIC(e, e) HSIC(e', e')) | about 0 to 1; 1: equal up to rotation and scale |
| subspace overlap | mean over pairs of mean cos^2 of the principal angles of their column spaces | 0 to 1; chance: r / dim |

p are the router's probabilities over n experts. Load counts the tokens that chose an expert among their k. Vocabulary specialisation,
co-activation, saturation and p(e given l) are OLMoE's (arXiv 2409.02060, section 5), with the largest value as the summary of each row.
Repetition is table 5 of Mixtral (arXiv 2401.04088), with chance from the loads instead of 1/n.

Every label of texts has the same weight, and so has every text of a label: a large domain or a long text counts no more than others.
Labels of tokens (tags) weigh as much as they occur. Experts of two runs have no common names, so they are matched (Hungarian method)
before kappa; this makes the best of chance, so kappa of unrelated runs is slightly above 0. AMI needs no matching.

CKA follows Kornblith et al. (arXiv 1905.00414). HSIC(e, e') is the covariance of k_e(i, j) and k_e'(i, j) over pairs of tokens i, j of
different texts; k_e(i, j) is the inner product of the centred outputs of expert e. A token paired with itself would raise CKA, more so with
few tokens and many dimensions. It is left out as in the debiased HSIC (Song et al., JMLR 13, 2012; for CKA: Nguyen et al.,
arXiv 2010.15327). So are pairs of tokens of one text, which resemble each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
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


def squared_variation(load: Load) -> Float[NDArray[np.float64], "*batch"]:
    """The variance of the load over the square of its mean."""
    return np.asarray(load.var(axis=-1) / np.maximum(load.mean(axis=-1) ** 2, 1e-300))


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
    selected: Int[NDArray[Any], "token k"], experts: int
) -> tuple[Int[NDArray[np.int64], " pair"], Int[NDArray[np.int64], " pair"]]:
    """Every two experts that act together, as one x experts + other, and the token of each. -1 in `selected` means no choice.

    Each token has a pair of an expert with itself, too: on the diagonal of a table, how often an expert acts.
    """
    codes, tokens = [], []
    for first in range(selected.shape[1]):
        for second in range(selected.shape[1]):
            real = np.flatnonzero((selected[:, first] >= 0) & (selected[:, second] >= 0))
            codes.append(selected[real, first].astype(np.int64) * experts + selected[real, second])
            tokens.append(real)
    return np.concatenate(codes), np.concatenate(tokens)


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


def joint_of_tokens(
    tables: Float[NDArray[Any], "text label expert"], weights: Float[NDArray[Any], "resample text"]
) -> Float[NDArray[np.float64], "resample label expert"]:
    """Label and expert together, where each token has a label. tables: for each text, how often they occur together."""
    sums = (weights @ tables.reshape(len(tables), -1)).reshape(len(weights), *tables.shape[1:])
    return np.asarray(sums / np.maximum(sums.sum(axis=(1, 2), keepdims=True), 1e-300))


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


Table = Real[NDArray[Any], "expert other"]
"""How many tokens chose each expert of one run and each of the other."""


def match(table: Table) -> Int[NDArray[np.int64], " expert"]:
    """For each expert of the first run, its match in the second. Both runs have as many experts."""
    from scipy.optimize import linear_sum_assignment

    return np.asarray(linear_sum_assignment(table, maximize=True)[1], np.int64)


def kappa(table: Table) -> float:
    """Cohen's kappa after the experts are matched; 1 if both runs always choose the same one expert."""
    joint = table[:, match(table)] / table.sum()
    agreement = float(np.trace(joint))
    chance = float((joint.sum(axis=0) * joint.sum(axis=1)).sum())
    return (agreement - chance) / (1 - chance) if chance < 1 - 1e-12 else 1.0


def overlap(selected: Int[NDArray[Any], "token k"], last: Int[NDArray[Any], "token k"]) -> Float[NDArray[np.float64], " token"]:
    """For each token, the share of the experts in `last` that are in `selected` too. -1 means no choice."""
    shared = ((last[:, :, None] == selected[:, None, :]) & (last >= 0)[:, :, None]).any(axis=2).sum(axis=1)
    return np.asarray(shared / np.maximum((last >= 0).sum(axis=1), 1), np.float64)


Outputs = Float[NDArray[Any], "expert token dim"]


def output_cosine(outputs: Outputs) -> Float[NDArray[np.float64], " token"]:
    """For each token, the mean cosine of the outputs of two experts. Raises ValueError for fewer than two experts."""
    number = _pairs(len(outputs))
    unit = outputs / np.maximum(np.linalg.norm(outputs, axis=2, keepdims=True), 1e-300)
    total = np.square(unit.sum(axis=0)).sum(axis=1) - np.square(unit).sum(axis=(0, 2))
    return np.asarray(total / 2 / number, np.float64)


def output_cka(outputs: Outputs, lengths: Int[NDArray[Any], " text"]) -> tuple[float, Float[NDArray[np.float64], " text"]]:
    """The mean linear CKA of two experts' outputs on the same tokens, and its value without each text, for the jackknife.

    lengths: the tokens of each text; texts lie one behind the other. nan where fewer than two texts are left. Raises ValueError for fewer
    than two experts.
    """
    _pairs(len(outputs))
    centred = outputs - outputs.mean(axis=1, keepdims=True)
    starts = np.cumsum(lengths) - lengths
    products = np.stack([_with_others(centred, start, start + length) for start, length in zip(starts, lengths, strict=True)])
    # the kernels of a centred output sum to 0, so a text's kernels with other texts are minus its kernels with itself
    kernels = -np.square(np.add.reduceat(centred, starts, axis=1, dtype=np.float64)).sum(axis=2).T
    pairs = lengths * (lengths.sum() - lengths)
    totals = [sums.sum(axis=0) for sums in (products, kernels, pairs)]
    # the centre is kept: to move it with each text would change HSIC by the square of the move only
    without = [total - 2 * sums for total, sums in zip(totals, (products, kernels, pairs), strict=True)]
    return _mean_cka(*totals), np.array([_mean_cka(*sums) for sums in zip(*without, strict=True)])


def subspace_overlap(matrices: Sequence[Float[NDArray[Any], "dim rank"]]) -> float:
    """The mean overlap of the column spaces of two matrices. Raises ValueError for fewer than two of them.

    It has no interval: it is a property of the weights, and no texts were drawn to measure it.
    """
    _pairs(len(matrices))
    bases = [np.linalg.qr(matrix)[0] for matrix in matrices]
    return float(np.mean([np.square(np.linalg.svd(first.T @ second)[1]).mean() for first, second in combinations(bases, 2)]))


def _with_others(centred: Outputs, start: int, end: int) -> Float[NDArray[np.float64], "expert expert"]:
    """For every two experts, the sum of k_e(i, j) k_e'(i, j) over the tokens i of one text and the tokens j of the other texts."""
    rest = np.concatenate([centred[:, :start], centred[:, end:]], axis=1)
    kernel = (centred[:, start:end] @ rest.transpose(0, 2, 1)).reshape(len(centred), -1)
    return np.asarray(kernel @ kernel.T, np.float64)


def _mean_cka(
    products: Float[NDArray[np.float64], "expert expert"], kernels: Float[NDArray[np.float64], " expert"], pairs: int
) -> float:
    """The mean of CKA over pairs of experts. All three are sums over pairs of tokens: of k_e k_e', of k_e, and their number."""
    if not pairs:
        return float("nan")
    hsic = products / pairs - np.outer(kernels / pairs, kernels / pairs)
    variance = np.maximum(hsic.diagonal(), 0)
    scale = np.sqrt(np.outer(variance, variance))
    cka = np.divide(hsic, scale, out=np.zeros_like(hsic), where=scale > 0)
    return float(cka[np.triu_indices(len(hsic), 1)].mean())


def _pairs(experts: int) -> int:
    if experts < 2:
        raise ValueError(f"Distinctness compares experts with each other, and needs at least 2, not {experts}.")
    return experts * (experts - 1) // 2
