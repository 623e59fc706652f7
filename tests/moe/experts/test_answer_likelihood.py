"""Answer likelihood: equal to a plain reference on models of several families, alone and in a batch.

As multiple choice: right answers of other questions are the wrong ones, so a model that does not read the question is right by chance.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import make_tokenizer
from tests.families import FAMILIES
from tests.moe.experts.test_abilities import FILES
from tests.moe.mixture.models import language_model, saved_experts
from unmask.errors import UnmaskError
from unmask.moe.experts.abilities.ability_tests import Item
from unmask.moe.experts.abilities.answer_likelihood import Choice, answer_likelihood, answer_nats, chance, draw_choices
from unmask.moe.experts.abilities.harness import learned_filter
from unmask.moe.experts.lessons.lessons import read_seeds
from unmask.moe.mixture.gating import Routing
from unmask.moe.mixture.model import Mixture

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


def right(choice: Choice) -> str:
    return choice.item.choices[int(str(choice.item.target))]


def defined(code: str) -> dict[str, int]:
    """The number of parameters of each function of a program."""
    return {part.name: len(part.args.args) for part in ast.parse(code).body if isinstance(part, ast.FunctionDef)}


OPEN_TESTS = ["gsm8k", "mbpp", "humaneval"]
"""Tests whose wrong answers are answers of other questions."""


@pytest.mark.parametrize("name", OPEN_TESTS)
def test_wrong_answers_are_answers_of_other_questions_in_the_same_form(name: str, data: Path) -> None:
    texts = (data / FILES[name]).read_text(encoding="utf-8")
    for choice in draw_choices(name, data / FILES[name], 60, 0, lambda _: False):
        assert len(choice.item.choices) == 4
        if name == "gsm8k":
            assert all(f"#### {answer}" in texts for answer in choice.item.choices if len(answer) < 4)
            assert len({len(answer) for answer in choice.item.choices}) == 1
            assert choice.solution is not None and choice.solution.reference.endswith(f"#### {right(choice)}")
            steps = choice.item.prompt.removeprefix(choice.solution.prompt)
            assert right(choice) not in re.findall(r"\d+(?:\.\d+)?", steps), "the steps do not tell the result"
        else:
            functions = [defined(answer) for answer in choice.item.choices]
            shared = set.intersection(*map(set, functions))
            assert shared and choice.solution is None, "the name does not tell the right one"
            assert any(len({of_answer[function] for of_answer in functions}) == 1 for function in shared)


@pytest.mark.parametrize("name", OPEN_TESTS)
def test_a_model_that_does_not_read_the_question_is_right_by_chance(name: str, data: Path) -> None:
    """A habit ranks answers by themselves: the shortest, the longest, the roundest. The first of equals is drawn at random."""
    choices = draw_choices(name, data / FILES[name], None, 0, lambda _: False)
    assert chance(choices) == 25
    error = (0.25 * 0.75 / len(choices)) ** 0.5
    habits: list[Callable[[str], Any]] = [len, lambda text: -len(text), lambda text: text.strip("0"), lambda text: text[::-1]]
    for habit in habits:
        hits = [min(choice.item.choices, key=habit) == right(choice) for choice in choices]
        assert abs(sum(hits) / len(hits) - 0.25) < 4 * error
    targets = [int(str(choice.item.target)) for choice in choices]
    assert all(abs(targets.count(index) / len(targets) - 0.25) < 4 * error for index in range(4))


@pytest.mark.parametrize("name", ["bbh", "mbpp"])
def test_no_question_and_no_wrong_answer_was_learned(name: str, data: Path) -> None:
    """An expert has learned these answers, so it would find them likely for any question."""
    file = data / FILES[name]
    lessons = read_seeds(file)
    known = learned_filter(lessons[::2])
    choices, every = (draw_choices(name, file, None, 0, learned) for learned in (known, lambda _: False))
    assert 0.4 * len(every) < len(choices) < 0.6 * len(every)
    assert not any(known(choice.item.key) for choice in choices)
    if name == "mbpp":
        last_lines, others = ({lesson.output.strip().rpartition("\n")[2] for lesson in lessons[part::2]} for part in (0, 1))
        shown = {answer.rpartition("\n")[2] for choice in choices for answer in choice.item.choices}
        assert last_lines - others and not (last_lines - others) & shown
    with pytest.raises(UnmaskError, match="no question that is not a learned lesson has wrong answers"):
        draw_choices(name, file, None, 0, learned_filter(lessons))
