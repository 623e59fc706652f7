"""Nucleus sampling: only the most likely tokens that together make up `top_p` can be drawn (Holtzman et al., arXiv 1904.09751)."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import LogitsProcessor

_SORTED = 2048
"""The number of likeliest tokens that are sorted first.

They usually hold the whole nucleus. Sorting the whole vocabulary can take longer than a pass of the model.
"""


class NucleusSampling(LogitsProcessor):  # type: ignore[misc]
    """Draws one token, and sets the logits of all others to -inf. So `generate` has to choose greedily.

    A token is in the nucleus if the tokens that are likelier add up to less than `top_p`. `generate` itself would sort the whole
    vocabulary, and draw a random number for each of its words.
    """

    def __init__(self, temperature: float, top_p: float) -> None:
        self.temperature, self.top_p = temperature, top_p

    def __call__(self, input_ids: Int[Tensor, "text token"], scores: Float[Tensor, "text word"]) -> Float[Tensor, "text word"]:
        """The logits: 0 for the token that was drawn, -inf for all others. input_ids: not used."""
        likely = (scores / self.temperature).softmax(dim=-1)
        random = torch.rand(len(scores), 1, device=scores.device)
        top = likely.topk(min(_SORTED, likely.shape[1]))
        drawn = top.indices.gather(1, self._place(top.values, random))
        beyond = top.values.sum(dim=-1) < self.top_p
        if beyond.any():
            every = likely[beyond].sort(descending=True)
            drawn[beyond] = every.indices.gather(1, self._place(every.values, random[beyond]))
        return torch.full_like(scores, -torch.inf).scatter(1, drawn, 0.0)

    def _place(self, ordered: Float[Tensor, "text word"], random: Float[Tensor, "text 1"]) -> Int[Tensor, "text 1"]:
        """The place of the drawn token among probabilities that fall, from a random number between 0 and 1."""
        up_to = ordered.cumsum(dim=-1)
        size = (up_to - ordered < self.top_p).sum(dim=-1, keepdim=True)
        return torch.searchsorted(up_to, random * up_to.gather(1, size - 1), right=True).minimum(size - 1)
