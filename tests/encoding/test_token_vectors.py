"""Vectors of tokens and words are the states of their tokens in one reading of the text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.families import FAMILIES
from unmask.embedder import Embedder
from unmask.errors import UnmaskError

TEXTS = ["Paris is a city.", "", "  two  spaces ", "ü 🎉 日本", "one"]


@pytest.fixture(scope="module")
def model() -> Any:
    return FAMILIES["llama"].build()


def test_a_token_has_its_state_and_a_word_the_mean_of_its_tokens(model: Any, tokenizer: Any) -> None:
    embedder = Embedder.from_model(model, tokenizer, "bidirectional/plain/mean")
    tokens, words = embedder.encode_tokens(TEXTS), embedder.encode_tokens(TEXTS, "word")
    assert words.texts(TEXTS) == [word for text in TEXTS for word in text.split()]
    for index, text in enumerate(TEXTS):
        if not text:
            assert index not in tokens.documents and index not in words.documents
            continue
        encoded = tokenizer(text, return_offsets_mapping=True, return_tensors="pt")
        with torch.inference_mode(), embedder.backbone.turn():
            states = model(input_ids=encoded["input_ids"]).last_hidden_state[0].numpy()
        spans = encoded["offset_mapping"][0].tolist()
        for units in (tokens, words):
            rows = np.flatnonzero(units.documents == index)
            for row, start, end in zip(rows, units.starts[rows], units.ends[rows], strict=True):
                inside = [k for k, (first, stop) in enumerate(spans) if first < end and stop > start]
                np.testing.assert_allclose(units.vectors[row], states[inside].mean(0), atol=1e-5)
        assert sorted(set(map(tuple, spans))) == list(
            zip(tokens.starts[tokens.documents == index], tokens.ends[tokens.documents == index], strict=True)
        )


def test_a_long_text_has_a_vector_for_every_word(model: Any, tokenizer: Any) -> None:
    embedder = Embedder.from_model(model, tokenizer, "causal/instruction/last@2", max_length=24)
    text = "several words in a row " * 20
    words = embedder.encode_tokens([text], "word", instruction="Find it.", normalize=True)
    assert words.texts([text]) == text.split()
    np.testing.assert_allclose(np.linalg.norm(words.vectors, axis=1), 1, atol=1e-5)


def test_a_prompt_that_continues_after_the_text_is_refused(model: Any, tokenizer: Any) -> None:
    with pytest.raises(UnmaskError, match="ends with it"):
        Embedder.from_model(model, tokenizer, "causal/eol/last").encode_tokens(TEXTS)
