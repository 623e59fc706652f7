"""Dropout: off while vectors are computed, and as it was afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.families import FAMILIES
from unmask.embedder import Embedder


def test_a_model_that_a_trainer_left_training_embeds_without_dropout(tokenizer: Any) -> None:
    """Only parts of it may be training, such as new adapters. They go on training afterwards."""
    model = FAMILIES["gpt2"].build()  # dropout 0.1
    embedder = Embedder.from_model(model, tokenizer, "mean")
    before = embedder.encode(["a text", "and another one"])
    for part in (model, model.h[1].mlp):
        part.train()
        training = [one.training for one in model.modules()]
        assert any(training) and np.array_equal(embedder.encode(["a text", "and another one"]), before)
        assert [one.training for one in model.modules()] == training
        model.eval()
