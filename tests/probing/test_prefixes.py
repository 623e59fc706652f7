"""Shared prefixes: exactly zero where nothing of the future is seen, and only the prefix's own tokens."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.probing.models import pico_model
from unmask.encoding.backbone import HiddenRead, TokenBatch
from unmask.errors import UnmaskError
from unmask.models.loading import Source
from unmask.probing.prefixes import (
    PrefixGap,
    Triple,
    attention_in,
    compare_stages,
    prefix_tokens,
    prefix_vectors,
    probe_prefixes,
    read_triples,
)
from unmask.saving.load_model import load_encoder

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PICO = ["llama", "mistral-sliding", "qwen2", "qwen3", "gemma2", "gpt2", "falcon", "bloom", "opt", "mamba"]
MOE = ["olmoe", "mixtral"]
TRIPLES = [
    Triple("The bank", "of the river was muddy.", "sloped down to the water, where ducks nest.", "refused to give a loan."),
    Triple("x", "y", "a much longer text that goes on and on, much beyond the others", "z"),
    Triple("Größe 42", "passt.", "ist ausverkauft.", "km sind weit."),
]


@pytest.mark.sample(8)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", PICO)
def test_the_gap_of_a_causal_model_is_exactly_zero(family: str, dtype: str, tokenizer: Any) -> None:
    found = probe_prefixes(pico_model(tokenizer, "causal", family, dtype=DTYPES[dtype]), [*TRIPLES, *read_triples()[::4]])
    assert found.gaps == (0.0,) * 15
    assert (found.gap, found.interval, found.accuracy) == (0.0, (0.0, 0.0), 0.0)
    assert found.same_interval == found.different_interval and 0 < found.accuracy_interval[1] < 0.25


@pytest.mark.parametrize("family", MOE)
def test_the_gap_of_a_causal_mixture_is_zero_to_rounding(family: str, tokenizer: Any) -> None:
    """An expert multiplies the tokens of all texts at once: how many there are changes the order of its sums."""
    found = probe_prefixes(pico_model(tokenizer, "causal", family), [*TRIPLES, *read_triples()])
    assert np.abs(found.gaps).max() < 1e-12


@pytest.mark.parametrize("layer", [1, 2, None])
def test_the_gap_of_a_bidirectional_model_is_not_zero(layer: int | None, tokenizer: Any) -> None:
    found = probe_prefixes(pico_model(tokenizer), TRIPLES, layer=layer)
    assert all(found.gaps)
    assert found.same < 1 and found.layer == (layer or 3)
    assert json.loads(json.dumps(found.as_json()))["triples"] == 3


def test_the_vectors_are_those_of_the_prefix_alone_by_hand(tokenizer: Any) -> None:
    one = pico_model(tokenizer)
    ids, (start, stop) = prefix_tokens(one, TRIPLES[0])
    assert (start, tokenizer.decode(ids[0][start:stop])) == (0, "The bank")
    for own, vector in zip(ids, prefix_vectors(one, TRIPLES[0], 3), strict=True):
        batch = torch.tensor([own])
        read = HiddenRead(3, lambda hidden, _: hidden[0, start:stop].float())
        mask = torch.ones_like(batch, dtype=torch.bool)
        with torch.inference_mode():
            states = one.backbone.read(TokenBatch(batch, mask, mask), [read])[read]
        assert np.allclose(vector, states.mean(dim=0), atol=1e-5)


def test_a_border_that_is_not_exact_is_refused() -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    # a tokenizer without words: it merges across the space
    vocabulary = {token: k for k, token in enumerate(["<unk>", "a", "b", " ", "c", "d", " c", "b c"])}
    backend = Tokenizer(models.BPE(vocabulary, [(" ", "c"), ("b", " c")], unk_token="<unk>"))
    crossing = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<unk>", eos_token="<unk>")
    one = pico_model(crossing)
    with pytest.raises(
        UnmaskError, match=r"f, line 2: the prefix 'ab' has no exact border .* in 'ab c' a token crosses its end"
    ):
        prefix_tokens(one, Triple("ab", "c", "d", "a", "f, line 2"))
    ids, span = prefix_tokens(one, Triple("ab", "d", "a", "b"))
    assert span == (0, 2) and {tuple(own[:2]) for own in ids} == {(1, 2)}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ('{"prefix": "a", "query": "b", "same": "c"}', "column 'different'"),
        ('{"prefix": "a", "query": " ", "same": "c", "different": "d"}', "line 1: .* must not be empty"),
    ],
)
def test_a_bad_file_of_triples_is_refused(rows: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(rows + "\n", encoding="utf-8")
    with pytest.raises(UnmaskError, match=message):
        read_triples(tmp_path / "t.jsonl")


@pytest.fixture(scope="module")
def gap(tokenizer: Any) -> PrefixGap:
    return probe_prefixes(pico_model(tokenizer), read_triples()[:12])


def moved(gap: PrefixGap, by: Any) -> PrefixGap:
    gaps = np.array(gap.gaps) + by
    return replace(gap, gap=float(gaps.mean()), gaps=tuple(gaps.tolist()))


def test_a_step_is_the_gap_less_that_of_the_stage_before(gap: PrefixGap) -> None:
    """A gain that is the same in all triples is certain, however much the triples differ; one that is not is not."""
    noisy = np.where(np.arange(12) % 2, 0.5, -0.4)
    first, second, third = compare_stages(["a", "b", "c"], [gap, moved(gap, 0.1), moved(gap, 0.1 + noisy)]).stages
    assert first.step is None and second.step is not None and third.step is not None
    assert second.step.difference == pytest.approx(0.1) and second.step.interval == pytest.approx((0.1, 0.1))
    assert third.step.difference == pytest.approx(0.05)
    assert third.step.interval[0] < 0 < third.step.interval[1]
    assert [one.name for one in (first, second, third)] == ["a", "b", "c"]


def test_other_triples_are_refused(gap: PrefixGap) -> None:
    with pytest.raises(UnmaskError, match="same triples"):
        compare_stages(["a", "b"], [gap, replace(gap, data="other")])


def test_the_attention_of_a_stage_stands_behind_its_name(gap: PrefixGap) -> None:
    assert attention_in("out/model:bidirectional") == ("out/model", "bidirectional")
    assert attention_in("C:\\models\\mine") == ("C:\\models\\mine", None)


def test_a_layer_that_is_not_there_and_too_few_triples_are_refused(tokenizer: Any) -> None:
    with pytest.raises(UnmaskError, match="Layer 9 does not exist"):
        probe_prefixes(pico_model(tokenizer), TRIPLES, layer=9)
    with pytest.raises(UnmaskError, match="at least 2 triples"):
        probe_prefixes(pico_model(tokenizer), TRIPLES[:1])


@pytest.mark.sample(0)
@pytest.mark.real
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gap_of_a_real_causal_model_is_exactly_zero(dtype: str) -> None:
    found = probe_prefixes(load_encoder(Source("smollm2", dtype=dtype, device="cpu"), "causal"), read_triples()[:4])
    assert found.gaps == (0.0,) * 4
