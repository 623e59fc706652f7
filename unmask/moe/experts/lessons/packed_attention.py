"""Attention of one new token at a time, on a CPU: keys and values are read once for all heads that share them.

With a mask, transformers shares them itself. Without one, it lets PyTorch do it, with a kernel that is slow on a CPU. (Versions of
transformers that do not share them take as long as before.)
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from unmask.models.attention import attention_function, replaced_attention

_NAME = "unmask_packed"


def packed_attention(model: Any) -> AbstractContextManager[None]:
    """Give attention a mask that hides nothing whenever one new token is computed.

    Does nothing unless the model is on a CPU and uses sdpa, and nothing to layers whose heads share no keys.
    """
    inner = attention_function(model)
    if inner is None or model.device.type != "cpu" or model.config._attn_implementation != "sdpa":
        return nullcontext()

    def attend(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, *args: Any, **kwargs: Any) -> Any:
        if attention_mask is None and query.shape[2] == 1 and key.shape[1] < query.shape[1]:
            attention_mask = torch.ones(1, 1, 1, key.shape[2], dtype=torch.bool)
        return inner(module, query, key, value, attention_mask, *args, **kwargs)

    return replaced_attention(model, _NAME, attend)
