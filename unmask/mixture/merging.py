"""Merging: several experts folded into the weights of their base, once and for all tokens alike.

All methods work on task vectors, delta W = scale * B A, as their papers define them. (Merging the factors A and B instead, as adapters are
often merged, gives something else: the cosine to the real thing was 0.25.)
linear: sum of w_i delta_i. ties: the largest `density` of each, an elected sign, the mean of those that agree (arXiv 2306.01708).
dare: a random `density` of each, scaled up by 1 / density, summed (arXiv 2311.03099).
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from unmask.errors import UnmaskError
from unmask.mixture.expert_folder import Expert, require_alike
from unmask.mixture.names import Method

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def merge_experts(
    model: PreTrainedModel,
    experts: Sequence[Expert],
    method: Method,
    *,
    weights: Sequence[float] | None = None,
    density: float = 1.0,
    seed: int = 0,
) -> PreTrainedModel:
    """Add the merged task vectors of experts to a causal language model, in place.

    weights: of each expert, 1 / n if not given for "linear", else 1. density: share of each task vector that is kept ("ties", "dare").
    seed: of what "dare" keeps. Sums are made in fp32. Raises UnmaskError for experts that do not fit, and for a density that the method
    does not read or that is outside 0 to 1.
    """
    require_alike(experts)
    check_merge(len(experts), method, weights, density)
    shares = list(weights) if weights else [1 / len(experts) if method == "linear" else 1.0] * len(experts)
    with torch.no_grad():
        for name in experts[0].factors:
            linear = model.get_submodule(name)
            vectors = [_task_vector(expert, name, linear) for expert in experts]
            change = _merged(vectors, torch.tensor(shares), method, density, [_seed(seed, name, one.name) for one in experts])
            if not bool(change.isfinite().all()):
                raise UnmaskError(f"The merged change of {name} is not finite: use smaller weights.")
            linear.weight.copy_(linear.weight.float() + change.to(linear.weight.device))
    return model


def check_merge(experts: int, method: Method, weights: Sequence[float] | None, density: float) -> None:
    """Raise UnmaskError for options that a method does not read, or that are outside of what it takes."""
    if weights and len(weights) != experts:
        raise UnmaskError(f"{len(weights)} weights were given for {experts} experts.")
    if not 0 < density <= 1:
        raise UnmaskError(f"The density is above 0 and at most 1, not {density}.")
    if method == "linear" and density != 1:
        raise UnmaskError("'linear' keeps whole task vectors, so a density would change nothing.")


def _task_vector(expert: Expert, name: str, linear: nn.Module) -> Tensor:
    down, up = expert.factors[name]
    if type(linear) is not nn.Linear or (up.shape[0], down.shape[1]) != tuple(linear.weight.shape):
        raise UnmaskError(f"'{expert.name}' changes {name} as this model has it not: it is an expert of another model.")
    return up @ down


def _merged(vectors: list[Tensor], shares: Tensor, method: Method, density: float, seeds: Sequence[int]) -> Tensor:
    from peft.utils.merge_utils import task_arithmetic, ties

    if method == "ties":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # peft warns that a density of 1 prunes nothing
            return ties(vectors, shares, density)  # type: ignore[no-any-return]
    if method == "dare":
        vectors = [_dropped(vector, density, seed) for vector, seed in zip(vectors, seeds, strict=True)]
    return task_arithmetic(vectors, shares)  # type: ignore[no-any-return]


def _dropped(vector: Tensor, density: float, seed: int) -> Tensor:
    """DARE's drop and rescale, drawn by a generator of its own: the same whatever else is merged, and in any order."""
    kept = torch.rand(vector.shape, generator=torch.Generator().manual_seed(seed)) < density
    return vector * kept / density


def _seed(seed: int, map_: str, expert: str) -> int:
    return zlib.crc32(f"{seed}:{map_}:{expert}".encode())
