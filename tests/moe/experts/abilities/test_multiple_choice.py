"""Multiple choice: right answers of other questions are the wrong ones, so whoever does not read the question is right by chance."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.moe.experts.test_abilities import FILES
from unmask.errors import UnmaskError
from unmask.moe.experts.abilities.answer_likelihood import Choice, chance, draw_choices
from unmask.moe.experts.abilities.harness import learned_of
from unmask.moe.experts.lessons.lessons import read_seeds

OPEN = ["gsm8k", "mbpp", "humaneval"]
"""Tests whose wrong answers are answers of other questions."""


def nothing(_: str) -> bool:
    return False


def right(choice: Choice) -> str:
    return choice.item.choices[int(str(choice.item.target))]


def parameters(code: str) -> dict[str, int]:
    """How many parameters the functions of a program have, by their names."""
    return {part.name: len(part.args.args) for part in ast.parse(code).body if isinstance(part, ast.FunctionDef)}


@pytest.mark.parametrize("name", OPEN)
def test_wrong_answers_are_answers_of_other_questions_in_the_same_form(name: str, data: Path) -> None:
    choices = draw_choices(name, data / FILES[name], 60, 0, nothing)
    texts = (data / FILES[name]).read_text(encoding="utf-8")
    for choice in choices:
        assert len(choice.item.choices) == 4
        wrong = set(choice.item.choices) - {right(choice)}
        if name == "gsm8k":
            assert all(f"#### {answer}" in texts for answer in wrong if len(answer) < 4)
            assert len({len(answer) for answer in choice.item.choices}) == 1
            assert choice.solution is not None and choice.solution.reference.endswith(f"#### {right(choice)}")
            steps = choice.item.prompt.removeprefix(choice.solution.prompt)
            assert right(choice) not in re.findall(r"\d+(?:\.\d+)?", steps), "the steps do not tell the result"
            assert choice.solution.reference.startswith(f"{steps}{right(choice)}") or "," in choice.solution.reference
        else:
            defined = [parameters(answer) for answer in choice.item.choices]
            shared = [name for name in defined[0] if all(name in of_answer for of_answer in defined)]
            assert shared and choice.solution is None, "the name does not tell the right one"
            assert any(len({of_answer[name] for of_answer in defined}) == 1 for name in shared)


HABITS: list[Callable[[str], Any]] = [
    len,
    lambda text: (len(text), text),
    lambda text: -len(text),
    lambda text: text.strip("0"),
    lambda text: text[::-1],
]


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", OPEN)
@pytest.mark.parametrize("habit", range(len(HABITS)))
def test_who_does_not_read_the_question_is_right_by_chance(name: str, habit: int, data: Path) -> None:
    """A habit ranks answers by themselves: the shortest, the least, the roundest. The first of equals is drawn at random."""
    choices = draw_choices(name, data / FILES[name], None, 0, nothing)
    found = [min(choice.item.choices, key=HABITS[habit]) == right(choice) for choice in choices]
    assert chance(choices) == 25
    error = (0.25 * 0.75 / len(found)) ** 0.5
    assert abs(sum(found) / len(found) - 0.25) < 4 * error
    places = [int(str(choice.item.target)) for choice in choices]
    assert all(abs(places.count(place) / len(places) - 0.25) < 4 * error for place in range(4))


@pytest.mark.parametrize("name", ["bbh", "mbpp"])
def test_no_question_and_no_wrong_answer_was_learned(name: str, data: Path) -> None:
    """An expert has learned these answers, so it would find them likely whatever is asked."""
    file = data / FILES[name]
    lessons = read_seeds(file)
    learned = lessons[::2]
    choices = draw_choices(name, file, None, 0, learned_of(learned))
    whole = draw_choices(name, file, None, 0, nothing)
    assert 0.4 * len(whole) < len(choices) < 0.6 * len(whole)
    known = learned_of(learned)
    assert not any(known(choice.item.key) for choice in choices)
    if name == "mbpp":
        bodies = {lesson.output.replace("\r\n", "\n").strip().rpartition("\n")[2] for lesson in learned}
        bodies -= {lesson.output.replace("\r\n", "\n").strip().rpartition("\n")[2] for lesson in lessons[1::2]}
        shown = {answer.rpartition("\n")[2] for choice in choices for answer in choice.item.choices}
        assert bodies and not bodies & shown
    with pytest.raises(UnmaskError, match="no question that is not a learned lesson has wrong answers"):
        draw_choices(name, file, None, 0, learned_of(lessons))
