"""Targets: logits at the positions before the tokens that are predicted, and at no others.

With a vocabulary of 49 000, logits of all positions need more memory than the hidden states. So the language-model head is given
the states that count, by a hook, and what a model does to its logits (scale, soft cap) stays its own.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

IGNORED = -100  # the label that transformers' losses leave out


def target_logits(
    model: Any, inputs: dict[str, Any], labels: Int[Tensor, "text token"]
) -> tuple[Float[Tensor, "target word"], Int[Tensor, " target"], Bool[Tensor, "text before"]]:
    """Logits of each token that has a label, from the state before it; these labels; and where the states stood.

    inputs: of the model, with an `attention_mask` of the same shape as the labels. A label at position 0 is predicted by nothing
    and left out.
    """
    mask, following = inputs["attention_mask"], labels[:, 1:]
    before = following != IGNORED
    padding = {} if bool(mask.all()) else {"attention_mask": mask}
    model_inputs = {name: value for name, value in inputs.items() if name != "attention_mask"}
    head = model.get_output_embeddings()
    hook = head.register_forward_pre_hook(lambda _, arguments: (arguments[0][:, :-1][before].unsqueeze(0), *arguments[1:]))
    try:
        logits = model(**model_inputs, **padding, use_cache=False).logits
    finally:
        hook.remove()
    return logits.squeeze(0), following[before], before


def mean_by_text(
    logits: Float[Tensor, "target word"], targets: Int[Tensor, " target"], before: Bool[Tensor, "text before"]
) -> Float[Tensor, " text"]:
    """Mean negative log-likelihood of each text's targets, in nats; 0 for a text without any."""
    losses = torch.nn.functional.cross_entropy(logits.float(), targets, reduction="none")
    texts = before.nonzero()[:, 0]
    sums = losses.new_zeros(len(before)).index_add(0, texts, losses)
    return sums / before.sum(dim=1).clamp_min(1)
