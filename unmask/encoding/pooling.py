"""Poolings without parameters. They turn token states into one vector for each text.

A pooling is a function (hidden, mask) -> vectors, in fp32. It ignores masked positions: they may hold anything, even NaN, and may be
on either side. tests/encoding/test_pooling.py checks this for every pooling in POOLINGS.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Pool = Callable[[Tensor, Tensor], Tensor]


def last(hidden: Float[Tensor, "text token dim"], mask: Bool[Tensor, "text token"]) -> Float[Tensor, "text dim"]:
    """State of the last token. Under causal attention, only this token has seen the whole text."""
    positions = torch.arange(mask.shape[1], device=mask.device)
    return _at(hidden, torch.where(mask, positions, -1).argmax(dim=1))


def first(hidden: Float[Tensor, "text token dim"], mask: Bool[Tensor, "text token"]) -> Float[Tensor, "text dim"]:
    """State of the first token of the embedded span. It is useful only under bidirectional attention.

    A token that the tokenizer puts in front, such as BERT's [CLS], is in the span under the prompt `full` only.
    """
    return _at(hidden, mask.int().argmax(dim=1))


def mean(hidden: Float[Tensor, "text token dim"], mask: Bool[Tensor, "text token"]) -> Float[Tensor, "text dim"]:
    """Average over the tokens."""
    return _average(hidden, mask.float())


def weighted_mean(hidden: Float[Tensor, "text token dim"], mask: Bool[Tensor, "text token"]) -> Float[Tensor, "text dim"]:
    """Weighted average: the k-th token has weight k. Later tokens of a causal model have seen more (SGPT, arXiv 2202.08904)."""
    return _average(hidden, mask.long().cumsum(dim=1) * mask.float())


def maximum(hidden: Float[Tensor, "text token dim"], mask: Bool[Tensor, "text token"]) -> Float[Tensor, "text dim"]:
    """Largest value of each dimension over the tokens."""
    return hidden.float().masked_fill(~mask.unsqueeze(-1), float("-inf")).amax(dim=1)


POOLINGS: dict[str, Pool] = {"last": last, "first": first, "mean": mean, "weighted-mean": weighted_mean, "max": maximum}


def _at(hidden: Tensor, positions: Tensor) -> Tensor:
    # not len(hidden), which is a constant in an exported graph
    return hidden[torch.arange(hidden.shape[0], device=hidden.device), positions].float()


def _average(hidden: Tensor, weights: Tensor) -> Tensor:
    # masked_fill before the product: padding may hold NaN, and NaN * 0 is NaN
    states = hidden.float().masked_fill((weights == 0).unsqueeze(-1), 0.0)
    return torch.bmm((weights / weights.sum(dim=1, keepdim=True)).unsqueeze(1), states).squeeze(1)
