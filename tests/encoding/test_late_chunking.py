"""Late chunking: a chunk is pooled from its own tokens in the whole document, on every family and for every design that can do it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import TEXTS, make_tokenizer
from tests.encoding.test_tokenization import greedy_tokenizer
from tests.families import EACH_KIND, FAMILIES
from tests.proofs import ALL
from unmask.designs.design import Design
from unmask.embedder import Embedder
from unmask.encoding.chunking import Chunking, windows
from unmask.encoding.heads import HeadOptions, build_head
from unmask.encoding.pooling import POOLINGS
from unmask.encoding.prefix_cache import shared_length
from unmask.encoding.tokenization import PromptTokenizer
from unmask.errors import UnmaskError

DOCUMENT = " ".join(TEXTS[:5])
ATTENTIONS = ("causal", "bidirectional")
DESIGNS = [
    *(("llama", f"{attention}/plain/{pooling}") for attention in ATTENTIONS for pooling in POOLINGS),
    ("llama", "causal/plain/mean@1"),
    ("llama", "bidirectional/plain/mean@all"),
    ("llama", "bidirectional/plain/mean@mean"),
    ("llama", "causal/plain/last/zscore"),
    ("llama", 'causal/"Topic of: {text}"/weighted-mean'),
    ("olmoe", "causal/plain/mean/routing"),
    ("olmoe", "bidirectional/plain/last/routing~topk"),
    ("olmoe", "causal/plain/mean@1/concat"),
    ("olmoe", "causal/plain/weighted-mean/sum:0.5"),
]
designs = pytest.mark.parametrize(("family", "design"), DESIGNS)


def close(found: Any, expected: Any) -> bool:
    return found.shape == expected.shape and bool(np.abs(found - expected).max() <= 1e-5 * max(1, np.abs(expected).max()))


def families_under(attention: str) -> list[str]:
    tried = FAMILIES if ALL else EACH_KIND
    return [name for name in tried if attention == "causal" or FAMILIES[name].bidirectional == "yes"]


# --- what a chunk's vector is ----------------------------------------------------------------------------------------


@designs
def test_a_document_of_one_chunk_has_the_vector_of_encode(family: str, design: str, pico: Callable[..., Embedder]) -> None:
    embedder = pico(design, family)
    chunks = embedder.encode_chunks([*TEXTS, ""], 200, late=True)
    assert chunks.documents.tolist() == list(range(7)) and not chunks.starts.any()
    assert close(chunks.vectors, embedder.encode([*TEXTS, ""]))


@pytest.mark.sample(8)
@pytest.mark.parametrize(("attention", "family"), [(a, family) for a in ATTENTIONS for family in families_under(a)])
def test_every_family_pools_a_chunk_from_the_states_of_the_whole_document(
    attention: str, family: str, pico: Callable[..., Embedder]
) -> None:
    """Against the states of the model itself, without hooks, batches or poolings of ours."""
    embedder = pico(f"{attention}/plain/mean", family)
    chunks = embedder.encode_chunks([DOCUMENT, TEXTS[4]], 16, 4, late=True)
    encoded = embedder.tokenizer(DOCUMENT, return_offsets_mapping=True)
    with torch.inference_mode(), embedder.backbone.computing():
        states = embedder.backbone.model(torch.tensor([encoded["input_ids"]]), use_cache=False).last_hidden_state[0]
    mine = chunks.documents == 0
    assert mine.sum() > 3
    for start, end, vector in zip(chunks.starts[mine], chunks.ends[mine], chunks.vectors[mine], strict=True):
        own = [place for place, (first, last) in enumerate(encoded["offset_mapping"]) if start <= first and last <= end]
        assert 0 < len(own) <= 16
        assert close(vector, states[own].float().mean(dim=0).numpy())


@pytest.mark.parametrize("family", FAMILIES if ALL else EACH_KIND)
def test_under_causal_attention_the_first_chunk_knows_only_itself(family: str, pico: Callable[..., Embedder]) -> None:
    embedder = pico("causal/plain/mean@all", family)
    late = embedder.encode_chunks([DOCUMENT], 16, late=True)
    alone = embedder.encode(late.texts([DOCUMENT]))
    assert close(late.vectors[0], alone[0])
    assert any(not close(vector, own) for vector, own in zip(late.vectors[1:], alone[1:], strict=True))


def test_under_bidirectional_attention_the_first_chunk_knows_what_follows(pico: Callable[..., Embedder]) -> None:
    embedder = pico("bidirectional/plain/mean")
    late = embedder.encode_chunks([DOCUMENT], 16, late=True)
    assert not close(late.vectors[0], embedder.encode(late.texts([DOCUMENT]))[0])


@pytest.mark.sample(6)
@designs
def test_alone_is_as_in_a_batch(family: str, design: str, pico: Callable[..., Embedder]) -> None:
    documents = [DOCUMENT, "", *TEXTS, DOCUMENT[40:], DOCUMENT]
    embedder, small = pico(design, family), pico(design, family, batch_tokens=64)
    together = embedder.encode_chunks(documents, 12, 3, late=True)
    assert close(small.encode_chunks(documents, 12, 3, late=True).vectors, together.vectors)
    for place, document in enumerate(documents):
        alone = embedder.encode_chunks([document], 12, 3, late=True)
        mine = together.documents == place
        assert close(alone.vectors, together.vectors[mine])
        assert np.array_equal(alone.starts, together.starts[mine]) and np.array_equal(alone.ends, together.ends[mine])


@pytest.mark.parametrize("kind", ["cross-attention", "latent-attention", "layer-attention"])
def test_heads_pool_chunks_too(kind: str, pico: Callable[..., Embedder]) -> None:
    embedder = pico(f"causal/plain/{kind}", head=build_head(kind, 64, 3, HeadOptions(latents=4)))
    late = embedder.encode_chunks([DOCUMENT], 16, late=True)
    assert close(late.vectors[0], embedder.encode(late.texts([DOCUMENT]))[0])
    assert close(embedder.encode_chunks([DOCUMENT], 100, late=True).vectors, embedder.encode([DOCUMENT]))


def test_an_instruction_is_seen_and_not_pooled(pico: Callable[..., Embedder]) -> None:
    embedder = pico("causal/instruction/mean", instructions={"document": "Remember it"})
    documents = [f"{text} number {number}" for number, text in enumerate(TEXTS * 2)]
    assert shared_length(list(embedder.prompt.tokenize(documents, "Remember it"))), "the instruction is computed once for all"
    late = embedder.encode_chunks(documents, 16, late=True, instruction_name="document")
    first = [place for place, number in enumerate(late.numbers) if number == 0]
    expected = embedder.encode([late.texts(documents)[place] for place in first], instruction="Remember it")
    assert close(late.vectors[first], expected)
    assert not close(embedder.encode_chunks(documents, 16, late=True).vectors[first], expected)


@pytest.mark.parametrize("make", [lambda: make_tokenizer(add_bos=True), greedy_tokenizer])
def test_other_tokenizers(make: Callable[[], Any]) -> None:
    embedder = Embedder.from_model(FAMILIES["llama"].build(), make(), 'causal/"Topic of: {text}"/mean')
    for text in [*TEXTS, "", "🙂", " a"]:
        assert close(embedder.encode_chunks([text], 200, late=True).vectors, embedder.encode([text]))
    assert len(embedder.encode_chunks([DOCUMENT], 12, 6, late=True)) > 6


# --- windows ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", ["plain", '"Topic of: {text}"'])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("size", "overlap"), [(4, 0), (10, 5), (20, 3), (28, 14)])
def test_windows_hold_every_chunk_with_half_a_window_before(
    prompt: str, causal: bool, size: int, overlap: int, tokenizer: Any
) -> None:
    limit = 40
    limited = PromptTokenizer(tokenizer, Design.parse(f"causal/{prompt}/mean").prompts[0], limit)
    document = " ".join([DOCUMENT] * 4)
    spans = Chunking(size, overlap).split(tokenizer, document)
    whole, _ = limited.untruncated(document)
    room, before = limited.room(), whole.start
    found = list(windows(limited, document, spans, causal))
    assert len(found) > 2 and sum(len(window.spans) for window in found) == len(spans)
    at = 0
    for window in found:
        assert len(window.ids) <= limit and window.ids[:before] == whole.ids[:before]
        assert not causal or window.ids[-1] == window.ids[window.spans[-1][1] - 1]
        assert not causal or len(window.ids) == window.spans[-1][1]
        for first, stop in window.spans:
            text = tokenizer.decode(window.ids[first:stop])
            start, end = spans[at]
            assert text.strip() == document[start:end].strip()
            at += 1
        assert all(one < other for one, other in pairwise(window.spans))
    for window in found[1:]:
        first, stop = window.spans[0]
        assert first - before >= min(room // 2, room - (stop - first))


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_document_beyond_the_limit_is_read_in_windows(attention: str, pico: Callable[..., Embedder]) -> None:
    """Against states of the model itself, in windows by hand: letters are tokens, windows of 20, chunks of 6."""
    embedder = pico(f"{attention}/plain/mean", max_length=20)
    document = "qzxjqkzvwxqjzkvxqzjkwvxzqjkxzvqwjxkzqv"
    ids = embedder.tokenizer(document)["input_ids"]
    assert len(ids) == len(document)
    held = {0: [(0, 6), (6, 12), (12, 18)], 8: [(18, 24)], 14: [(24, 30)], 20: [(30, 36), (36, 38)]}
    late = embedder.encode_chunks([document], 6, late=True)
    assert list(zip(late.starts.tolist(), late.ends.tolist(), strict=True)) == [
        span for spans in held.values() for span in spans
    ]
    expected = []
    for begin, spans in held.items():
        with torch.inference_mode(), embedder.backbone.computing():
            states = embedder.backbone.model(torch.tensor([ids[begin : begin + 20]]), use_cache=False).last_hidden_state[0]
        expected += [states[start - begin : end - begin].mean(dim=0).numpy() for start, end in spans]
    assert close(late.vectors, np.stack(expected))


# --- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("design", "nearest"),
    [
        ("causal/eol/last", "causal/plain/last"),
        ("causal/eos/last@2", "causal/plain/last@2"),
        ("causal/echo/mean", "causal/plain/mean"),
        ("bidirectional/instruction-eos/mean", "bidirectional/instruction/mean"),
        ("causal/chat:plain/mean", "causal/plain/mean"),
        ('causal/"A: {text}!"/mean/zscore', "causal/plain/mean/zscore"),
    ],
)
def test_a_prompt_that_goes_on_after_the_text_is_refused_with_the_nearest_design(
    design: str, nearest: str, pico: Callable[..., Embedder], monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = pico(design)
    monkeypatch.setattr("unmask.encoding.encoder.Encoder.encode_tokenized", lambda *_, **__: pytest.fail("it was computed"))
    with pytest.raises(UnmaskError, match=f"ends with it.*'{nearest}'") as caught:
        embedder.encode_chunks([DOCUMENT], 16, late=True)
    monkeypatch.undo()
    assert len(str(caught.value)) < 300
    assert len(pico(nearest).encode_chunks([DOCUMENT], 16, late=True)) > 1


def test_a_conditioned_head_is_refused(pico: Callable[..., Embedder]) -> None:
    head = build_head("cross-attention", 64, 3, HeadOptions(conditioned=True))
    with pytest.raises(UnmaskError, match="reads the tokens of an instruction"):
        pico("causal/instruction/cross-attention", head=head).encode_chunks([DOCUMENT], 16, late=True)
