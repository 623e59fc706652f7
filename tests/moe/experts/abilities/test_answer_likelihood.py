"""Answer likelihood: equal to a plain reference on models of several families, alone and in a batch, and for cut prompts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import make_tokenizer
from tests.families import FAMILIES
from tests.moe.mixture.models import language_model, saved_experts
from unmask.moe.experts.abilities.ability_tests import Item
from unmask.moe.experts.abilities.answer_likelihood import answer_likelihood, answer_nats
from unmask.moe.mixture.gating import Routing
from unmask.moe.mixture.mixture_folder import Mixture

CHOICES = [
    Item("The sky is", "a", (" blue", " a wide green field", " made of stone"), 0),
    Item("One and one make the number", "b", (" three", " two"), 1),
    Item("Snow is", "c", (" hot", " dark", " cold and white", " loud"), "2"),
]
OPEN = [Item("Name a colour:", "d", reference=" green"), Item("Count to five.\n", "e", reference="one two three four five")]
ITEMS = [CHOICES[0], OPEN[0], *CHOICES[1:], OPEN[1]]


def nats(model: Any, tokenizer: Any, prompt: str, answer: str) -> float:
    """The mean loss of an answer's tokens, without batches, padding or hooks."""
    ids = tokenizer(prompt + answer, return_tensors="pt")["input_ids"]
    start = len(tokenizer(prompt)["input_ids"])
    with torch.no_grad():
        logs = model(ids).logits.log_softmax(dim=-1)[0]
    return -float(sum(float(logs[at - 1, ids[0, at]]) for at in range(start, ids.shape[1])) / (ids.shape[1] - start))


@pytest.mark.parametrize("family", ["llama", "gemma3", "mistral-sliding", "qwen3-moe", "qwen3-next"])
@pytest.mark.parametrize("add_bos", [False, True])
def test_it_is_what_a_plain_reference_says(family: str, add_bos: bool) -> None:
    model, tokenizer = FAMILIES[family].build_language_model(), make_tokenizer(add_bos)
    expected = []
    for item in ITEMS:
        by_choice = [nats(model, tokenizer, item.prompt, answer) for answer in item.choices or (item.reference,)]
        right = by_choice.pop(int(str(item.target))) if item.choices else by_choice[0]
        expected.append(right - min(by_choice) if item.choices else right)
    together = answer_likelihood(model, tokenizer, ITEMS)
    assert together == pytest.approx(expected, abs=1e-4) and together.shape == (len(ITEMS),)
    alone = [answer_likelihood(model, tokenizer, [item])[0] for item in ITEMS]
    assert together == pytest.approx(alone, rel=1e-5, abs=1e-5)
    assert answer_likelihood(model, tokenizer, ITEMS[::-1], batch_tokens=40) == pytest.approx(expected[::-1], abs=1e-4)


@pytest.mark.parametrize(
    "routing", [Routing(), Routing("layer", top_k=2), Routing("final"), Routing(level="sequence")], ids=str
)
def test_a_mixture_reads_choices_as_it_reads_whole_texts(routing: Routing, tokenizer: Any, tmp_path: Path) -> None:
    model = language_model(vocab_size=512, max_position_embeddings=512)
    mixture = Mixture(model, saved_experts(tmp_path, model), routing)
    for router in mixture.routers.values():
        torch.nn.init.normal_(router.weight, std=0.5)
    for item, found in zip(ITEMS, answer_nats(mixture.model, tokenizer, ITEMS), strict=True):
        expected = [nats(mixture.model, tokenizer, item.prompt, answer) for answer in item.choices or (item.reference,)]
        assert found == pytest.approx(expected, abs=1e-4)


def test_the_order_of_choices_does_not_matter_and_the_right_one_does(tokenizer: Any) -> None:
    model = FAMILIES["llama"].build_language_model()
    [item] = CHOICES[:1]
    turned = replace(item, choices=item.choices[::-1], target=2)
    values = [answer_likelihood(model, tokenizer, [replace(item, target=place)])[0] for place in range(3)]
    assert answer_likelihood(model, tokenizer, [turned])[0] == pytest.approx(values[0], abs=1e-5)
    assert sum(value < 0 for value in values) == 1, "one choice is the likeliest"
    first, second = sorted(values)[:2]
    assert second == pytest.approx(-first, abs=1e-5), "the two likeliest are as far ahead as behind"
