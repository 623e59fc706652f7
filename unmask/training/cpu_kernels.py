"""Faster training on a CPU: another attention kernel for short texts, and the experts of a mixture in bfloat16.

Attention: PyTorch's flash attention is fast forward, but on a CPU its backward pass is slow for short texts: a quarter of a whole
training step. The plain kernel keeps the attention probabilities of every layer for the backward pass, so it is used only where these
are small.

Experts: autocast computes matrix products in bfloat16, but it does not know `grouped_mm`, the product of experts, which stays in
float32 (https://github.com/pytorch/pytorch/issues/174763). And PyTorch compiles a kernel for each size of a product in bfloat16, while
each expert gets another number of tokens in each layer and step. So numbers of tokens are rounded up here.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

_MOST_BYTES = 2**30
"""Attention probabilities that a step may keep."""
_BYTES = 4
"""Of one probability: it is kept in fp32, also by a model in bf16."""


def attention_kernel(model: nn.Module, inputs: Mapping[str, Any]) -> AbstractContextManager[Any]:
    """The plain kernel for a step with short texts on a CPU, and PyTorch's own choice for any other step.

    inputs: of a step, with `input_ids` of shape (text, token), possibly in `chunks`.
    """
    config = next((part.config for part in model.modules() if hasattr(part, "config")), None)
    if config is None or next(model.parameters()).device.type != "cpu":
        return nullcontext()
    decoder = config.get_text_config(decoder=True)
    heads = getattr(decoder, "num_attention_heads", 0)  # a model without attention has none
    shapes = [part["input_ids"].shape for part in (inputs, *inputs.get("chunks", ())) if "input_ids" in part]
    saved_bytes = sum(texts * tokens**2 for texts, tokens in shapes) * heads * decoder.num_hidden_layers * _BYTES
    return sdpa_kernel(SDPBackend.MATH) if 0 < saved_bytes <= _MOST_BYTES else nullcontext()


_IMPLEMENTATION: Final = "unmask_rounded"
_MULTIPLE: Final = 128
"""Each expert gets a multiple of this number of tokens: few sizes, and little padding."""


def speed_up_experts(model: nn.Module) -> None:
    """Have the experts of a mixture computed in bfloat16 under autocast on a CPU, each with a rounded number of tokens.

    A model with a fixed computation of its experts is left unchanged, and so is a model on another device.
    """
    if _experts_implementation(model) == "grouped_mm" and next(model.parameters()).device.type == "cpu":
        _register()
        model.set_experts_implementation(_IMPLEMENTATION)  # type: ignore[operator]


def restore_experts(model: nn.Module) -> None:
    """Undo `speed_up_experts`."""
    if _experts_implementation(model) == _IMPLEMENTATION:
        model.set_experts_implementation("grouped_mm")  # type: ignore[operator]


def _experts_implementation(model: nn.Module) -> str | None:
    return getattr(getattr(model, "config", None), "_experts_implementation", None)


@cache
def _register() -> None:
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    torch.library.register_autocast("aten::_grouped_mm", "cpu", torch.bfloat16)
    ALL_EXPERTS_FUNCTIONS.register(_IMPLEMENTATION, rounded_experts)


def rounded_experts(experts: Any, states: Tensor, indices: Tensor, gates: Tensor) -> Tensor:
    """The output of experts, by transformers' `grouped_mm`, with tokens added that are 0 and have gates of 0.

    states: (token, dim). chosen, gates: the experts of each token and their weights, of shape (token, choice). Shape: (token, dim).
    """
    from transformers.integrations.moe import grouped_mm_experts_forward

    choices = indices.shape[1]
    counts = torch.bincount(indices.flatten(), minlength=experts.num_experts)
    added = torch.arange(experts.num_experts, device=indices.device).repeat_interleave(-counts % _MULTIPLE)
    added = added[: len(added) // choices * choices].view(-1, choices).to(indices.dtype)  # whole tokens
    padding = len(added)
    output: Tensor = grouped_mm_experts_forward(
        experts,
        nn.functional.pad(states, (0, 0, 0, padding)),
        torch.cat([indices, added]),
        nn.functional.pad(gates, (0, 0, 0, padding)),
    )
    return output[: len(states)]
