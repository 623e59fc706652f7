"""The word-level probe: which sub-tokens a word has, what its vector is, and what counts as right."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import make_tokenizer
from tests.probing.models import pico_model
from unmask.encoding.backbone import HiddenRead, TokenBatch
from unmask.errors import UnmaskError
from unmask.probing.word_probe import (
    entities,
    fit_probe,
    layer_vectors,
    probe_words,
    probe_words_at_layers,
    score,
    word_tokens,
)
from unmask.tasks.tagged import Sentence

SENTENCES = [
    Sentence(("Ein", "Straßenbahnfahrer", "trinkt", "Kaffee", "☕️", "."), ("DET", "NOUN", "VERB", "NOUN", "SYM", "PUNCT")),
    Sentence(("x",), ("NOUN",)),
    Sentence(("東京", "は", "大きい", "。"), ("NOUN", "PART", "ADJ", "PUNCT")),
    Sentence(("A", "man", "plays", "a", "guitar", "while", "it", "rains", "all", "day", "."), tuple("DNVDNCPVDN.")),
    Sentence(("1 000", "e\u0301clairs", "don't", "-", "-"), ("NUM", "NOUN", "VERB", "PUNCT", "PUNCT")),
]


def states(one: Any, ids: tuple[int, ...]) -> torch.Tensor:
    """All states of the last layer, of one text alone."""
    batch = torch.tensor([ids])
    read = HiddenRead(one.backbone.depth, lambda hidden, _: hidden[0].float())
    mask = torch.ones_like(batch, dtype=torch.bool)
    with torch.inference_mode():
        return one.backbone.read(TokenBatch(batch, mask, mask), [read])[read]  # type: ignore[no-any-return]


def word_vectors(one: Any, sentences: list[Sentence], layer: int, **options: Any) -> Any:
    """The vectors of one layer."""
    return layer_vectors(one, sentences, [layer], **options)[layer]


# --- which sub-tokens ------------------------------------------------------------------------------------------------


def test_the_sub_tokens_of_a_word_spell_it(tokenizer: Any) -> None:
    for sentence, tokens in zip(SENTENCES, word_tokens(pico_model(tokenizer), SENTENCES), strict=True):
        for word, positions in zip(sentence.words, tokens.words, strict=True):
            assert tokenizer.decode([tokens.ids[at] for at in positions]).strip() == word
        covered = [at for positions in tokens.words for at in positions]
        assert covered == sorted(set(covered))  # none is of two words
        lost = set(range(len(tokens.ids))) - set(covered)
        assert {tokenizer.decode([tokens.ids[at]]) for at in lost} <= {" "}  # a space that is a token of its own


def test_a_word_without_a_token_is_refused(tokenizer: Any) -> None:
    from tokenizers import normalizers

    strict = make_tokenizer()
    strict.backend_tokenizer.normalizer = normalizers.Replace("b", "")
    with pytest.raises(UnmaskError, match=r"my\.jsonl, line 7: the tokenizer makes no token of the word 'b'"):
        word_tokens(pico_model(strict), [Sentence(("a", "b"), ("X", "Y"), "my.jsonl, line 7")])


# --- vectors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [False, True])
def test_a_words_vector_is_the_mean_of_its_states_shifted_by_hand(shift: bool, tokenizer: Any) -> None:
    one = pico_model(tokenizer)
    found = iter(word_vectors(one, SENTENCES, one.backbone.depth, shift=shift))
    for tokens in word_tokens(one, SENTENCES):
        hidden = states(one, tokens.ids)
        moved = torch.cat([hidden[:1], hidden[:-1]]) if shift else hidden  # position 0 keeps its own state
        for positions in tokens.words:
            assert np.allclose(next(found), moved[list(positions)].mean(dim=0), atol=1e-5)


# --- scores ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O O", set()),
        ("B-PER I-PER O B-LOC", {(0, 2, "PER"), (3, 4, "LOC")}),
        ("B-PER B-PER", {(0, 1, "PER"), (1, 2, "PER")}),
        ("I-PER I-PER", {(0, 2, "PER")}),
        ("B-PER I-LOC I-LOC", {(0, 1, "PER"), (1, 3, "LOC")}),
        ("O I-x-y", {(1, 2, "x-y")}),
    ],
)
def test_entities_by_hand(tags: str, expected: set[Any]) -> None:
    assert entities(tags.split()) == expected


def test_entity_f1_by_hand_counts() -> None:
    gold = [["B-PER", "I-PER", "O", "B-LOC"], ["B-LOC", "O", "O"]]
    guess = [["B-PER", "I-PER", "O", "B-PER"], ["B-LOC", "I-LOC", "O"]]
    scores = score(gold, guess)
    assert scores.true_positives is not None and scores.gold is not None and scores.predicted is not None
    # found: PER 0-2 only; the LOC of the second sentence is a word too long
    assert (scores.true_positives.tolist(), scores.gold.tolist(), scores.predicted.tolist()) == ([1, 0], [2, 1], [2, 1])
    assert scores.entity_f1 is not None and scores.entity_f1.value == pytest.approx(2 * 1 / (3 + 3))
    assert scores.accuracy.value == pytest.approx(5 / 7)
    assert score([["NOUN", "O"]], [["NOUN", "O"]]).entity_f1 is None  # not BIO


def test_the_probe_separates_what_is_separable_whatever_the_scale() -> None:
    random = np.random.default_rng(0)
    vectors = random.normal(size=(200, 4)).astype(np.float32)
    labels = np.where(vectors[:, 0] > 0, "a", "b")
    scaled = vectors * np.array([1e-4, 1.0, 1e4, 0.0], np.float32) + 100  # the last never moves
    scaled[:, 0] = vectors[:, 0] * 1e-4
    predict, converged = fit_probe(scaled, labels, 1.0)
    assert converged and (predict(scaled) == labels).mean() > 0.95


# --- the whole probe -------------------------------------------------------------------------------------------------


def tagged(first: int, size: int, tags: dict[str, str]) -> list[Sentence]:
    words = list(tags)
    rows = [[words[(number * 7 + k * 3 + number // 5) % len(words)] for k in range(5)] for number in range(first, first + size)]
    return [Sentence(tuple(row), tuple(tags[word] for word in row)) for row in rows]


TAGS = {"man": "NOUN", "dog": "NOUN", "plays": "VERB", "runs": "VERB", "red": "ADJ", "wet": "ADJ"}


def test_the_probe_reads_tags_off_words_and_says_what_it_rests_on(tokenizer: Any) -> None:
    one = pico_model(tokenizer)
    train, test = tagged(0, 30, TAGS), tagged(30, 10, TAGS)
    found = probe_words(one, train, [*test, Sentence(("dog",), ("NEW",))])
    assert found.metric == "accuracy" and found.accuracy > 0.8 > found.majority
    assert (found.classes, found.train_words, found.test_words, found.unseen) == (3, 150, 51, 1)
    assert found.interval is not None and found.interval[0] <= found.value <= found.interval[1]
    assert found.layer == 3 and not found.shift
    content = json.loads(json.dumps(found.as_json()))
    assert content["scores"]["words"] == [5] * 10 + [1]
    assert content["provenance"]["attention"] == "bidirectional"
    again = probe_words(one, train, [*test, Sentence(("dog",), ("NEW",))])
    assert again.as_json() == found.as_json()


def test_bio_tags_are_scored_by_entity(tokenizer: Any) -> None:
    tags = {"man": "B-PER", "dog": "B-PER", "plays": "O", "runs": "O", "red": "I-PER", "wet": "O"}
    test = [*tagged(30, 10, tags), Sentence(("dog", "dog"), ("B-LOC", "B-PER"))]  # a type that training lacks
    found = probe_words(pico_model(tokenizer), tagged(0, 30, tags), test)
    assert found.metric == "entity_f1" and found.value != found.accuracy


def test_several_layers_at_once_are_each_alone_bit_by_bit(tokenizer: Any) -> None:
    one, train, test = pico_model(tokenizer), tagged(0, 30, TAGS), tagged(30, 12, TAGS)
    together = probe_words_at_layers(one, train, test, [3, 1])
    assert list(together) == [3, 1]
    for layer, found in together.items():
        assert found.as_json() == probe_words(one, train, test, layer=layer).as_json()
        assert np.array_equal(layer_vectors(one, test, [1, 3])[layer], word_vectors(one, test, layer))
    assert not np.allclose(word_vectors(one, test, 1), word_vectors(one, test, 3))


def test_what_cannot_be_probed_is_refused(tokenizer: Any) -> None:
    one = pico_model(tokenizer)
    with pytest.raises(UnmaskError, match="at least 2"):
        probe_words(one, [Sentence(("a",), ("X",))] * 3, SENTENCES)
    with pytest.raises(UnmaskError, match="hold no sentences"):
        probe_words(one, SENTENCES, [])
    with pytest.raises(UnmaskError, match="Layer 4 does not exist: this model has 3 layers"):
        probe_words(one, SENTENCES, SENTENCES, layer=4)
    with pytest.raises(UnmaskError, match="too few training sentences"):
        probe_words(one, [Sentence(("a",), ("X",)), Sentence(("b",), ("Y",))], SENTENCES)
