"""The kernel of attention in training on a CPU.

PyTorch's flash attention is fast forward, but on a CPU its backward pass is slow for short texts: a quarter of a whole training step. The
plain kernel keeps the attention probabilities of every layer for the backward pass, so it is taken only where these are small.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn

_KEPT = 2**30
"""Most bytes of attention probabilities that a step may keep."""
_BYTES = 4
"""Of one probability: it is kept in fp32, also by a model in bf16."""


def attention_kernel(model: nn.Module, inputs: Mapping[str, Any]) -> AbstractContextManager[Any]:
    """The plain kernel for a step with short texts on a CPU, and PyTorch's own choice for any other step.

    inputs: of a step, with `input_ids` of shape (text, token), possibly in chunks.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel

    config = next((part.config for part in model.modules() if hasattr(part, "config")), None)
    if config is None or next(model.parameters()).device.type != "cpu":
        return nullcontext()
    decoder = config.get_text_config(decoder=True)
    heads = getattr(decoder, "num_attention_heads", 0)  # a model without attention has none
    pairs = sum(ids.shape[0] * ids.shape[1] ** 2 for ids in _ids(inputs))
    saved_bytes = pairs * heads * decoder.num_hidden_layers * _BYTES
    return sdpa_kernel(SDPBackend.MATH) if 0 < saved_bytes <= _KEPT else nullcontext()


def _ids(inputs: Any) -> Iterator[Tensor]:
    if isinstance(inputs, Mapping):
        if "input_ids" in inputs:
            yield inputs["input_ids"]
        inputs = list(inputs.values())
    if isinstance(inputs, list):
        for part in inputs:
            yield from _ids(part)
