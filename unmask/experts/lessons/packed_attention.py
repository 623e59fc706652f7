"""Attention of one new token at a time, on a CPU: keys and values are read once for all heads that share them.

transformers does so where there is a mask. Where there is none, it leaves that to PyTorch, whose kernel for it is slow on a CPU: a step
of Gemma-3-270M or SmolLM2-135M in bf16 spends more time there than in all matrices of weights.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from unmask.models.attention_function import attention_function, replaced_attention

_NAME = "unmask_packed"


def packed_attention(model: Any) -> AbstractContextManager[None]:
    """Let a model on a CPU have a mask for every single token. It changes nothing for other devices and kernels than sdpa."""
    inner = attention_function(model)
    if inner is None or model.device.type != "cpu" or model.config._attn_implementation != "sdpa":
        return nullcontext()

    def attend(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, *args: Any, **kwargs: Any) -> Any:
        if attention_mask is None and query.shape[2] == 1:
            attention_mask = torch.ones(1, 1, 1, key.shape[2], dtype=torch.bool)
        return inner(module, query, key, value, attention_mask, *args, **kwargs)

    return replaced_attention(model, _NAME, attend)
