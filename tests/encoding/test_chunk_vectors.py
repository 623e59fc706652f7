"""Chunk vectors: a chunk is embedded like its text; with late chunking, and for tokens and words, it is pooled from the full text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import TEXTS
from tests.families import EACH_KIND, FAMILIES
from tests.proofs import ALL
from unmask.embedder import Embedder
from unmask.encoding.chunking import Chunks
from unmask.encoding.encoder import Tally
from unmask.encoding.heads import HEADS, HeadOptions, build_head
from unmask.encoding.pooling import POOLINGS
from unmask.errors import UnmaskError

DOCUMENT = " ".join(TEXTS[:5])
DOCUMENTS = [DOCUMENT, "", "x", " ".join(TEXTS[2:]), TEXTS[1], DOCUMENT]
MODES = pytest.mark.parametrize("late", [False, True])
LATE = [
    *(("llama", f"{attention}/plain/{pooling}") for attention in ("causal", "bidirectional") for pooling in POOLINGS),
    ("llama", "bidirectional/plain/mean@all"),
    ("llama", 'causal/"Topic of: {text}"/weighted-mean/zscore'),
    ("olmoe", "bidirectional/plain/last/routing~topk"),
    ("olmoe", "causal/plain/mean@1/concat"),
    *(("llama", f"causal/plain/{head}") for head in HEADS if head != "compression-tokens"),  # it reads what follows the text
]
Make = Callable[..., Embedder]


@pytest.fixture(scope="module")
def plain(pico: Make) -> Embedder:
    return pico("causal/plain/mean")


def close(found: Any, expected: Any) -> bool:
    return found.shape == expected.shape and bool(np.abs(found - expected).max() <= 1e-5 * max(1, np.abs(expected).max()))


def states_of(embedder: Embedder, ids: list[int]) -> Any:
    """The last states of the model itself, without hooks, batches or poolings of ours."""
    with torch.inference_mode(), embedder.backbone.computing():
        return embedder.backbone.model(torch.tensor([ids]), use_cache=False).last_hidden_state[0].float().numpy()


# --- chunks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("design", ["causal/eol/last", "bidirectional/echo/mean", "causal/chat:eol/last@2"])
def test_a_chunk_has_the_vector_of_its_text(design: str, pico: Make) -> None:
    embedder = pico(design)
    chunks = embedder.encode_chunks(DOCUMENTS, 16, 4)
    assert chunks.vectors.dtype == np.float32 and len(chunks) > len(DOCUMENTS)
    assert close(chunks.vectors, embedder.encode(chunks.texts(DOCUMENTS)))


@MODES
def test_chunks_say_where_they_lie(late: bool, plain: Embedder) -> None:
    chunks = plain.encode_chunks(DOCUMENTS, 16, late=late)
    assert len(chunks) == len(chunks.vectors)
    for index, document in enumerate(DOCUMENTS):
        mine = chunks.documents == index
        assert chunks.numbers[mine].tolist() == list(range(mine.sum()))
        assert "".join(text for text, own in zip(chunks.texts(DOCUMENTS), mine, strict=True) if own) == document
    none = plain.encode_chunks([], 16, late=late)
    assert len(none) == 0 and none.vectors.shape == (0, 64) and none.numbers.shape == (0,)


@MODES
def test_a_tally_counts_documents_and_tokens(late: bool, plain: Embedder) -> None:
    tally = Tally(texts=4)
    chunks = plain.encode_chunks(DOCUMENTS, 16, late=late, tally=tally)
    assert (tally.texts, tally.truncated, tally.cut) == (4 + len(DOCUMENTS), 0, [])
    computed = set(DOCUMENTS if late else chunks.texts(DOCUMENTS))  # equal tokens are computed once
    assert tally.tokens == sum(max(1, len(plain.tokenizer(text)["input_ids"])) for text in computed) <= tally.padded


@MODES
def test_a_vector_that_is_not_finite_names_its_document(late: bool, pico: Make) -> None:
    embedder = pico("causal/plain/mean", max_length=32)
    [letter] = embedder.tokenizer("Z")["input_ids"]
    embedder.backbone.model.get_input_embeddings().weight.data[letter] = float("inf")
    with pytest.raises(UnmaskError, match=r"of text 3 \(counted from 0\)|of text 3, 3"):
        embedder.encode_chunks([*DOCUMENTS[:3], f"{DOCUMENTS[0]} Z"], 16, late=late)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "at least 1 token"),
        ({"size": 16, "overlap": 9}, "half a chunk"),
        ({"size": 513}, "max_length 512 leaves 512 tokens"),
        ({"size": 16, "dim": 65}, "between 1 and 64"),
        ({"size": 16, "instruction": "Find"}, "would change nothing"),
        ({"size": 16, "instruction_name": "query"}, "has none"),
    ],
)
def test_invalid_options_are_refused_before_anything_is_computed(
    options: dict[str, Any], message: str, plain: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unmask.encoding.encoder.Encoder.encode_tokenized", lambda *_, **__: pytest.fail("it was computed"))
    with pytest.raises(UnmaskError, match=message):
        plain.encode_chunks(DOCUMENTS, **options)


# --- late chunks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "design"), LATE)
def test_late_chunks_do_not_depend_on_the_batch_and_one_chunk_is_a_text(family: str, design: str, pico: Make) -> None:
    head = design.rpartition("/")[2]
    options = {"head": build_head(head, 64, 3, HeadOptions(latents=4))} if head in HEADS else {}
    embedder, documents = pico(design, family, **options), [DOCUMENT, "", *TEXTS, DOCUMENT[40:], DOCUMENT]
    chunks = embedder.encode_chunks([*TEXTS, ""], 200, late=True)
    assert close(chunks.vectors, embedder.encode([*TEXTS, ""]))
    together = embedder.encode_chunks(documents, 12, 3, late=True)
    small = pico(design, family, batch_tokens=64, **options, fit=embedder.fitted)
    assert close(small.encode_chunks(documents, 12, 3, late=True).vectors, together.vectors)
    for index, document in enumerate(documents):
        assert close(
            embedder.encode_chunks([document], 12, 3, late=True).vectors, together.vectors[together.documents == index]
        )


@pytest.mark.sample(8)
@pytest.mark.parametrize(
    ("attention", "family"),
    [
        (attention, family)
        for attention in ("causal", "bidirectional")
        for family in (FAMILIES if ALL else EACH_KIND)
        if attention == "causal" or FAMILIES[family].bidirectional == "yes"
    ],
)
def test_every_family_pools_a_chunk_from_the_states_of_the_document(attention: str, family: str, pico: Make) -> None:
    embedder = pico(f"{attention}/plain/mean", family)
    chunks = embedder.encode_chunks([DOCUMENT, TEXTS[4]], 16, 4, late=True)
    encoded = embedder.tokenizer(DOCUMENT, return_offsets_mapping=True)
    states, mine = states_of(embedder, encoded["input_ids"]), chunks.documents == 0
    assert mine.sum() > 3
    for start, end, vector in zip(chunks.starts[mine], chunks.ends[mine], chunks.vectors[mine], strict=True):
        tokens = [token for token, (first, last) in enumerate(encoded["offset_mapping"]) if start <= first and last <= end]
        assert 0 < len(tokens) <= 16 and close(vector, states[tokens].mean(axis=0))


def test_an_instruction_is_seen_and_not_pooled(pico: Make) -> None:
    embedder = pico("causal/instruction/mean", instructions={"document": "Remember it"})
    documents = [f"{text} number {number}" for number, text in enumerate(TEXTS * 2)]  # enough to cache the instruction
    late = embedder.encode_chunks(documents, 16, late=True, instruction_name="document")
    first = np.flatnonzero(late.numbers == 0)  # causal: the first chunk sees only itself and the instruction
    assert close(late.vectors[first], embedder.encode([late.texts(documents)[row] for row in first], instruction="Remember it"))
    assert not close(embedder.encode_chunks(documents, 16, late=True).vectors[first], late.vectors[first])


@pytest.mark.parametrize(("attention", "prefix"), [("causal", ""), ("bidirectional", ""), ("causal", "jz")])
def test_a_document_beyond_the_limit_is_read_in_windows(attention: str, prefix: str, pico: Make) -> None:
    """Against states of the model itself, in windows by hand: letters are tokens, windows of 20, chunks of 6."""
    embedder = pico(f'{attention}/"{prefix}{{text}}"/mean', max_length=len(prefix) + 20)
    prompt = embedder.tokenizer(prefix)["input_ids"]
    document = "qzxjqkzvwxqjzkvxqzjkwvxzqjkxzvqwjxkzqv"
    ids = embedder.tokenizer(document)["input_ids"]
    assert len(ids) == len(document)
    held = {0: [(0, 6), (6, 12), (12, 18)], 8: [(18, 24)], 14: [(24, 30)], 20: [(30, 36), (36, 38)]}
    late = embedder.encode_chunks([document], 6, late=True)
    assert list(zip(late.starts, late.ends, strict=True)) == [span for spans in held.values() for span in spans]
    expected = []
    for begin, spans in held.items():
        states = states_of(embedder, [*prompt, *ids[begin : begin + 20]])[len(prompt) :]
        expected += [states[start - begin : end - begin].mean(axis=0) for start, end in spans]
    assert close(late.vectors, np.stack(expected))


@pytest.mark.parametrize(
    ("design", "nearest"),
    [
        ("causal/eos/last@2", "causal/plain/last@2"),
        ("bidirectional/instruction-eos/mean", "bidirectional/instruction/mean"),
        ("causal/chat:plain/mean", "causal/plain/mean"),
        ('causal/"A: {text}!"/mean/zscore', "causal/plain/mean/zscore"),
    ],
)
def test_prompts_that_continue_after_the_text_are_refused(design: str, nearest: str, pico: Make) -> None:
    with pytest.raises(UnmaskError, match=f"ends with it.*'{nearest}'"):
        pico(design).encode_chunks([DOCUMENT], 16, late=True)
    with pytest.raises(UnmaskError, match=f"ends with it.*'{nearest}'"):
        pico(design).encode_tokens(TEXTS)
    assert len(pico(nearest).encode_chunks([DOCUMENT], 16, late=True)) > 1


def test_a_conditioned_head_is_refused(pico: Make) -> None:
    head = build_head("cross-attention", 64, 3, HeadOptions(conditioned=True))
    with pytest.raises(UnmaskError, match="reads the tokens of an instruction"):
        pico("causal/instruction/cross-attention", head=head).encode_chunks([DOCUMENT], 16, late=True)


# --- tokens and words ------------------------------------------------------------------------------------------------


def test_a_token_has_its_state_and_a_word_the_mean_of_its_tokens(pico: Make) -> None:
    texts = ["Paris is a city.", "", "  two  spaces ", "ü 🎉 日本", "one"]
    embedder = pico("bidirectional/plain/mean")
    tokens, words = embedder.encode_tokens(texts), embedder.encode_tokens(texts, "word")
    assert words.texts(texts) == [word for text in texts for word in text.split()]

    def spans(units: Chunks, index: int) -> list[tuple[int, int]]:
        mine = units.documents == index
        return list(zip(units.starts[mine].tolist(), units.ends[mine].tolist(), strict=True))

    for index, text in enumerate(texts):
        encoded = embedder.tokenizer(text, return_offsets_mapping=True)
        offsets = encoded["offset_mapping"]
        assert spans(tokens, index) == sorted(set(offsets))
        states = states_of(embedder, encoded["input_ids"] or [0])
        for units in (tokens, words):
            for (start, end), vector in zip(spans(units, index), units.vectors[units.documents == index], strict=True):
                inside = [token for token, (first, stop) in enumerate(offsets) if first < end and stop > start]
                assert close(vector, states[inside].mean(0))


def test_a_long_text_has_a_vector_for_every_word(pico: Make) -> None:
    text = "several words in a row " * 20
    embedder = pico("causal/instruction/last@2", max_length=24)
    words = embedder.encode_tokens([text], "word", instruction="Find it.", normalize=True)
    assert words.texts([text]) == text.split()
    np.testing.assert_allclose(np.linalg.norm(words.vectors, axis=1), 1, atol=1e-5)
