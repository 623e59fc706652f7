"""First pass: one decision for the whole model, made by the last state of the base model alone (X-LoRA's reading).

Costs a second forward pass. Under a key-value cache the base model keeps one of its own beside the mixture's, so that a token's decision is
the same with and without a cache.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from unmask.mixture.gating import Control


class FirstPass:
    """Runs the base model before each pass of a mixture, and leaves the router's logits with the control."""

    def __init__(self, body: Any, control: Control, router: nn.Linear) -> None:
        self.body, self.control, self.router = body, control, router

    def attach(self) -> Any:
        """Run before every pass; the handle that undoes it."""
        return self.body.register_forward_pre_hook(self._decide, with_kwargs=True)

    def _decide(self, body: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        if self.control.off:
            return
        asked = {name: value for name, value in named.items() if not name.startswith("output_")}
        cache = asked.get("past_key_values")
        if cache is not None:
            asked["past_key_values"] = _own_cache(cache, body.config)
        self.control.off = True
        try:
            with torch.no_grad():
                state = body(*given, **asked).last_hidden_state
        finally:
            self.control.off = False
        self.control.decided = nn.functional.linear(state.to(self.router.weight.dtype), self.router.weight)


def _own_cache(cache: Any, config: Any) -> Any:
    """The base model's cache that belongs to a mixture's; it lives and dies with that."""
    from transformers import DynamicCache

    if not hasattr(cache, "of_the_base_model"):
        cache.of_the_base_model = DynamicCache(config=config)
    return cache.of_the_base_model
