"""Embedder.encode: every option changes the vectors or is refused, and no text's vector depends on its neighbours."""

import inspect
import re
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from tests.conftest import TEXTS
from tests.families import FAMILIES
from unmask.embedder import Embedder
from unmask.encoding.encoder import Encoder, Tally
from unmask.encoding.forward_pass import Vectors
from unmask.encoding.quantization import normalized
from unmask.encoding.sentence_transformers_aliases import INSTEAD
from unmask.errors import UnmaskError
from unmask.starter import reference_texts

SAID = {"query": "Find what answers it", "document": "Remember this", "topic": "Name its topic"}
NUMBERS = st.floats(-1e4, 1e4, width=32).map(lambda x: x if abs(x) > 1e-3 else 0.0)
VECTORS = arrays("float32", array_shapes(min_dims=2, max_dims=2, max_side=9), elements=NUMBERS)


@pytest.fixture(scope="module")
def plain(pico: Callable[..., Embedder]) -> Embedder:
    return pico("causal/plain/mean")


@pytest.fixture(scope="module")
def told(pico: Callable[..., Embedder]) -> Embedder:
    return pico("causal/instruction/mean", instructions=SAID)


def same(one: Any, other: Any) -> bool:
    return one.shape == other.shape and bool(np.allclose(one, other, rtol=1e-5, atol=1e-5))


def test_vectors_are_float32_in_the_order_of_the_texts(plain: Embedder) -> None:
    found = plain.encode(TEXTS)
    assert found.shape == (len(TEXTS), 64) and found.dtype == np.float32
    assert same(found[::-1], plain.encode(TEXTS[::-1]))
    assert np.array_equal(plain.encode(tuple(TEXTS)), plain.encode(np.array(TEXTS)))  # type: ignore[arg-type]
    assert plain.encode([]).shape == (0, 64)


def test_an_instruction_by_text_and_by_name_is_the_same(told: Embedder) -> None:
    for name, instruction in SAID.items():
        assert np.array_equal(told.encode(TEXTS, instruction_name=name), told.encode(TEXTS, instruction=instruction))
    assert not same(told.encode(TEXTS, instruction_name="query"), told.encode(TEXTS, instruction_name="topic"))
    assert not same(told.encode(TEXTS, instruction_name="query"), told.encode(TEXTS))


def test_queries_and_documents_get_their_instruction_if_there_is_one(told: Embedder, pico: Callable[..., Embedder]) -> None:
    assert np.array_equal(told.encode_query(TEXTS), told.encode(TEXTS, instruction=SAID["query"]))
    assert np.array_equal(told.encode_document(TEXTS), told.encode(TEXTS, instruction=SAID["document"]))
    only_queries = pico("causal/instruction/mean", instructions={"query": SAID["query"]})
    assert np.array_equal(only_queries.encode_document(TEXTS), only_queries.encode(TEXTS))
    assert not same(only_queries.encode_query(TEXTS), only_queries.encode_document(TEXTS))


def test_an_unknown_or_doubled_instruction_is_refused(told: Embedder, plain: Embedder) -> None:
    with pytest.raises(UnmaskError, match="Did you mean 'query'"):
        told.encode(TEXTS, instruction_name="qeury")
    with pytest.raises(UnmaskError, match="not both"):
        told.encode(TEXTS, instruction="Other", instruction_name="query")
    with pytest.raises(UnmaskError, match="this embedder has none"):
        plain.encode(TEXTS, instruction_name="query")


def test_an_instruction_that_changes_nothing_is_refused(plain: Embedder, pico: Callable[..., Embedder]) -> None:
    with pytest.raises(UnmaskError, match="would change nothing"):
        plain.encode(TEXTS, instruction="Find it")
    with pytest.raises(UnmaskError, match="would change nothing"):
        pico("causal/eol/last", instructions=SAID)


@pytest.mark.parametrize("dim", [1, 7, 64])
def test_dim_keeps_the_first_dimensions(plain: Embedder, dim: int) -> None:
    assert np.array_equal(plain.encode(TEXTS, dim=dim), plain.encode(TEXTS)[:, :dim])
    unit = plain.encode(TEXTS, dim=dim, normalize=True)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, rtol=1e-5)


def test_normalize_keeps_the_direction(plain: Embedder) -> None:
    unit, raw = plain.encode(TEXTS, normalize=True), plain.encode(TEXTS)
    np.testing.assert_allclose(unit * np.linalg.norm(raw, axis=1, keepdims=True), raw, rtol=1e-5)


def as_generator() -> Any:
    return (text for text in TEXTS)


@pytest.mark.parametrize(
    "texts",
    [
        tuple(TEXTS),
        iter(TEXTS),
        as_generator(),
        np.array(TEXTS),
        np.array(TEXTS, dtype=object),
        pd.Series(TEXTS),
        pd.Series(TEXTS, index=range(6, 0, -1)),
        dict(enumerate(TEXTS)).values(),
    ],
    ids=lambda texts: type(texts).__name__,
)
def test_anything_that_yields_texts_in_an_order_is_a_list_of_texts(plain: Embedder, texts: Any) -> None:
    np.testing.assert_array_equal(plain.encode(texts), plain.encode(TEXTS))


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("one text", r"a list of texts, not one string"),
        (b"one text", r"a list of texts, not one string"),
        (None, r"a list of texts, not NoneType"),
        (7, r"a list of texts, not int"),
        ({"text": ["a"]}, r"a list of texts, not dict"),
        ({"a", "b"}, r"a list of texts, not set"),
        (np.array([["a", "b"]]), r"a list of texts, not ndarray"),
        (np.array("a"), r"a list of texts, not ndarray"),
        (pd.DataFrame({"text": ["a"]}), r"a list of texts, not DataFrame"),
        (["a", None], r"Text 1 is NoneType, not str"),
        (["a", "b", b"c"], r"Text 2 is bytes, not str"),
        ((number for number in (1, 2)), r"Text 0 is int, not str"),
        (pd.Series(["a", float("nan")], dtype=object), r"Text 1 is float, not str"),
        ([["a"]], r"Text 0 is list, not str"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_is_no_list_of_texts_is_refused_before_anything_is_computed(
    plain: Embedder, texts: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Encoder, "encode", lambda *_, **__: pytest.fail("it was computed"))
    with pytest.raises(UnmaskError, match=message):
        plain.encode(texts)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dim": 65}, r"dim must be between 1 and 64, not 65\."),
        ({"dim": 8.0}, r"dim must be a whole number between 1 and 64, not 8\.0\."),
        ({"dim": True}, "dim must be a whole number"),
        ({"dim": 0}, r"dim must be between 1 and 64, not 0\."),
        ({"dim": -1}, r"dim must be between 1 and 64, not -1\."),
        ({"precision": "int4"}, "Unknown precision 'int4'"),
    ],
)
def test_an_option_that_cannot_be_is_refused_before_the_texts_are_computed(
    plain: Embedder, options: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    encode = Encoder.encode

    def watched(self: Encoder, texts: Any, *arguments: Any, **options: Any) -> Any:
        asked.extend(texts)
        return encode(self, texts, *arguments, **options)

    monkeypatch.setattr(Encoder, "encode", watched)
    with pytest.raises(UnmaskError, match=said):
        plain.encode(TEXTS, **options)
    assert not asked


@pytest.mark.parametrize("name", ["causal/plain/mean", "causal/eol/last@all", "causal/plain/max/zscore"])
def test_cosines_survive_int8(pico: Callable[..., Embedder], name: str) -> None:
    embedder = pico(name)
    small = embedder.encode(TEXTS, precision="int8")
    assert small.dtype == np.int8
    assert np.abs(small.astype(int)).max(axis=1).tolist() == [127] * len(TEXTS)
    assert np.abs(embedder.similarity(small, small) - embedder.similarity(*[embedder.encode(TEXTS)] * 2)).max() < 0.02


@given(VECTORS)
def test_similarity_is_the_cosine(vectors: Vectors) -> None:
    found = Embedder.similarity(vectors, vectors)
    assert found.dtype == np.float32 and found.shape == (len(vectors), len(vectors))
    assert np.abs(found).max() <= 1 + 1e-5
    np.testing.assert_allclose(found, found.T, atol=1e-6)
    np.testing.assert_allclose(np.diag(found), np.linalg.norm(normalized(vectors), axis=1) ** 2, atol=1e-5)


def test_a_text_that_is_cut_is_reported_once(pico: Callable[..., Embedder]) -> None:
    embedder, tally = pico("causal/plain/mean", max_length=12), Tally(texts=9, truncated=5, cut=[0, 1, 2, 3, 8])
    with pytest.warns(UserWarning, match=f"2 of {len(TEXTS)} texts were cut to 12 tokens: text 1, 2 "):
        found = embedder.encode([*TEXTS[:1], TEXTS[1], TEXTS[4], "x", "x", "x"], tally=tally)
    assert (tally.texts, tally.truncated) == (9 + len(TEXTS), 7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(embedder.encode(["x"], tally=tally), found[3:4])


@pytest.mark.parametrize("prompt", ["plain", "eos", "eol", "echo", "instruction", "chat:plain", "chat:eol"])
def test_an_empty_text_has_a_vector_of_its_own(pico: Callable[..., Embedder], prompt: str) -> None:
    embedder = pico(f"causal/{prompt}/mean")
    together, alone = embedder.encode(["", *TEXTS, ""]), embedder.encode([""])
    assert np.isfinite(alone).all() and np.abs(alone).max() > 0
    assert same(together[[0, -1]], np.concatenate([alone, alone]))
    assert not same(embedder.encode(["x"]), alone)


CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "attention": ("bidirectional/plain/mean", {}),
    "prompt": ("causal/eol/mean", {}),
    "chat": ("causal/chat:plain/mean", {}),
    "pooling": ("causal/plain/last", {}),
    "layer": ("causal/plain/mean@2", {}),
    "layers": ("causal/plain/mean@all", {}),
    "features": ("causal/plain/mean/concat", {}),
    "alpha": ("causal/plain/mean/sum:0.5", {}),
    "auto": ("causal/plain/mean/sum:auto", {}),
    "one": ("causal/plain/mean/sum:1", {}),
    "routing": ("causal/plain/mean/sum:1~topk", {}),
    "zscore": ("causal/plain/mean/zscore", {}),
    "zscore and sum": ("causal/plain/mean/sum:1/zscore", {}),
    "max_length": ("causal/plain/mean", {"max_length": 5}),
    "none": ("causal/plain/mean", {}),
}


@pytest.mark.filterwarnings("ignore:.*were cut to")
def test_every_option_changes_the_vectors(pico: Callable[..., Embedder]) -> None:
    found = {name: pico(design, "olmoe", **options).encode(TEXTS) for name, (design, options) in CHANGES.items()}
    alike = [(one, other) for one in found for other in found if one < other and same(found[one], found[other])]
    assert alike == []


@pytest.mark.parametrize("batch_tokens", [1, 16, 4096])
def test_the_size_of_a_batch_changes_no_vector(pico: Callable[..., Embedder], plain: Embedder, batch_tokens: int) -> None:
    embedder = pico("causal/plain/mean", batch_tokens=batch_tokens)
    assert embedder.batch_tokens == batch_tokens
    assert same(embedder.encode(TEXTS), plain.encode(TEXTS))


def test_a_design_is_fitted_on_first_use_or_on_a_corpus_of_the_users_own(pico: Callable[..., Embedder]) -> None:
    embedder = pico("causal/plain/mean/sum:auto/zscore", "olmoe")
    first = embedder.encode(TEXTS)
    assert np.array_equal(embedder.fit(reference_texts()).encode(TEXTS), first)
    assert same(embedder.encode(TEXTS[:1]), first[:1])
    own = embedder.fit(TEXTS).encode(TEXTS)
    assert not same(own, first)
    restored = pico("causal/plain/mean/sum:auto/zscore", "olmoe", fit=embedder.fitted)
    assert np.array_equal(restored.encode(TEXTS), own)


def test_mteb_names_a_saved_embedder_and_not_the_model_that_it_was_made_of(
    pico_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    made_of = Embedder.from_pretrained(pico_folder("llama"), "causal/plain/mean", device="cpu")
    made_of.save_pretrained(tmp_path / "trained")
    assert made_of.mteb_model_meta.name == f"unmask/{pico_folder('llama').name}"
    assert Embedder.from_pretrained(tmp_path / "trained", device="cpu").mteb_model_meta.name == "unmask/trained"


def test_a_design_that_the_model_cannot_serve_is_refused(pico: Callable[..., Embedder]) -> None:
    for design, says in (("moee", "no router"), ("causal/plain/mean@4", "3 layers"), ("promteol", "'prompteol'")):
        with pytest.raises(UnmaskError, match=says):
            pico(design)


def test_a_language_model_with_its_head_is_refused(tokenizer: Any) -> None:
    with pytest.raises(UnmaskError, match=r"LlamaForCausalLM has a language-model head\. Load the model with AutoModel"):
        Embedder.from_model(FAMILIES["llama"].build_language_model(), tokenizer, "causal/plain/mean")


def test_another_design_of_the_same_load(pico: Callable[..., Embedder]) -> None:
    first = pico("causal/instruction/mean", max_length=40, batch_tokens=64, instructions={"query": "Find it"})
    for name in ("bidirectional/plain/last@1", "causal/instruction-eos/last"):
        other, alone = first.with_design(name), pico(name, max_length=40, batch_tokens=64)
        assert np.array_equal(other.encode(TEXTS), alone.encode(TEXTS))
        assert other.backbone.model is first.backbone.model
        assert (other.max_length, other.batch_tokens) == (40, 64)
        assert other.instructions == (first.instructions if "instruction" in name else {})
    assert first.with_design("causal/instruction/mean") is first
    with pytest.raises(UnmaskError, match="layer 9"):
        first.with_design("causal/plain/mean@9")


def test_a_text_longer_than_the_model_has_positions_is_cut_to_them(pico: Callable[..., Embedder]) -> None:
    embedder = pico("causal/plain/mean", family="gpt2", max_length=100_000)
    assert embedder.prompt.max_length == 512  # the pico model's positions
    with pytest.warns(UserWarning, match=r"1 of 1 texts was cut to 512 tokens: text 0 .*--max-length"):
        assert np.isfinite(embedder.encode(["never ending " * 1000])).all()


def test_vectors_whose_squares_overflow_are_normalised_all_the_same() -> None:
    large = np.array([[3e30, 4e30], [3, 4]], np.float32)
    np.testing.assert_allclose(normalized(large), [[0.6, 0.8], [0.6, 0.8]], rtol=1e-6)


# --- what a newcomer looks for ---------------------------------------------------------------------------------------


def test_an_embedder_says_what_it_is(pico: Callable[..., Embedder]) -> None:
    embedder = pico("causal/plain/mean", max_length=12)
    text = repr(embedder)
    assert text.startswith(f"Embedder('{embedder.source.model}', design='causal/plain/mean', max_length=12, dtype='")
    assert text.endswith("device='cpu')") and "\n" not in text
    assert (embedder.dim, embedder.device.type, embedder.max_length) == (64, "cpu", 12)


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("batch_size", "batch_tokens=4096"),
        ("convert_to_tensor", "torch.from_numpy"),
        ("normalize_embeddings", "normalize=True"),
        ("show_progress_bar", "show_progress=True"),
        ("prompt_name", "instruction_name="),
        ("normalise", "Did you mean 'normalize'"),
    ],
)
def test_an_option_of_another_library_is_refused_with_ours(plain: Embedder, option: str, instead: str) -> None:
    encoders: tuple[Any, ...] = (plain.encode, plain.encode_query, plain.encode_document)
    for encode in encoders:
        with pytest.raises(UnmaskError, match=f"'{option}'.*{instead}"):
            encode(TEXTS, **{option: 1})


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("get_sentence_embedding_dimension", r"embedder\.dim"),
        ("to", "device='cuda'"),
        ("max_seq_length", r"embedder\.max_length"),
    ],
)
def test_a_method_of_another_library_names_ours(plain: Embedder, name: str, instead: str) -> None:
    assert not hasattr(plain, name)
    with pytest.raises(AttributeError, match=f"no '{name}'. .*{instead}"):
        getattr(plain, name)
    with pytest.raises(AttributeError, match=r"no 'colour'\.$"):
        plain.colour  # type: ignore[attr-defined]  # noqa: B018


def test_what_is_named_instead_exists(plain: Embedder) -> None:
    options = set(inspect.signature(Embedder.encode).parameters)
    loading = set(inspect.signature(Embedder.from_pretrained).parameters)
    attributes = [(name, hint) for hint in INSTEAD.values() for name in re.findall(r"embedder\.(\w+)", hint)]
    named_options = [(name, hint) for hint in INSTEAD.values() for name in re.findall(r"(\w+)=", hint)]
    assert attributes and named_options
    for attribute, hint in attributes:
        assert hasattr(plain, attribute), hint
    for option, hint in named_options:
        assert option in (loading if "from_pretrained" in hint else options), hint


def test_top_k_by_hand() -> None:
    queries, texts = np.array([[1.0, 0.0], [0.0, 3.0]]), np.array([[0.0, 1.0], [2.0, 0.0], [1.0, 1.0], [5.0, 0.0]])
    found = Embedder.top_k(queries, texts, 3)
    assert found.places.tolist() == [[1, 3, 2], [0, 2, 1]]
    np.testing.assert_allclose(found.cosines, [[1, 1, 0.5**0.5], [1, 0.5**0.5, 0]], atol=1e-6)
    assert Embedder.top_k(queries, texts, 99).places.shape == (2, 4)
    with pytest.raises(UnmaskError, match="at least 1, not 0"):
        Embedder.top_k(queries, texts, 0)


def test_top_k_is_computed_in_blocks_and_keeps_the_order_of_ties(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors of a single one have exact cosines, most of which are equal."""
    vectors = np.eye(8, dtype=np.float32)[np.arange(400) * 3 % 8]
    cosines = vectors @ vectors.T
    expected = np.argsort(-cosines, axis=1, kind="stable")[:, :10]
    monkeypatch.setattr("unmask.embedder._COSINES", 2**12, raising=False)
    tracemalloc.start()
    found = Embedder.top_k(vectors, vectors)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert np.array_equal(found.places, expected)
    assert np.array_equal(found.cosines, np.take_along_axis(cosines, expected, axis=1))
    assert peak < cosines.nbytes


@pytest.mark.parametrize("queries", [1, 5])
def test_equal_texts_have_equal_cosines_and_their_order(queries: int) -> None:
    """A product of matrices rounds a row by its place in the block, so that equal texts came in a random order."""
    rng = np.random.default_rng(0)
    texts = np.repeat(rng.standard_normal((1, 577)), 11, axis=0)
    found = Embedder.top_k(rng.standard_normal((queries, 577)), texts, 11)
    assert np.array_equal(found.places, np.tile(np.arange(11), (queries, 1)))
    assert (found.cosines == found.cosines[:, :1]).all()


def test_instructions_of_a_saved_embedder_go_with_its_prompt(pico: Callable[..., Embedder], tmp_path: Path) -> None:
    """Another design may have no place for them. Those that are given have to have one."""
    pico("causal/instruction/mean", instructions=SAID).save_pretrained(tmp_path / "saved")
    loading: Any = {"dtype": "float32", "device": "cpu"}
    assert Embedder.from_pretrained(tmp_path / "saved", "causal/instruction/last", **loading).instructions == SAID
    plain = Embedder.from_pretrained(tmp_path / "saved", "mean", **loading)
    assert plain.instructions == {} and plain.design.name == "causal/plain/mean"
    with pytest.raises(UnmaskError, match="so instructions would change nothing"):
        Embedder.from_pretrained(tmp_path / "saved", "mean", instructions=SAID, **loading)
