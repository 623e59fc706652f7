"""Distinctness: how different the experts of one layer are, by their outputs on the same tokens and by their weights.

| measure | formula | range |
|---|---|---|
| output cosine | mean over tokens and pairs of experts of cos(y_e, y_e') | -1 to 1; 1: copies |
| output CKA | mean over pairs of linear CKA (Kornblith et al., arXiv 1905.00414) | 0 to 1; 1: alike up to rotation and scale |
| subspace overlap | mean over pairs of mean cos^2 of the principal angles of their column spaces | 0 to 1; chance: r / dim |
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

Outputs = Float[NDArray[Any], "expert token dim"]


def output_cosine(outputs: Outputs) -> Float[NDArray[np.float64], " token"]:
    """For each token, the mean cosine of the outputs of two experts. Raises ValueError for fewer than two experts."""
    number = _pairs(len(outputs))
    unit = outputs / np.maximum(np.linalg.norm(outputs, axis=2, keepdims=True), 1e-300)
    total = np.square(unit.sum(axis=0)).sum(axis=1) - np.square(unit).sum(axis=(0, 2))
    return np.asarray(total / 2 / number, np.float64)


def output_cka(outputs: Outputs) -> float:
    """The mean linear CKA of two experts' outputs on the same tokens. Raises ValueError for fewer than two experts."""
    _pairs(len(outputs))
    centred = outputs - outputs.mean(axis=1, keepdims=True)
    return float(np.mean([_cka(one, other) for one, other in combinations(centred, 2)]))


def subspace_overlap(matrices: Sequence[Float[NDArray[Any], "dim rank"]]) -> float:
    """The mean overlap of the column spaces of two matrices. Raises ValueError for fewer than two of them."""
    _pairs(len(matrices))
    bases = [np.linalg.qr(matrix)[0] for matrix in matrices]
    return float(np.mean([np.square(np.linalg.svd(one.T @ other)[1]).mean() for one, other in combinations(bases, 2)]))


def _cka(one: NDArray[Any], other: NDArray[Any]) -> float:
    above = np.square(np.linalg.norm(one.T @ other))
    below = np.linalg.norm(one.T @ one) * np.linalg.norm(other.T @ other)
    return float(above / below) if below else 0.0


def _pairs(experts: int) -> int:
    if experts < 2:
        raise ValueError(f"Distinctness compares experts with each other, and needs at least 2, not {experts}.")
    return experts * (experts - 1) // 2
