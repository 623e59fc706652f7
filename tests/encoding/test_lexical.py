"""Lexical vectors: the logits of a text's own words, as the whole language model gives them, whatever else is in the batch."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import TEXTS
from tests.families import FAMILIES
from unmask.designs.design import Design
from unmask.embedder import Embedder
from unmask.encoding.features import Fit
from unmask.encoding.lexical import (
    KEPT,
    dot_products,
    entries,
    inverse_frequencies,
    lexical_vectors,
    unpacked,
    weighted,
)
from unmask.errors import UnmaskError
from unmask.models.output_layer import OutputLayer

LEXICAL = "causal/eol/last/lexical"
every_family = pytest.mark.parametrize("family", FAMILIES)
Make = Callable[..., Embedder]


@pytest.fixture(scope="module")
def lexical(language_model_folder: Callable[[str], Path]) -> Make:
    """An embedder of a family whose language-model head is on the disk. One without options is loaded once: tests only read it."""
    loaded: dict[tuple[str, str], Embedder] = {}

    def make(family: str = "llama", design: str = LEXICAL, **options: Any) -> Embedder:
        if (family, design) in loaded and not options:
            return loaded[family, design]
        with torch.inference_mode(False):  # whichever test is first, its weights serve all
            made = Embedder.from_pretrained(language_model_folder(family), design, dtype="float32", device="cpu", **options)
        if not options and not made.design.needs_fit:  # a fit would stay with it
            loaded[family, design] = made
        return made

    return make


def rows(embedder: Embedder, texts: Sequence[str], **options: Any) -> Any:
    return embedder.encode_sparse(texts, **options).toarray()


def layer(logits: Sequence[float]) -> OutputLayer:
    """The logit of a token after the state [1]."""
    return OutputLayer(torch.tensor(logits)[:, None], None, tied=False)


ONE = torch.ones(1, 1)


@pytest.mark.sample(8)
@every_family
@torch.inference_mode()  # type: ignore[untyped-decorator]
def test_a_vector_is_what_the_language_model_gives(
    language_model_folder: Callable[[str], Path], lexical: Make, family: str
) -> None:
    """All logits after the rendered prompt, and by hand those of the words."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    whole = AutoModelForCausalLM.from_pretrained(language_model_folder(family), dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(language_model_folder(family))
    found = rows(lexical(family), TEXTS)
    assert (found > 0).any(axis=1).sum() >= 3
    for text, row in zip(TEXTS, found, strict=True):
        ids = tokenizer(f'This sentence : "{text}" means in one word:"', return_tensors="pt")["input_ids"]
        values = torch.log(1 + whole(input_ids=ids).logits[0, -1].clamp_min(0))
        words = re.findall("[a-z]+", text.lower())
        own = {token for word in words for token in tokenizer(word, add_special_tokens=False)["input_ids"]}
        expected = [float(values[token]) if token in own else 0.0 for token in range(len(row))]
        assert np.allclose(row, expected, atol=1e-4)


def test_rows_unpack_to_the_matrix_that_they_stand_for() -> None:
    packed = lexical_vectors(ONE.expand(3, 1), [[1, 4], [], [4]], layer([1.0, 2.0, 3.0, 4.0, 5.0])).numpy()
    matrix = unpacked(packed, 6)
    expected = np.zeros((3, 6))
    expected[0, 1], expected[0, 4], expected[2, 4] = np.log1p([2.0, 5.0, 5.0])
    assert np.allclose(matrix.toarray(), expected) and matrix.dtype == np.float32 and matrix.nnz == 3
    assert np.allclose(dot_products(packed, torch.from_numpy(packed)), expected @ expected.T)
    assert [ids for ids, _ in entries(packed)] == [[1, 4], [], [4]]
    assert json.loads(json.dumps(list(entries(packed))))[2][1] == pytest.approx([np.log1p(5.0)])


def test_idf_by_hand() -> None:
    """Token 1 is in two of three texts, token 4 in one, every other in none."""
    packed = lexical_vectors(ONE.expand(3, 1), [[1, 4], [], [1]], layer([1.0, 2.0, 3.0, 4.0, 5.0]))
    idf = inverse_frequencies([packed])
    assert torch.equal(idf, inverse_frequencies([packed[2:], packed[:1], packed[1:2]]))
    by_hand = [np.log(1 + (3 - f + 0.5) / (f + 0.5)) for f in (0, 2, 0, 0, 1, 0)]
    assert np.allclose(idf, by_hand)
    other = lexical_vectors(ONE, [[1, 7]], layer([1.0] * 8))
    found = unpacked(weighted(other, idf).numpy(), 8).toarray()[0]
    assert np.allclose(found[[1, 7]], np.log(2) * np.sqrt([by_hand[1], by_hand[0]]))


def test_a_head_that_is_not_tied_is_not_saved(lexical: Make, tmp_path: Path) -> None:
    with pytest.raises(UnmaskError, match="holds no language-model head"):
        lexical("llama").save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_the_largest_values_are_kept_in_the_order_of_their_tokens() -> None:
    for shift in (0, 1):  # fewer and more than KEPT words with a positive logit
        logits = torch.randn(400, generator=torch.Generator().manual_seed(0)) + shift
        words = list(range(0, 400, 2))
        [row] = lexical_vectors(ONE, [words], layer(logits.tolist()))
        best = sorted(sorted((token for token in words if logits[token] > 0), key=lambda token: -logits[token])[:KEPT])
        assert row[: len(best)].tolist() == best and not row[len(best) : KEPT].any()
        assert torch.allclose(row[KEPT : KEPT + len(best)], torch.log1p(logits[best]))


@pytest.mark.sample(6)
@every_family
def test_vectors_do_not_depend_on_the_batch(lexical: Make, family: str) -> None:
    embedder, small = lexical(family), lexical(family, batch_tokens=60)
    together = rows(embedder, TEXTS)
    assert np.allclose(np.concatenate([rows(embedder, [text]) for text in TEXTS]), together, atol=2e-5)
    assert np.allclose(rows(small, TEXTS[::-1]), together[::-1], atol=2e-5)
    dense = Design.parse("prompteol")
    both = embedder.encoder.encode(TEXTS, {embedder.design: Fit(), dense: Fit()})
    assert np.allclose(both[dense], embedder.with_design(dense).encode(TEXTS), atol=1e-5), "in one pass with dense designs"
    assert np.allclose(unpacked(both[embedder.design], 512).toarray(), together, atol=2e-5)


def test_the_tokens_of_words(lexical: Make) -> None:
    """Case, position, punctuation and composition of letters do not matter."""
    prompts = lexical().prompt

    def tokens(text: str) -> list[int]:
        return prompts.word_ids(list(prompts.tokenize([text])))[0]

    def alone(word: str) -> list[int]:
        return sorted(set(prompts.tokenizer(word, add_special_tokens=False)["input_ids"]))

    assert tokens("a red ball") == tokens("Red! ball? a") == tokens('"BALL", a (red)') == tokens("ball ball a red a")
    assert tokens("Cafe\u0301!") == tokens("caf\u00e9") == alone("caf\u00e9")
    assert tokens("(हिन्दी)") == alone("हिन्दी")
    assert tokens("_snake_case") == tokens("snake case")
    assert tokens("\u0301") == tokens("...") == []
    assert not rows(lexical(), ["", "?! \n", "🎉"]).any() and lexical().encode_sparse([]).shape == (0, 512)


def test_saved_and_loaded_again_vectors_are_bit_equal(
    lexical: Make, language_model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """A tied head is saved; an adapter has the head of its base."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(language_model_folder("llama")),
        LoraConfig(target_modules=["v_proj"], init_lora_weights=False),
    )
    model.save_pretrained(tmp_path / "adapter")
    adapter, tied = lexical(adapter=str(tmp_path / "adapter")), lexical("gemma2", f"{LEXICAL}/idf").fit(TEXTS)
    for number, embedder in enumerate((adapter, tied)):
        embedder.save_pretrained(tmp_path / str(number))
        again = Embedder.from_pretrained(tmp_path / str(number), device="cpu")
        assert again.design == embedder.design and (rows(again, TEXTS) == rows(embedder, TEXTS)).all()
    assert not np.allclose(rows(adapter, TEXTS), rows(lexical(), TEXTS))


def test_dense_and_sparse_vectors_have_their_methods(lexical: Make) -> None:
    embedder = lexical()
    for call in (lambda: embedder.encode(TEXTS), lambda: embedder.encode_query([]), lambda: embedder.dim):
        with pytest.raises(UnmaskError, match="are sparse: use Embedder"):
            call()
    with pytest.raises(UnmaskError, match="are dense: use encode"):
        embedder.with_design("prompteol").encode_sparse(TEXTS)
