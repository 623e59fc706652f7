"""Branches: copies of one base model that each learned from other texts. They become the experts of one mixture.

This is the middle step of Branch-Train-MiX (Sukhbaatar et al. 2024, arXiv 2403.07816, section 3.2). Each branch's MLP becomes an expert.
All other weights are averaged over the branches. The mean is computed as the base plus the mean change, so weights that no branch
changed stay the same to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from unmask.errors import UnmaskError
from unmask.models.decoder import body_of
from unmask.models.loading import HeadMissing, Source, load_base_language_model, load_decoder

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_ALIKE = 0.5  # cosine of a branch's weights with its base's: 0 if trained apart, above 0.9 after fine-tuning
Filled = Mapping[str, Sequence[str]]
"""The dense weights that fill each weight of the mixture; none for routers."""


@dataclass(frozen=True)
class Branch:
    """A trained copy of the base model: the name of its expert, and its weights under the names of the base's."""

    name: str
    weights: dict[str, Tensor]


def load_branch(name: str, source: Source, dense: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Branch:
    """Load a branch of a dense language model. Raises UnmaskError if it has another tokenizer, or if it is no branch of this model.

    An embedder is saved without the head that predicts tokens. If that head is not tied, the branch has that of the base.
    """
    try:
        model, own = load_base_language_model(source)
        weights = dict(model.named_parameters())
    except HeadMissing:
        body, own = load_decoder(source)
        prefix = next(path for path, module in dense.named_modules() if module is body_of(dense))
        weights = dict(dense.named_parameters()) | {f"{prefix}.{path}": weight for path, weight in body.named_parameters()}
    if own.get_vocab() != tokenizer.get_vocab():
        raise UnmaskError(f"Branch '{name}' has another tokenizer than the base model, so its tokens mean something else.")
    branch = Branch(name, {path: weight.detach() for path, weight in weights.items()})
    _require_branch_of(dense, branch)
    return branch


def _require_branch_of(dense: PreTrainedModel, branch: Branch) -> None:
    base = dict(dense.named_parameters())
    if odd := sorted(base.keys() ^ branch.weights.keys()):
        raise UnmaskError(
            f"Branch '{branch.name}' is another kind of model than the base: only one of the two has {odd[0]}. "
            "A branch is a copy of the base model that was trained further."
        )
    for path, weight in base.items():
        if (own := branch.weights[path]).shape != weight.shape:
            sizes = (" x ".join(map(str, tensor.shape)) for tensor in (own, weight))
            raise UnmaskError(
                f"Branch '{{}}' does not fit the base model: its {path} is {{}}, the base's is {{}}.".format(
                    branch.name, *sizes
                )
            )
    if (cosine := _cosine(base, branch.weights)) < _ALIKE:
        raise UnmaskError(
            f"Branch '{branch.name}' was not trained from this base model: the cosine of their weights is {cosine:.2f}. "
            f"Above {_ALIKE} is allowed."
        )


def _cosine(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Cosine of two models as vectors of all their matrices. (Norms are near 1 in every model, so they would make all alike.)"""
    product = squares = others = 0.0
    for path, weight in one.items():
        if weight.ndim > 1:
            a, b = weight.detach().float().flatten(), other[path].float().flatten()
            product, squares, others = product + float(a @ b), squares + float(a @ a), others + float(b @ b)
    return product / max(math.sqrt(squares * others), 1e-30)


def require_different(branches: Sequence[Branch], mlps: Sequence[str]) -> None:
    """Raise UnmaskError if two branches have equal MLPs: equal experts give a router nothing to learn."""
    for one, other in combinations(branches, 2):
        if all(torch.equal(one.weights[path], other.weights[path]) for path in mlps):
            raise UnmaskError(
                f"Branches '{one.name}' and '{other.name}' have equal MLPs, so a router could not tell them apart. "
                "Leave one out, or add noise."
            )


@torch.no_grad()  # type: ignore[untyped-decorator]
def mix_branches(sparse: nn.Module, base: Mapping[str, Tensor], branches: Sequence[Branch], plan: Filled) -> None:
    """Give each expert of a mixture the MLP of its branch, and all other weights the mean over the branches, in place.

    plan: the dense weights behind each weight of the mixture. Routers, which have none, stay as they are.
    """
    for name, weight in sparse.named_parameters():
        if plan[name] and is_expert(name):
            for expert, branch in zip(weight, branches, strict=True):
                expert.copy_(torch.cat([branch.weights[path].float() for path in plan[name]]))
        elif plan[name]:
            (path,) = plan[name]
            start = base[path].float()
            weight.copy_(start + torch.stack([branch.weights[path].float() - start for branch in branches]).mean(dim=0))


def is_expert(name: str) -> bool:
    """Whether a weight of a mixture is the stack of its experts."""
    return ".experts." in name
