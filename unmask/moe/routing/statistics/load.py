"""Load: how sure a router is of single tokens, and how evenly it uses its experts over all of them.

| measure | formula | range |
|---|---|---|
| confidence | mean over tokens of the largest p | 1/n to 1 |
| uncertainty | mean over tokens of H(p) / log n | 0 to 1 |
| balance | H(mean over tokens of p) / log n | 0 (one expert) to 1 (all alike) |
| distinctness | balance - uncertainty: I(token; expert) / log n | 0 (all tokens are treated alike) to 1 |
| max violation | largest load / mean load - 1 (MaxVio, arXiv 2408.15664) | 0 to n/k - 1 |
| squared variation | variance of load / mean load squared (CV^2, Shazeer 2017, arXiv 1701.06538) | 0 to n/k - 1 |

p are the router's probabilities over n experts. Load counts the tokens that chose an expert among their k.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from unmask.io.array_types import NDArray
from unmask.statistics.information import entropy

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
