"""Lexical vectors: the logits of a text's own words, as the whole language model gives them, whatever else is in the batch."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import TEXTS
from tests.families import FAMILIES
from unmask.designs.design import Design
from unmask.embedder import Embedder
from unmask.encoding.backbone import TokenBatch
from unmask.encoding.batching import collate
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
def folder_of(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folders: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in folders:
            folders[family] = tmp_path_factory.mktemp(family)
            FAMILIES[family].build_language_model().save_pretrained(folders[family])
            tokenizer.save_pretrained(folders[family])
        return folders[family]

    return make


@pytest.fixture(scope="module")
def lexical(folder_of: Callable[[str], Path]) -> Make:
    """An embedder of a family whose language-model head is on the disk. One without options is loaded once: tests only read it."""
    loaded: dict[tuple[str, str], Embedder] = {}

    def make(family: str = "llama", design: str = LEXICAL, **options: Any) -> Embedder:
        if (family, design) in loaded and not options:
            return loaded[family, design]
        with torch.inference_mode(False):  # whichever test is first, its weights serve all
            made = Embedder.from_pretrained(folder_of(family), design, dtype="float32", device="cpu", **options)
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
def test_a_vector_is_what_the_language_model_gives(folder_of: Callable[[str], Path], lexical: Make, family: str) -> None:
    """All logits after the rendered prompt, and by hand those of the words."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    whole = AutoModelForCausalLM.from_pretrained(folder_of(family), dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder_of(family))
    found = rows(lexical(family), TEXTS)
    assert (found > 0).any(axis=1).sum() >= 3
    for text, row in zip(TEXTS, found, strict=True):
        ids = tokenizer(f'This sentence : "{text}" means in one word:"', return_tensors="pt")["input_ids"]
        values = torch.log(1 + whole(input_ids=ids).logits[0, -1].clamp_min(0))
        words = re.findall("[a-z]+", text.lower())
        own = {token for word in words for token in tokenizer(word, add_special_tokens=False)["input_ids"]}
        expected = [float(values[token]) if token in own else 0.0 for token in range(len(row))]
        assert np.allclose(row, expected, atol=1e-4)


@pytest.mark.sample(6)
@every_family
def test_alone_is_as_in_a_batch_in_any_order(lexical: Make, family: str) -> None:
    embedder = lexical(family)
    together = rows(embedder, TEXTS)
    alone = np.concatenate([rows(embedder, [text]) for text in TEXTS])
    assert np.allclose(alone, together, atol=2e-5)
    small = lexical(family, batch_tokens=60)
    assert np.allclose(rows(small, TEXTS[::-1]), together[::-1], atol=2e-5)


@every_family
@torch.inference_mode()  # type: ignore[untyped-decorator]
def test_padding_on_either_side_changes_nothing(lexical: Make, family: str) -> None:
    embedder = lexical(family)
    texts = list(embedder.prompts.tokenize(TEXTS))
    own, expected = embedder.prompts.parts[0].word_ids(texts), rows(embedder, TEXTS)
    right = collate(texts, 7)
    order = torch.argsort(right.real.int(), dim=1, stable=True)  # padding first, then the tokens in their order
    left = [torch.gather(part, 1, order) for part in (right.ids, right.real, right.embed)]
    [raw] = embedder.backbone.raw(TokenBatch(left[0], left[1], left[2], word_ids=own), [embedder.design]).values()
    assert raw.lexical is not None
    assert np.allclose(unpacked(raw.lexical.numpy(), 512).toarray(), expected, atol=2e-5)


def test_one_forward_pass_serves_lexical_and_dense_designs(lexical: Make) -> None:
    from unmask.encoding.features import Fit

    embedder = lexical()
    dense = Design.parse("prompteol")
    found = replace(embedder.encoder, batch_tokens=200).encode(TEXTS, {embedder.design: Fit(), dense: Fit()}, share_text=False)
    assert np.allclose(found[dense], embedder.with_design("prompteol").encode(TEXTS), atol=1e-5)
    assert np.allclose(unpacked(found[embedder.design], 512).toarray(), rows(embedder, TEXTS), atol=2e-5)


def test_case_place_and_punctuation_of_a_word_do_not_matter(lexical: Make) -> None:
    """They change the logits, but not which tokens have one."""
    embedder = lexical()
    first, *others = embedder.prompts.parts[0].word_ids(
        list(embedder.prompts.tokenize(["a red ball", "Red! ball? a", '"BALL", a (red)', "ball ball a red a"]))
    )
    assert first == sorted(set(first)) and others == [first] * 3


def test_combining_marks_continue_a_word(lexical: Make) -> None:
    prompts = lexical().prompt

    def own(text: str) -> list[int]:
        [tokens] = prompts.word_ids(list(prompts.tokenize([text])))
        return tokens

    def whole(word: str) -> list[int]:
        return sorted(set(prompts.tokenizer(word, add_special_tokens=False)["input_ids"]))

    assert own("Cafe\u0301!") == own("caf\u00e9") == whole("caf\u00e9")
    assert own("\u0301") == [], "a mark alone is no word"
    assert own("(हिन्दी)") == whole("हिन्दी")
    assert own("_snake_case") == own("snake case"), "an underscore is no letter"


def test_texts_without_words_have_the_zero_vector(lexical: Make) -> None:
    assert not rows(lexical(), ["", "...", "?! \n", "🎉"]).any()
    assert lexical().encode_sparse([]).shape == (0, 512)


def test_values_by_hand() -> None:
    [row] = lexical_vectors(ONE, [[0, 2, 3]], layer([float(np.e) - 1, 5.0, -2.0, 0.0]))
    assert row[0] == 0 and row[KEPT] == pytest.approx(1.0) and row[KEPT + 1 :].count_nonzero() == 0


def test_the_largest_values_are_kept_in_the_order_of_their_tokens() -> None:
    logits = torch.randn(400, generator=torch.Generator().manual_seed(0)).abs() + 0.1
    own = list(range(0, 400, 2))
    [row] = lexical_vectors(ONE, [own], layer(logits.tolist()))
    best = sorted(sorted(own, key=lambda token: -logits[token])[:KEPT])
    assert row[:KEPT].tolist() == best
    assert torch.allclose(row[KEPT:], torch.log1p(logits[best]))


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


@pytest.mark.parametrize("family", ["gemma2", "gpt2"])
def test_saved_and_loaded_again_vectors_are_bit_equal(lexical: Make, tmp_path: Path, family: str) -> None:
    embedder = lexical(family, f"{LEXICAL}/idf").fit(TEXTS)
    embedder.save_pretrained(tmp_path / "saved")
    again = Embedder.from_pretrained(tmp_path / "saved", device="cpu")
    assert again.design == embedder.design and (rows(again, TEXTS) == rows(embedder, TEXTS)).all()


def test_a_saved_adapter_finds_the_head_of_its_base(lexical: Make, folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = get_peft_model(AutoModelForCausalLM.from_pretrained(folder_of("llama")), LoraConfig(target_modules=["v_proj"]))
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight)
    model.save_pretrained(tmp_path / "adapter")
    embedder = lexical(adapter=str(tmp_path / "adapter"))
    embedder.save_pretrained(tmp_path / "saved")
    again = rows(Embedder.from_pretrained(tmp_path / "saved", device="cpu"), TEXTS)
    assert (again == rows(embedder, TEXTS)).all() and not np.allclose(again, rows(lexical(), TEXTS))


def test_a_head_that_is_not_tied_is_not_saved(lexical: Make, tmp_path: Path) -> None:
    with pytest.raises(UnmaskError, match="holds no language-model head"):
        lexical("llama").save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_what_needs_dense_vectors_refuses_them(lexical: Make) -> None:
    embedder = lexical()
    for call in (
        lambda: embedder.encode(TEXTS),
        lambda: embedder.encode([], precision="int8"),
        lambda: embedder.encode(TEXTS, normalize=True),
        lambda: embedder.encode_query(TEXTS),
        lambda: embedder.dim,
        lambda: embedder.encode_chunks(TEXTS, 5),
    ):
        with pytest.raises(UnmaskError, match="are sparse: use Embedder"):
            call()
    with pytest.raises(UnmaskError, match="are dense: use encode"):
        embedder.with_design("prompteol").encode_sparse(TEXTS)
