"""Offsets: a tokenizer that trims white space from the characters of its tokens reads texts as one that does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import TEXTS, make_tokenizer
from tests.encoding.test_tokenization import HARD
from tests.families import FAMILIES
from unmask.embedder import Embedder
from unmask.encoding.tokenization import PromptTokenizer, digest_of_tokens, token_range, tokenize_bare, trims_spaces, untrimmed
from unmask.saving.exports import standalone

ENDING_IN_SPACES = ["word " * 60, " ", "\n\n", "a \n\n b", "two  words  ", " x"]


def tokenizer_that(trims: bool, add_bos: bool = True, prefix: bool = False) -> Any:
    """A byte-level tokenizer. trims: as that of GPT-NeoX and OLMo does. prefix: it puts a space before a text, as RoBERTa's may."""
    from tokenizers import pre_tokenizers, processors

    tokenizer = make_tokenizer()
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    steps: list[Any] = [processors.ByteLevel(trim_offsets=trims)]
    if add_bos:
        steps.append(processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)]))
    backend.post_processor = processors.Sequence(steps)
    return tokenizer


@pytest.mark.parametrize("add_bos", [False, True])
@pytest.mark.parametrize("prompt", ["plain", "eos", "echo", "Topic of: {text}"])
def test_trimmed_offsets_change_no_token_of_a_text(prompt: str, add_bos: bool) -> None:
    for text in ENDING_IN_SPACES:
        tokens = tokenize_bare(tokenizer_that(trims=True, add_bos=False), text)
        assert all(start < stop <= len(text) for start, stop in tokens.offsets)
    assert trims_spaces(tokenizer_that(trims=True)) and not trims_spaces(tokenizer_that(trims=False))
    for length in (40, 4000):
        plain, trimming = (PromptTokenizer(tokenizer_that(trims, add_bos), prompt, length) for trims in (False, True))
        texts = [*TEXTS, *HARD, *ENDING_IN_SPACES] if length == 4000 else [*TEXTS, *ENDING_IN_SPACES]
        for text, one, other in zip(texts, plain.tokenize(texts), trimming.tokenize(texts), strict=True):
            assert (one.ids, one.start, one.text) == (other.ids, other.start, other.text), (text, length)


@pytest.mark.parametrize(("add_bos", "prefix"), [(True, False), (False, True)])
@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_sentence_transformers_reads_the_same_tokens(pooling: str, add_bos: bool, prefix: bool, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    tokenizer = tokenizer_that(True, add_bos, prefix)
    embedder = Embedder.from_model(FAMILIES["llama"].build(), tokenizer, f"causal/plain/{pooling}", max_length=24)
    embedder.save_pretrained(tmp_path / "saved")
    texts = [*TEXTS, *ENDING_IN_SPACES, "日本", "éa"]
    other = SentenceTransformer(str(tmp_path / "saved"), device="cpu", trust_remote_code=True).encode(texts)
    np.testing.assert_allclose(other, embedder.encode(texts), atol=1e-5)


def test_results_of_versions_that_left_spaces_out_are_told_apart() -> None:
    prompts = PromptTokenizer(tokenizer_that(trims=True), "plain", 24)
    now = digest_of_tokens(prompts)
    prompts.trims = False
    assert digest_of_tokens(prompts) != now


PLACES = st.integers(0, 9)


@given(st.lists(st.tuples(PLACES, PLACES, st.booleans()), max_size=8), PLACES, PLACES)
def test_exported_models_read_offsets_alike(tokens: list[tuple[int, int, bool]], start: int, size: int) -> None:
    """Their file runs without this package, so it has these functions again."""
    offsets, special = [(min(a, b), max(a, b)) for a, b, _ in tokens], [mark for *_, mark in tokens]
    assert standalone._untrimmed(offsets, special) == untrimmed(offsets, special)
    assert standalone._token_range(offsets, start, start + size) == token_range(offsets, start, start + size)
