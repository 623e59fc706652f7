"""Final router: one decision for the whole model, from the last state of the base model alone, as X-LoRA does.

It costs a second forward pass. With a key-value cache the base model has a cache of its own beside the mixture's, so that a token's
decision is the same with and without a cache.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from unmask.errors import UnmaskError
from unmask.moe.mixture.gating import Control


class FinalRouter:
    """Runs the base model before each pass of a mixture, and gives the router's logits to the control."""

    def __init__(self, body: Any, control: Control, router: nn.Linear) -> None:
        self.body, self.control, self.router = body, control, router
        self.cache: Any = None  # of the base model, for the current pass

    def attach(self) -> None:
        """Run before every pass, and keep the base model's cache with the mixture's."""
        self.body.register_forward_pre_hook(self._decide, with_kwargs=True)
        self.body.register_forward_hook(self._keep)

    def _decide(self, body: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        if self.control.off:
            return
        inputs = {name: value for name, value in named.items() if not name.startswith("output_")}
        cache = inputs.get("past_key_values")
        if cache is not None:
            inputs["past_key_values"] = _own_cache(cache, body.config)
        self.control.off = True
        try:
            with torch.no_grad(), _unwatched(body):
                output = body(*args, **inputs)
        finally:
            self.control.off = False
        state, self.cache = output.last_hidden_state, output.past_key_values
        self.control.decided = nn.functional.linear(state.to(self.router.weight.dtype), self.router.weight)

    def _keep(self, _: Any, args: tuple[Any, ...], output: Any) -> None:
        """A model that is given no cache makes one itself, in each of the two passes."""
        if not self.control.off:
            cache = getattr(output, "past_key_values", None)
            if cache is not None:
                cache.of_the_base_model = self.cache
                forbid_reordering(cache, "a router that decides once for the whole model (`final`)")
            self.cache = None


def forbid_reordering(cache: Any, what: str) -> None:
    """Let a cache refuse what would leave the things that are kept beside it in another order: beam search and assisted generation.

    what: what they do not work with.
    """

    def refuse(*_: Any, **__: Any) -> None:
        raise UnmaskError(f"Beam search and assisted generation do not work with {what}. Use greedy search or sampling.")

    cache.reorder_cache = cache.crop = refuse


@contextmanager
def _unwatched(body: nn.Module) -> Iterator[None]:
    """Without hooks. Who reads the states of a layer, or stops the pass there, would take those of the base model for the mixture's."""
    kinds = ("_forward_hooks", "_forward_pre_hooks")
    watched = [(module, kind, hooks) for module in body.modules() for kind in kinds if (hooks := getattr(module, kind))]
    for module, kind, _ in watched:
        setattr(module, kind, OrderedDict())
    try:
        yield
    finally:
        for module, kind, hooks in watched:
            setattr(module, kind, hooks)


def _own_cache(cache: Any, config: Any) -> Any:
    """The base model's cache that goes with a mixture's cache. It exists as long as the mixture's."""
    from transformers import DynamicCache

    if not hasattr(cache, "of_the_base_model"):
        cache.of_the_base_model = DynamicCache(config=config)
    return cache.of_the_base_model
