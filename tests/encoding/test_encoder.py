"""Encoding: the vector of a text is a function of that text, for every design, however the texts are batched."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.cases import cases as in_one_test
from tests.conftest import TEXTS, make_tokenizer
from tests.families import FAMILIES, Family
from tests.proofs import ALL
from unmask.designs.design import ROUTINGS, Design, parse_designs
from unmask.designs.prompts import PROMPTS
from unmask.embedder import Embedder
from unmask.encoding.backbone import Backbone
from unmask.encoding.batching import collate
from unmask.encoding.encoder import Encoder, Tally
from unmask.encoding.features import Fit
from unmask.encoding.forward_pass import Vectors, group_by_pass, require_finite
from unmask.encoding.pooling import POOLINGS
from unmask.encoding.quantization import normalized
from unmask.encoding.tokenization import TokenizedText, together
from unmask.errors import AttentionError, UnmaskError
from unmask.models.source import Source
from unmask.saving.load_model import load_encoder
from unmask.starter import reference_texts

TRIED = [prompt for prompt in PROMPTS if prompt != "plain"] if ALL else ["eos", "eol", "echo", "instruction"]
"""A prompt of each shape: what is after the text, what is around it, the text twice, what is before it. The others change only words."""
DENSE = [
    *(f"causal/plain/{pooling}" for pooling in POOLINGS),
    "bidirectional/plain/first",
    "bidirectional/plain/mean",
    *(f"causal/{prompt}/last" for prompt in TRIED),
    "causal/chat:eol/last",
    'causal/"Topic of: {text}"/weighted-mean',
    "causal/eol/last@2",
    "causal/eol/last@all",
    "causal/plain/mean@mean",
    "causal/plain/mean/zscore",
    "causal/plain/mean/whiten:8",
    "causal/eol/last+0.7mean/zscore/filter:16",
    "causal/plain/mean@1+2/filter/zscore",
    "causal/eol+sentiment/last",
    "causal/echo+eol/mean+last@2/zscore",
    "causal/echo+eol/last@1+2/zscore/filter:8",
    'bidirectional/chat:eol+echo+"Topic of: {text}"/mean@all/zscore',
]
SPARSE = [
    "causal/plain/mean/routing",
    *(f"causal/eol/last/routing~{routing}" for routing in ROUTINGS),
    "causal/plain/mean",
    "causal/eol/last/concat",
    "causal/eol/last/sum:0.5",
    "causal/eol/last@1/sum",
    "causal/echo/mean@all/concat/zscore",
    "causal/eol/last/sum:auto",
    "causal/eol/last/sum:auto/zscore",
    "causal/eol/last+mean/sum:auto/zscore/filter:8",
    "causal/plain/mean/concat/whiten:6",
    "bidirectional/plain/mean/sum",
    "causal/eol+intent+style/last/sum:auto/zscore",
    "causal/eol+plain/mean/routing~topk",
]
CASES = [*(("llama", name) for name in DENSE), *(("olmoe", name) for name in SPARSE)]
LIMIT = 64
HARD = [*TEXTS, "", "  ", "🙂 今日は", "long " * 200, "</s>"]

cases = in_one_test("family, name", CASES)
Encode = Callable[..., dict[Design, Vectors]]
Hard = Callable[[str, str], Vectors]


@pytest.fixture(scope="module")
def encoders(language_model_folder: Callable[[str], Path]) -> dict[str, Encoder]:
    families = ("llama", "olmoe")
    with torch.inference_mode(False):  # whichever test is first, its weights serve all
        return {
            family: load_encoder(
                Source(str(language_model_folder(family)), dtype="float32", device="cpu"), "causal", max_length=LIMIT
            )
            for family in families
        }


@pytest.fixture(scope="module")
def encode(encoders: dict[str, Encoder]) -> Encode:
    """Encode texts with designs that share attention and prompt, fitted on a few reference texts."""
    fitted: dict[tuple[str, Design], Fit] = {}

    def run(family: str, names: Sequence[str], texts: Sequence[str] = HARD, batch_tokens: int = 256, **options: Any) -> Any:
        designs, encoder = list(parse_designs(names).values()), replace(encoders[family], batch_tokens=batch_tokens)
        for design in designs:
            if (family, design) not in fitted:
                fitted[family, design] = replace(encoder, batch_tokens=512).fit([design], reference_texts()[:12])[design]
        fits = {design: fitted[family, design] for design in designs}
        return encoder.encode(texts, fits, **options)

    return run


@pytest.fixture(scope="module")
def hard(encode: Encode) -> Hard:
    """The vectors of the hard texts under a design, computed once for all tests."""

    @functools.cache
    def vectors(family: str, name: str) -> Vectors:
        found = only(encode(family, [name]))
        found.setflags(write=False)
        return found

    return vectors


def only(found: dict[Design, Vectors]) -> Vectors:
    (vectors,) = found.values()
    return vectors


def close(found: Vectors, expected: Vectors) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * float(np.abs(expected).max()))


@cases
def test_a_vector_is_a_function_of_its_text(encode: Encode, hard: Hard, family: str, name: str) -> None:
    """Alone, in any order, in batches of any size; copies are equal; and different texts have different vectors."""
    together = hard(family, name)
    assert together.dtype == np.float32 and np.isfinite(together).all()
    close(np.concatenate([only(encode(family, [name], [text])) for text in HARD]), together)
    order = np.random.default_rng(0).permutation(len(HARD))
    for batch_tokens in (16, 4096):
        close(only(encode(family, [name], [HARD[k] for k in order], batch_tokens)), together[order])
    assert np.array_equal(only(encode(family, [name], [HARD[0], *HARD, HARD[2]])), together[[0, *range(len(HARD)), 2]])
    none = only(encode(family, [name], []))
    assert none.shape == (0, together.shape[1]) and none.dtype == np.float32
    distinct = together[[HARD.index(text) for text in sorted(set(TEXTS))]]
    distances = np.abs(distinct[:, None] - distinct[None]).max(axis=2)
    assert distances[~np.eye(len(distinct), dtype=bool)].min() > 1e-3


@pytest.mark.parametrize("prompt", ["plain", "plain+eol"])
def test_a_pad_token_that_the_model_does_not_embed_changes_nothing(prompt: str, pico: Callable[..., Embedder]) -> None:
    embedder = pico(f"causal/{prompt}/mean")
    padding = make_tokenizer()
    padding.add_special_tokens({"pad_token": "[PAD]"})
    assert padding.pad_token_id == embedder.backbone.model.get_input_embeddings().num_embeddings
    other = Embedder.from_model(embedder.backbone.model, padding, f"causal/{prompt}/mean")
    assert np.array_equal(other.encode(TEXTS), embedder.encode(TEXTS))


@pytest.mark.parametrize("start", ["causal/plain/", "causal/eol/", "bidirectional/plain/"])
@pytest.mark.parametrize("family", ["llama", "olmoe"])
def test_many_designs_in_one_pass_are_each_alone(encode: Encode, hard: Hard, family: str, start: str) -> None:
    ends = [*POOLINGS, *(f"{pooling}@{layer}" for pooling in POOLINGS for layer in (1, 2, "all")), "last/zscore"]
    if family == "olmoe":
        ends += [
            "last/routing",
            "mean/routing~topk",
            "mean/concat/zscore",
            "last/sum:auto",
            "last@1/sum:0.5",
            "mean/sum:1/zscore",
        ]
    names = [start + end for end in ends]
    together = encode(family, names)
    assert [design.name for design in together] == names
    for design, vectors in together.items():
        assert np.array_equal(vectors, hard(family, design.name))


def test_layers_are_concatenated_at_unit_length_or_averaged(hard: Hard) -> None:
    layers = [hard("llama", f"causal/plain/mean@{layer}") for layer in (1, 2, 3)]
    close(hard("llama", "causal/plain/mean@all"), np.concatenate([normalized(layer) for layer in layers], axis=1))
    close(hard("llama", "causal/plain/mean@mean"), np.mean(layers, axis=0))


@pytest.mark.parametrize("batch_tokens", [1, 64, 4096])
def test_progress_follows_the_tokens_and_counts_every_text(encode: Encode, batch_tokens: int) -> None:
    done: list[int] = []
    texts = ["a " * length for length in (100, 10, 50, 20, *[1] * 20)]
    encode("llama", ["causal/plain/mean"], texts, batch_tokens, progress=done.append)
    assert sum(done) == len(texts)
    if batch_tokens == 1:  # a batch a text, the longest first; equal texts are one
        assert done[0] > done[1] > done[2] and len(done) == 5


def test_the_tally_counts_texts_cuts_and_tokens(encode: Encode, tokenizer: Any) -> None:
    tally = Tally()
    encode("llama", ["causal/plain/mean"], HARD, 4096, tally=tally)
    lengths = {text: max(1, min(LIMIT, len(tokenizer(text)["input_ids"]))) for text in HARD}
    assert (tally.texts, tally.truncated) == (len(HARD), 1)
    assert tally.tokens <= tally.padded
    distinct = sum(lengths.values()) - lengths[""]  # "" and "</s>" are the same tokens
    assert tally.tokens == distinct
    encode("llama", ["causal/plain/mean"], ["long " * 200] * 3, tally=tally)
    assert (tally.texts, tally.truncated, tally.tokens) == (len(HARD) + 3, 4, distinct + LIMIT)


# ---- what is not finite ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("design", ["causal/plain/mean", "causal/plain/last@1", "causal/plain/mean@all"])
def test_a_vector_that_is_not_finite_is_refused_with_its_text_and_a_way_out(design: str, pico: Callable[..., Embedder]) -> None:
    """The model overflows on one token, the letter Z, which the proof of attention does not meet."""
    embedder, done = pico(design), list[int]()
    [letter] = embedder.tokenizer("Z")["input_ids"]
    embedder.backbone.model.get_input_embeddings().weight.data[letter] = float("inf")
    assert np.isfinite(embedder.encode(TEXTS)).all()
    texts = [*TEXTS, "Z", "fine", "a Z", *(f"Z{number}" for number in range(6))]
    with pytest.raises(UnmaskError, match=r"not finite.*of text 6, 8, 9, 10, 11 and 3 more \(counted from 0\).*in float32"):
        embedder.encode(texts)
    with pytest.raises(UnmaskError, match="of text 0"):
        small = replace(embedder.encoder, batch_tokens=64)
        small.encode(["Z " * 40, *TEXTS], {embedder.design: Fit()}, progress=done.append)
    assert sum(done) < len(TEXTS), "raised with its batch"


def test_the_remedy_depends_on_the_precision() -> None:
    values = np.array([[1, np.nan], [1, 2]], np.float32)
    for dtype, remedy in ((torch.float16, "float16, whose largest.*--dtype bfloat16"), (torch.bfloat16, "Use --dtype float32")):
        with pytest.raises(UnmaskError, match=remedy):
            require_finite(values, [4, 5], dtype)


def test_a_model_whose_states_overflow_is_refused_when_it_is_loaded() -> None:
    model = FAMILIES["llama"].build(dtype=torch.float16)
    model.get_input_embeddings().weight.data.fill_(6e4)
    model.layers[0].mlp.down_proj.weight.data.fill_(6e4)
    with pytest.raises(AttentionError, match=r"LlamaModel are not finite.*in float16.*Use another --dtype"):
        Backbone(model, "causal")


def with_longrope(tokenizer: Any = None) -> Encoder:
    """A model that rotates by other frequencies beyond 1024 tokens."""
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
    settings = {"original_max_position_embeddings": 1024, "max_position_embeddings": 4096, "sliding_window": None}
    family = Family(
        "phi3-longrope",
        "phi3",
        settings | {"rope_parameters": rope | {"original_max_position_embeddings": 1024}, "num_hidden_layers": 1},
    )
    return Encoder(Backbone(family.build(), "causal"), tokenizer, Source("longrope"), max_length=4096, batch_tokens=4096)


def test_texts_on_different_sides_of_the_border_of_longrope_share_no_batch(tokenizer: Any) -> None:
    """LongRoPE rotates a batch by other frequencies if its longest text is longer than the model was first trained for.

    In an average, the border counts in every prompt: here all texts are beyond it in one prompt, and one text in the other.
    """
    encoder, design = with_longrope(tokenizer), Design("causal", "plain", "last")
    ids = torch.randint(3, 512, (1040,), generator=torch.Generator().manual_seed(0)).tolist()
    below, beyond = (TokenizedText(tuple(ids[:length]), 0) for length in (1024, 1025))

    def encode(design: Design, *texts: TokenizedText) -> Vectors:
        return encoder.encode_tokenized(texts, {design: Fit()})[design]

    in_one_batch = encoder.backbone.raw(collate([below, beyond], 0), [design])[design].hidden
    assert in_one_batch is not None and np.abs(in_one_batch[0].detach().numpy() - encode(design, below)[0]).max() > 0.01
    average = Design.parse("causal/eol+plain/last")
    cases = {design: (below, beyond), average: (together([beyond, below]), together([beyond, beyond]))}
    for reading, texts in cases.items():
        alone = np.concatenate([encode(reading, text) for text in texts])
        np.testing.assert_allclose(encode(reading, *texts), alone, atol=1e-4)


# ---- several passes ---------------------------------------------------------------------------------------------------

MIXED = [
    "bidirectional/plain/mean",
    "causal/eol/last",
    "causal/eol/last/sum:auto/zscore",
    "causal/plain/last@1",
    "causal/eol/mean/routing",
]


def test_designs_of_any_attention_and_prompt_have_the_vectors_of_an_embedder(encoders: dict[str, Encoder]) -> None:
    designs, encoder, done = list(parse_designs(MIXED).values()), encoders["olmoe"], list[int]()
    assert [len(group) for group in group_by_pass(designs).values()] == [3, 1, 1]
    fits = encoder.fit(designs, reference_texts()[:12])
    vectors = encoder.encode(TEXTS, fits, progress=done.append, share_text=True)
    assert sum(done) == 3 * len(TEXTS) and encoder.backbone.attention == "causal"
    for design in designs:
        np.testing.assert_allclose(vectors[design], Embedder(encoder, design, fit=fits[design]).encode(TEXTS), atol=2e-5)


def test_a_design_that_cannot_be_served_is_refused_before_anything_is_computed(encoders: dict[str, Encoder]) -> None:
    done: list[int] = []
    with pytest.raises(UnmaskError, match="no router"):
        encoders["llama"].encode(TEXTS, dict.fromkeys(parse_designs(MIXED).values(), Fit()), progress=done.append)
    assert done == []
