"""Distinctness: how different the experts of one layer are, by their outputs on the same tokens and by their weights.

| measure | formula | range |
|---|---|---|
| output cosine | mean over tokens and pairs of experts of cos(y_e, y_e') | -1 to 1; 1: copies |
| output CKA | mean over pairs of HSIC(e, e') / sqrt(HSIC(e, e) HSIC(e', e')) | about 0 to 1; 1: alike up to rotation and scale |
| subspace overlap | mean over pairs of mean cos^2 of the principal angles of their column spaces | 0 to 1; chance: r / dim |

CKA is that of Kornblith et al. (arXiv 1905.00414). HSIC(e, e') is the covariance of k_e(i, j) and k_e'(i, j) over pairs of tokens i, j of
different texts; k_e(i, j) is the inner product of the centred outputs of expert e. A token paired with itself would raise CKA, the more so
the fewer tokens and the more dimensions there are. It is left out as in the debiased HSIC (Song et al., JMLR 13, 2012; for CKA: Nguyen et
al., arXiv 2010.15327). So are two tokens of one text, since they are alike. With texts of one token, what differs from the debiased HSIC
is of order 1 / tokens^2.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from unmask.io.array_types import NDArray

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
    # all kernels of a centred output sum to 0: those of a text with the others to minus those of the text with itself
    kernels = -np.square(np.add.reduceat(centred, starts, axis=1, dtype=np.float64)).sum(axis=2).T
    pairs = lengths * (lengths.sum() - lengths)
    whole = [sums.sum(axis=0) for sums in (products, kernels, pairs)]
    # the centre stays that of all texts: to move it with each text would change HSIC by the square of the move only
    without = [total - 2 * sums for total, sums in zip(whole, (products, kernels, pairs), strict=True)]
    return _mean_cka(*whole), np.array([_mean_cka(*sums) for sums in zip(*without, strict=True)])


def subspace_overlap(matrices: Sequence[Float[NDArray[Any], "dim rank"]]) -> float:
    """The mean overlap of the column spaces of two matrices. Raises ValueError for fewer than two of them.

    It has no interval: it is a property of the weights, and no texts were drawn to measure it.
    """
    _pairs(len(matrices))
    bases = [np.linalg.qr(matrix)[0] for matrix in matrices]
    return float(np.mean([np.square(np.linalg.svd(one.T @ other)[1]).mean() for one, other in combinations(bases, 2)]))


def _with_others(centred: Outputs, start: int, end: int) -> Float[NDArray[np.float64], "expert expert"]:
    """For every two experts, the sum of k_e(i, j) k_e'(i, j) over the tokens i of one text and the tokens j of all others."""
    others = np.concatenate([centred[:, :start], centred[:, end:]], axis=1)
    kernel = (centred[:, start:end] @ others.transpose(0, 2, 1)).reshape(len(centred), -1)
    return np.asarray(kernel @ kernel.T, np.float64)


def _mean_cka(
    products: Float[NDArray[np.float64], "expert expert"], kernels: Float[NDArray[np.float64], " expert"], pairs: int
) -> float:
    """The mean of CKA over pairs of experts. All three are sums over pairs of tokens: of k_e k_e', of k_e, and their number."""
    if not pairs:
        return float("nan")
    hsic = products / pairs - np.outer(kernels / pairs, kernels / pairs)
    own = np.maximum(hsic.diagonal(), 0)
    scale = np.sqrt(np.outer(own, own))
    alike = np.divide(hsic, scale, out=np.zeros_like(hsic), where=scale > 0)
    return float(alike[np.triu_indices(len(hsic), 1)].mean())


def _pairs(experts: int) -> int:
    if experts < 2:
        raise ValueError(f"Distinctness compares experts with each other, and needs at least 2, not {experts}.")
    return experts * (experts - 1) // 2
