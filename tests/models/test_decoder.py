"""Decoder: where a model counts positions from, and rotary frequencies that a cast has rounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.families import FAMILIES, Family
from unmask.embedder import Embedder
from unmask.models.decoder import first_position, restore_rotary

MRA = Family(
    "mra",
    "mra",
    base={"vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4},
)
"""An encoder that counts positions from 2 and has no row for padding."""


# ---- positions ----------------------------------------------------------------------------------------------------------------


def test_an_encoder_that_counts_from_a_later_row_gives_a_text_alone_its_vector_in_a_batch(tokenizer: Any) -> None:
    model = MRA.build()
    assert first_position(model) == 2
    embedder = Embedder.from_model(model, tokenizer, "causal/plain/mean")
    texts = ["x", "A man plays a guitar.", "Two dogs run across the wet grass, chasing a red ball that nobody threw."]
    alone = np.concatenate([embedder.encode([text]) for text in texts])
    np.testing.assert_allclose(embedder.encode(texts), alone, rtol=1e-4, atol=1e-4)


# ---- rotary frequencies -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_frequencies_that_a_cast_rounded_are_those_of_the_config(name: str, dtype: torch.dtype) -> None:
    """Gemma 3 has two sets of them, and its embeddings have a scale that stays as it is."""
    exact, cast = FAMILIES[name].build(), FAMILIES[name].build(dtype=dtype)
    weights = {key: value.clone() for key, value in cast.state_dict().items()}
    rounded = [key for key, buffer in exact.named_buffers() if not torch.equal(buffer, cast.get_buffer(key).float())]
    assert bool(rounded) == (name != "gpt2") and all("inv_freq" in key for key in rounded)
    restore_rotary(cast)
    for key, buffer in exact.named_buffers():
        assert torch.equal(buffer, cast.get_buffer(key).float())
    assert all(cast.get_buffer(key).dtype == torch.float32 for key in rounded)
    assert all(torch.equal(value, weights[key]) for key, value in cast.state_dict().items())
