"""Runs: whether two routers, or two checkpoints of one, choose alike for the same tokens.

| measure | formula | range |
|---|---|---|
| kappa | (a - c) / (1 - c): agreement a of first choices, experts matched one to one, c from the loads | about 0 (chance) to 1 |
| AMI | (I - E[I]) / (mean entropy - E[I]) of first choices (Vinh et al., 2010) | about 0 (chance) to 1 |
| saturation | mean over tokens of the share of the last checkpoint's chosen experts that were chosen before | 0 to 1 |

Experts of two runs have no common names, so they are matched (Hungarian method) before kappa. The matching makes the best of chance, so
kappa of unrelated runs is a little above 0. AMI needs no matching. Saturation is OLMoE's (arXiv 2409.02060, section 5.1).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Int, Real

from unmask.io.array_types import NDArray

Table = Real[NDArray[Any], "expert other"]
"""How many tokens chose each expert of one run and each of the other."""


def match(table: Table) -> Int[NDArray[np.int64], " expert"]:
    """For each expert of the first run, the expert of the second that stands for it. Both runs have as many experts."""
    from scipy.optimize import linear_sum_assignment

    return np.asarray(linear_sum_assignment(table, maximize=True)[1], np.int64)


def kappa(table: Table) -> float:
    """Cohen's kappa after the experts are matched; 1 if both runs always choose the same one expert."""
    joint = table[:, match(table)] / table.sum()
    agreement = float(np.trace(joint))
    chance = float((joint.sum(axis=0) * joint.sum(axis=1)).sum())
    return (agreement - chance) / (1 - chance) if chance < 1 - 1e-12 else 1.0


def overlap(chosen: Int[NDArray[Any], "token k"], last: Int[NDArray[Any], "token k"]) -> Float[NDArray[np.float64], " token"]:
    """For each token, the share of the experts in `last` that are in `chosen` too. -1 stands for no choice."""
    found = ((last[:, :, None] == chosen[:, None, :]) & (last >= 0)[:, :, None]).any(axis=2).sum(axis=1)
    return np.asarray(found / np.maximum((last >= 0).sum(axis=1), 1), np.float64)
