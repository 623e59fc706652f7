"""The attention function of a model, as transformers knows it by name, replaced for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Attention = Callable[..., Any]
"""Takes the attention module, queries, keys, values and the mask, each of shape (text, head, token, ..)."""


def attention_function(model: Any) -> Attention | None:
    """The function that a model calls, or None if transformers has registered none for it, as for eager attention."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    found: Attention | None = ALL_ATTENTION_FUNCTIONS.get(model.config._attn_implementation)
    return found


@contextmanager
def replaced_attention(model: Any, name: str, function: Attention) -> Iterator[None]:
    """Use another attention function inside a `with` block. It gets the same masks as the model's own function.

    name: the name under which transformers registers it.
    """
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    used = model.config._attn_implementation
    ALL_ATTENTION_FUNCTIONS.register(name, function)
    ALL_MASK_ATTENTION_FUNCTIONS.register(name, ALL_MASK_ATTENTION_FUNCTIONS[used])
    configs = {id(part): part for part in (model.config, model.config.get_text_config(decoder=True))}.values()
    before = [(part, part._attn_implementation) for part in configs]
    try:
        for part in configs:
            part._attn_implementation = name
        yield
    finally:
        for part, own in before:
            part._attn_implementation = own
