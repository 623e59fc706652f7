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


def test_instructions_by_text_by_name_and_by_kind(told: Embedder, pico: Callable[..., Embedder]) -> None:
    plain, query = told.encode(TEXTS), told.encode(TEXTS, instruction=SAID["query"])
    assert np.array_equal(told.encode(TEXTS, instruction_name="query"), query) and not same(query, plain)
    assert np.array_equal(told.encode_query(TEXTS), query)
    assert np.array_equal(told.encode_document(TEXTS), told.encode(TEXTS, instruction=SAID["document"]))
    only_queries = pico("causal/instruction/mean", instructions={"query": SAID["query"]})
    assert np.array_equal(only_queries.encode_document(TEXTS), plain)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"instruction_name": "qeury"}, "Did you mean 'query'"),
        ({"instruction_name": "query", "instruction": "Other"}, "not both"),
        ({"dim": 65}, r"dim must be between 1 and 64, not 65\."),
        ({"dim": 0}, "not 0"),
        ({"dim": 8.0}, "dim must be a whole number"),
        ({"precision": "int4"}, "Unknown precision 'int4'"),
        ({"batch_size": 8}, "'batch_size'.*batch_tokens=4096"),
        ({"normalise": True}, "Did you mean 'normalize'"),
        ({"texts": "one text"}, "a list of texts, not one string"),
        ({"texts": {"text": ["a"]}}, "a list of texts, not dict"),
        ({"texts": np.array([["a", "b"]])}, "a list of texts, not ndarray"),
        ({"texts": pd.DataFrame({"text": ["a"]})}, "a list of texts, not DataFrame"),
        ({"texts": ["a", None]}, "Text 1 is NoneType, not str"),
        ({"texts": (number for number in (1, 2))}, "Text 0 is int, not str"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_invalid_arguments_are_refused_before_anything_is_computed(
    told: Embedder, options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Encoder, "encode", lambda *_, **__: pytest.fail("it was computed"))
    with pytest.raises(UnmaskError, match=message):
        told.encode(**{"texts": TEXTS, **options})


def test_anything_that_yields_texts_in_an_order_is_a_list_of_texts(plain: Embedder) -> None:
    vectors = plain.encode(TEXTS)
    assert vectors.shape == (len(TEXTS), 64) and vectors.dtype == np.float32
    columns = (np.array(TEXTS), pd.Series(TEXTS, index=range(6, 0, -1)), dict(enumerate(TEXTS)).values())
    for texts in (tuple(TEXTS), iter(TEXTS), (text for text in TEXTS), *columns):
        np.testing.assert_array_equal(plain.encode(texts), vectors)  # type: ignore[arg-type]


@pytest.mark.parametrize("dim", [1, 7, 64])
def test_dim_keeps_the_first_dimensions(plain: Embedder, dim: int) -> None:
    assert np.array_equal(plain.encode(TEXTS, dim=dim), plain.encode(TEXTS)[:, :dim])
    unit = plain.encode(TEXTS, dim=dim, normalize=True)
    np.testing.assert_allclose(unit, normalized(np.asarray(plain.encode(TEXTS, dim=dim), np.float32)), rtol=1e-5)
    small = plain.encode(TEXTS, dim=dim, precision="int8")
    assert np.abs(small.astype(int)).max(axis=1).tolist() == [127] * len(TEXTS)
    assert np.abs(plain.similarity(small, small) - plain.similarity(unit, unit)).max() < 0.02


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


def test_a_design_is_fitted_on_first_use_or_on_a_corpus_of_the_users_own(pico: Callable[..., Embedder]) -> None:
    embedder = pico("causal/plain/mean/sum:auto/zscore", "olmoe")
    first = embedder.encode(TEXTS)
    assert np.array_equal(embedder.fit(reference_texts()).encode(TEXTS), first)
    assert same(embedder.encode(TEXTS[:1]), first[:1])
    own = embedder.fit(TEXTS).encode(TEXTS)
    assert not same(own, first)
    restored = pico("causal/plain/mean/sum:auto/zscore", "olmoe", fit=embedder.fitted)
    assert np.array_equal(restored.encode(TEXTS), own)


@pytest.mark.filterwarnings("ignore:.*were cut")
def test_a_model_on_disk_is_fitted_on_the_reference_texts_once(
    pico_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unmask.embedder.cache_folder", lambda: tmp_path)
    fitted, fit = list[str](), Encoder.fit

    def counting(self: Encoder, designs: Any, texts: Any) -> Any:
        fitted.extend(design.name for design in designs)
        return fit(self, designs, texts)

    monkeypatch.setattr(Encoder, "fit", counting)

    def encode(family: str = "llama", design: str = "causal/plain/mean/zscore", **options: Any) -> Any:
        return Embedder.from_pretrained(pico_folder(family), design, device="cpu", dtype="float32", **options).encode(TEXTS)

    first = encode()
    assert np.array_equal(encode(), first) and len(fitted) == 1
    encode("qwen2")
    encode(design="causal/plain/last/zscore")
    encode(max_length=9)
    assert len(fitted) == 4
    [file, *_] = (tmp_path / "fits").iterdir()
    file.write_bytes(file.read_bytes()[:-20])
    for family, design in (("llama", "mean"), ("qwen2", "mean"), ("llama", "last")):
        encode(family, f"causal/plain/{design}/zscore")
    encode(max_length=9)
    assert len(fitted) == 5, "a damaged file is made again"


def test_mteb_names_a_saved_embedder_and_not_the_model_that_it_was_made_of(
    pico_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    made_of = Embedder.from_pretrained(pico_folder("llama"), "causal/plain/mean", device="cpu")
    made_of.save_pretrained(tmp_path / "trained")
    assert made_of.mteb_model_meta.name == f"unmask/{pico_folder('llama').name}"
    assert Embedder.from_pretrained(tmp_path / "trained", device="cpu").mteb_model_meta.name == "unmask/trained"


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


def test_what_is_named_instead_exists(plain: Embedder) -> None:
    with pytest.raises(AttributeError, match=r"no 'max_seq_length'. .*embedder\.max_length"):
        plain.max_seq_length  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"no 'colour'\.$"):
        plain.colour  # type: ignore[attr-defined]  # noqa: B018
    options = set(inspect.signature(Embedder.encode).parameters)
    loading = set(inspect.signature(Embedder.from_pretrained).parameters)
    attributes = [(name, hint) for hint in INSTEAD.values() for name in re.findall(r"embedder\.(\w+)", hint)]
    named_options = [(name, hint) for hint in INSTEAD.values() for name in re.findall(r"(\w+)=", hint)]
    assert attributes and named_options
    for attribute, hint in attributes:
        assert hasattr(plain, attribute), hint
    for option, hint in named_options:
        assert option in (loading if "from_pretrained" in hint else options), hint


def test_top_k_has_the_best_first_and_at_most_all_texts() -> None:
    queries, texts = np.array([[1.0, 0.0], [0.0, 3.0]]), np.array([[0.0, 1.0], [2.0, 0.0], [1.0, 1.0], [5.0, 0.0]])
    found = Embedder.top_k(queries, texts, 99)
    assert found.indices.tolist() == [[1, 3, 2, 0], [0, 2, 1, 3]]
    np.testing.assert_allclose(found.cosines, [[1, 1, 0.5**0.5, 0], [1, 0.5**0.5, 0, 0]], atol=1e-6)
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
    assert np.array_equal(found.indices, expected)
    assert np.array_equal(found.cosines, np.take_along_axis(cosines, expected, axis=1))
    assert peak < cosines.nbytes


@pytest.mark.parametrize("queries", [1, 5])
def test_equal_texts_have_equal_cosines_and_their_order(queries: int) -> None:
    """A product of matrices rounds a row by its place in the block, so that equal texts came in a random order."""
    rng = np.random.default_rng(0)
    texts = np.repeat(rng.standard_normal((1, 577)), 11, axis=0)
    found = Embedder.top_k(rng.standard_normal((queries, 577)), texts, 11)
    assert np.array_equal(found.indices, np.tile(np.arange(11), (queries, 1)))
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
