"""Merging: add several experts to the weights of their base model. All tokens then get the same mix.

All methods work on task vectors, delta W = scale * B A, one linear layer at a time. Averaging the factors A and B separately, as is often
done, is not equivalent: in a test, its update had a cosine of 0.25 with this one.
linear: the sum of w_i delta_i.
ties: keep the largest `density` of each vector, elect a sign, average the values of that sign (after arXiv 2306.01708). The paper trims an
expert's whole task vector at once; here each linear layer is trimmed alone. The weights w_i scale values after the signs were elected.
dare: keep each entry with probability `density`, scale up by 1 / density, and sum (arXiv 2311.03099).
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unmask.errors import UnmaskError
from unmask.io.files import atomic_folder, only_writer_of
from unmask.io.seals import seal
from unmask.models.loading import Source, base_of, load_base_language_model, own_tokenizer
from unmask.moe.mixture.expert_folder import Expert, linear_of, read_expert, require_stackable
from unmask.moe.mixture.mixture_folder import base_of_experts
from unmask.moe.names import MergeMethod

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def merge_to_folder(
    folders: Sequence[Path],
    base: Source,
    output: Path,
    method: MergeMethod,
    *,
    weights: Sequence[float] | None = None,
    density: float | None = None,
    seed: int = 0,
) -> None:
    """Merge experts into a new folder of their base model. base: its model may be empty if the experts name it."""
    check_merge(len(folders), method, weights, density)
    experts = [read_expert(folder) for folder in folders]
    require_stackable(experts)
    source = base_of_experts(experts, base)
    with only_writer_of(output):
        if output.exists():
            raise UnmaskError(f"'{output}' exists: give a new folder.")
        model, tokenizer = load_base_language_model(source)
        merge_experts(model, experts, method, weights=weights, density=density, seed=seed)
        with atomic_folder(output) as scratch:
            model.save_pretrained(scratch)
            tokenizer.save_pretrained(scratch)
            seal(scratch)


def merge_experts(
    model: PreTrainedModel,
    experts: Sequence[Expert],
    method: MergeMethod,
    *,
    weights: Sequence[float] | None = None,
    density: float | None = None,
    seed: int = 0,
) -> PreTrainedModel:
    """Add the merged task vectors of experts to a causal language model, in place.

    weights: one for each expert; by default 1 / n for "linear", else 1. density: share of each task vector that is kept, for "ties"
    and "dare" only. seed: decides what "dare" keeps. Sums are computed in fp32. Raises UnmaskError for experts that do not fit, and for a
    density that the method does not take.
    """
    require_stackable(experts)
    check_merge(len(experts), method, weights, density)
    coefficients = list(weights) if weights else [1 / len(experts) if method == "linear" else 1.0] * len(experts)
    fitting = {name: [linear_of(model, expert, name) for expert in experts] for name in experts[0].factors}
    with torch.no_grad():
        for name, (linear, *_) in fitting.items():  # all experts fit before anything is changed
            vectors = [up @ down for down, up in (expert.factors[name] for expert in experts)]
            seeds = [zlib.crc32(f"{seed}:{name}:{expert.name}".encode()) for expert in experts]
            change = merge_task_vectors(vectors, torch.tensor(coefficients), method, density, seeds)
            if not bool(change.isfinite().all()):
                raise UnmaskError(f"The merged change of {name} is not finite: use smaller weights.")
            linear.weight.copy_(linear.weight.float() + change.to(linear.weight.device))
    return model


def load_merged_expert(folder: Path, source: Source) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The base model with one expert merged in at full strength, and the tokenizer. Raises UnmaskError."""
    expert, saved_tokenizer = read_expert(folder), own_tokenizer(folder, source)
    base = replace(source, adapters=()) if source.adapters else base_of(folder, source)
    model, tokenizer = load_base_language_model(base)
    return merge_experts(model, [expert], "linear", weights=[1.0]), tokenizer if saved_tokenizer is None else saved_tokenizer


def check_merge(experts: int, method: MergeMethod, weights: Sequence[float] | None, density: float | None) -> None:
    """Raise UnmaskError for options that a method does not have, or for values that it does not take."""
    if weights and len(weights) != experts:
        raise UnmaskError(f"{len(weights)} weights were given for {experts} experts. Give one weight for each expert.")
    if method == "linear":
        if density is not None:
            raise UnmaskError(
                "'linear' keeps whole task vectors, so a density would change nothing. Leave it out, or use ties or dare."
            )
    elif density is None:
        raise UnmaskError(f"'{method}' needs a density: the share of each weight change that it keeps, such as 0.2.")
    elif not 0 < density <= 1:
        raise UnmaskError(f"The density must be above 0 and at most 1, not {density}.")
    elif method == "dare" and density == 1:
        raise UnmaskError("'dare' with a density of 1 drops nothing: it would be the plain sum. Give a density below 1.")


def merge_task_vectors(
    vectors: list[Tensor], weights: Tensor, method: MergeMethod, density: float | None, seeds: Sequence[int]
) -> Tensor:
    """The merged change of one linear layer. seeds: of each vector for "dare", so that other vectors and their order do not matter."""
    from peft.utils.merge_utils import task_arithmetic, ties

    if method == "ties":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # peft warns that a density of 1 prunes nothing
            return ties(vectors, weights, density)  # type: ignore[no-any-return]
    if density is not None:
        masks = [
            torch.rand(vector.shape, generator=torch.Generator().manual_seed(seed)) < density
            for vector, seed in zip(vectors, seeds, strict=True)
        ]
        vectors = [vector * mask / density for vector, mask in zip(vectors, masks, strict=True)]
    return task_arithmetic(vectors, weights)  # type: ignore[no-any-return]
