"""Shared prefix: the states of tokens that several texts begin with are computed once, and repeated for each text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def can_repeat(model: Any) -> bool:
    """Whether what a language model keeps of a prefix can be repeated for every text.

    A state of linear attention cannot. Nor can the second cache of a mixture with a final router, which is that of the base.
    """
    from transformers import DynamicCache

    mixture = getattr(model.base_model, "mixture", None)
    if mixture is not None and mixture.routing.router == "final":
        return False
    return all(hasattr(layer, "batch_repeat_interleave") for layer in DynamicCache(config=model.config).layers)


def keep_rows(cache: Any, rows: Sequence[int], device: torch.device) -> None:
    """Leave these rows of a cache, and of the sums that a mixture keeps beside it (`RunningMean`)."""
    places = torch.tensor(rows, device=device)
    cache.batch_select_indices(places)
    if sums := getattr(cache, "routed_so_far", {}):
        cache.routed_so_far = {name: (total[places], count[places]) for name, (total, count) in sums.items()}


def repeated_prefix(model: Any, ids: Sequence[int], texts: int) -> Any:
    """The key-value cache of a prefix (its token ids) for this number of texts that go on from it."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    inputs = torch.tensor([list(ids)], device=model.device)
    model(input_ids=inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
    cache.batch_repeat_interleave(texts)
    return cache
