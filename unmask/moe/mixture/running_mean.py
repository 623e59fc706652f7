"""Running mean: routing by the text so far, in place of each token by itself.

The logits at a token are the mean of the router's logits over all real tokens up to that one. A mean over the whole text would show a
language model the future. With a key-value cache, the sums are kept beside the cache.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.moe.mixture.final_router import forbid_reordering
from unmask.moe.mixture.gating import Control


class RunningMean:
    """Keeps, for the current forward pass, which tokens are real and the sums of the logits of earlier tokens."""

    def __init__(self, body: Any, control: Control) -> None:
        self.body, self.control = body, control
        self.real: Tensor | None = None
        self.sums: dict[str, tuple[Tensor, Tensor]] = {}

    def attach(self) -> None:
        """Prepare every pass before it runs, and keep its sums with its cache."""
        self.control.so_far = self.so_far
        self.body.register_forward_pre_hook(self._prepare, with_kwargs=True)
        self.body.register_forward_hook(self._keep)

    def _prepare(self, _: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        mask, cache = named.get("attention_mask"), named.get("past_key_values")
        self.real = mask if isinstance(mask, Tensor) and mask.dim() == 2 else None
        self.sums = dict(getattr(cache, "routed_so_far", {}))

    def _keep(self, _: Any, args: tuple[Any, ...], output: Any) -> None:
        """Keep the sums beside the cache, which a model makes itself if it is given none."""
        cache = getattr(output, "past_key_values", None)
        if cache is not None:
            cache.routed_so_far = self.sums
            forbid_reordering(cache, "routing by the text so far (`--level sequence`)")
        self.sums = {}

    def so_far(self, name: str, logits: Float[Tensor, "batch token expert"]) -> Float[Tensor, "batch token expert"]:
        """For each token of a block, the mean of the logits up to that token. Padding is left out."""
        real = torch.ones(logits.shape[:-1], device=logits.device)
        if self.real is not None:
            real = self.real[:, -logits.shape[1] :].to(real)
        sums, counts = (logits * real.unsqueeze(-1)).cumsum(dim=1), real.cumsum(dim=1).unsqueeze(-1)
        if name in self.sums:
            before, number = self.sums[name]
            sums, counts = sums + before, counts + number
        self.sums = {**self.sums, name: (sums[:, -1:], counts[:, -1:])}
        return sums / counts.clamp_min(1)
