"""Chunk vectors: a chunk's vector is that of its text, whatever is beside it; places, counts and options are exact."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import TEXTS
from unmask.embedder import Embedder
from unmask.encoding.encoder import Tally
from unmask.encoding.quantization import finish
from unmask.errors import UnmaskError

DOCUMENTS = [" ".join(TEXTS[:5]), "", "x", " ".join(TEXTS[2:]), TEXTS[1], " ".join(TEXTS[:5])]
MODES = pytest.mark.parametrize("late", [False, True])


@pytest.fixture(scope="module")
def plain(pico: Callable[..., Embedder]) -> Embedder:
    return pico("causal/plain/mean")


@pytest.mark.parametrize(
    "design", ["causal/plain/mean", "causal/eol/last", "bidirectional/echo/mean", "causal/chat:eol/last@2"]
)
def test_a_chunk_has_the_vector_of_its_text(design: str, pico: Callable[..., Embedder]) -> None:
    embedder = pico(design)
    chunks = embedder.encode_chunks(DOCUMENTS, 16, 4)
    assert chunks.vectors.dtype == np.float32 and len(chunks) > len(DOCUMENTS)
    np.testing.assert_allclose(chunks.vectors, embedder.encode(chunks.texts(DOCUMENTS)), rtol=1e-5, atol=1e-5)


@MODES
def test_chunks_say_where_they_lie(late: bool, plain: Embedder) -> None:
    chunks = plain.encode_chunks(DOCUMENTS, 16, late=late)
    assert len(chunks) == len(chunks.vectors) == len(chunks.starts) == len(chunks.ends)
    assert (np.diff(chunks.documents) >= 0).all() and set(chunks.documents.tolist()) == set(range(len(DOCUMENTS)))
    for place, document in enumerate(DOCUMENTS):
        mine = chunks.documents == place
        assert chunks.numbers[mine].tolist() == list(range(mine.sum()))
        assert "".join(text for text, own in zip(chunks.texts(DOCUMENTS), mine, strict=True) if own) == document
    first, last = chunks.documents == 0, chunks.documents == len(DOCUMENTS) - 1
    np.testing.assert_allclose(chunks.vectors[first], chunks.vectors[last], rtol=1e-6)


@MODES
def test_no_documents_have_no_chunks(late: bool, plain: Embedder) -> None:
    chunks = plain.encode_chunks([], 16, late=late)
    assert len(chunks) == 0 and chunks.vectors.shape == (0, 64) and chunks.numbers.shape == (0,)


@MODES
def test_options_of_vectors_are_those_of_encode(late: bool, plain: Embedder) -> None:
    whole = plain.encode_chunks(DOCUMENTS, 16, late=late).vectors
    for options in ({"dim": 16}, {"normalize": True}, {"precision": "int8"}, {"precision": "binary", "dim": 8}):
        found = plain.encode_chunks(DOCUMENTS, 16, late=late, **options)  # type: ignore[arg-type]
        given: Any = {"dim": None, "normalize": False, "precision": "float32"} | options
        assert np.array_equal(found.vectors, finish(np.asarray(whole, np.float32), **given))


@MODES
def test_a_tally_counts_documents_and_tokens(late: bool, plain: Embedder) -> None:
    tally = Tally(texts=4)
    plain.encode_chunks(DOCUMENTS, 16, late=late, tally=tally)
    assert (tally.texts, tally.truncated, tally.cut) == (4 + len(DOCUMENTS), 0, [])
    read = DOCUMENTS if late else plain.encode_chunks(DOCUMENTS, 16).texts(DOCUMENTS)
    distinct = {text: max(1, len(plain.tokenizer(text)["input_ids"])) for text in read}  # equal tokens are computed once
    assert tally.tokens == sum(distinct.values())
    assert tally.padded >= tally.tokens


def test_a_document_whose_chunk_is_cut_is_counted_and_told(
    pico: Callable[..., Embedder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk alone may have a token more than it has in its document; here, a prompt that takes more room than it said."""
    embedder, tally = pico("causal/plain/mean", max_length=16), Tally(texts=2)
    monkeypatch.setattr("unmask.encoding.tokenization.PromptTokenizer.room", lambda *_: 20)
    with pytest.warns(UserWarning, match=r"2 of 6 texts were cut to 16 tokens: text 0, 5"):
        embedder.encode_chunks([DOCUMENTS[0], *DOCUMENTS[1:3], "a", "b", DOCUMENTS[0]], 20, tally=tally)
    assert (tally.texts, tally.truncated, tally.cut) == (8, 2, [2, 7])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        embedder.encode_chunks(["a"], 20, tally=tally)


@MODES
def test_a_vector_that_is_not_finite_names_its_document(late: bool, pico: Callable[..., Embedder]) -> None:
    embedder = pico("causal/plain/mean", max_length=32)
    [letter] = embedder.tokenizer("Z")["input_ids"]
    with torch.no_grad():
        embedder.backbone.model.get_input_embeddings().weight[letter] = float("inf")  # type: ignore[operator, union-attr]
    with pytest.raises(UnmaskError, match=r"of text 3 \(counted from 0\)|of text 3, 3"):
        embedder.encode_chunks([*DOCUMENTS[:3], f"{DOCUMENTS[0]} Z"], 16, late=late)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "at least 1 token"),
        ({"size": 16, "overlap": 9}, "half a chunk"),
        ({"size": 513}, "max_length 512 leaves 512 tokens"),
        ({"size": 16, "dim": 65}, "between 1 and 64"),
        ({"size": 16, "precision": "int4"}, "int4"),
        ({"size": 16, "instruction": "Find"}, "would change nothing"),
        ({"size": 16, "instruction_name": "query"}, "has none"),
    ],
)
def test_mistakes_are_found_before_anything_is_computed(
    options: dict[str, Any], message: str, plain: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unmask.encoding.encoder.Encoder.encode_tokenized", lambda *_, **__: pytest.fail("it was computed"))
    with pytest.raises(UnmaskError, match=message):
        plain.encode_chunks(DOCUMENTS, **options)


@pytest.mark.parametrize("texts", ["one text", [3], {"a": "b"}])
def test_what_is_no_list_of_texts_is_refused(texts: Any, plain: Embedder) -> None:
    with pytest.raises(UnmaskError, match=r"list of texts|not str"):
        plain.encode_chunks(texts, 16)
