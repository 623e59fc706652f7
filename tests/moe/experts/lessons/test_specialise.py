"""Lessons that a model writes: filtered for reasons that are counted, and the same however often the run was stopped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.moe.experts.conftest import SUMS
from unmask.errors import UnmaskError
from unmask.moe.experts.lessons.domain import (
    STOP,
    Domain,
    load_domain,
    parse_instruction,
    refuse_instruction,
    refuse_response,
    shipped_domains,
)
from unmask.moe.experts.lessons.generation import Sampling, Text, Writer
from unmask.moe.experts.lessons.lessons import Lesson, Novelty, read_lessons, split_apart
from unmask.moe.experts.lessons.specialise import SpecialisePlan, specialise

NONE = Novelty([])
CHOICE = load_domain("knowledge")
QUESTION = "Which planet is the largest?\nA. Mars\nB. Jupiter\nC. Venus\nD. Earth"


def test_shipped_domains_say_what_they_want() -> None:
    assert set(shipped_domains()) == {"coding", "knowledge", "math", "reasoning"}
    for name in shipped_domains():
        domain = load_domain(name)
        prompt = domain.brainstorm(SUMS[:3])
        assert all(rule in prompt for rule in domain.requirements) and prompt.endswith("Task 4\nInstruction:")
        assert all(seed.instruction in prompt and seed.output not in prompt for seed in SUMS[:3])
        solved = domain.respond(SUMS[:5])
        assert domain.role in solved and all(f"Response: {seed.output}" in solved for seed in SUMS[:5])
        assert solved.endswith(f"{STOP} 6\n") and domain.question(SUMS[6]).endswith("\nResponse:")


@pytest.mark.parametrize(
    ("text", "lesson"),
    [
        (" Add two.\nInput: 1 and 2", Lesson("Add two.", "", "1 and 2")),
        ("Add two.", Lesson("Add two.", "")),
        ("Add two.\ninput:  none ", Lesson("Add two.", "")),
        ("  ", None),
        ("a\nInstruction: b", None),
        ("a\nResponse: b", None),
    ],
)
def test_what_is_written_is_parsed(text: str, lesson: Lesson | None) -> None:
    assert parse_instruction(text) == lesson


def test_instructions_are_dropped_for_a_reason() -> None:
    free = load_domain("math")
    long = Lesson("How many apples does Tom have if he buys three bags of seven apples?", "")
    assert refuse_instruction(None, free, NONE, NONE) == "unparsable"
    assert refuse_instruction(Lesson("Add two", ""), free, NONE, NONE) == "length"
    assert refuse_instruction(Lesson("word " * 151, ""), free, NONE, NONE) == "length"
    assert refuse_instruction(long, free, NONE, NONE) is None
    again = Novelty(["How many apples does Tom have if he buys four bags of seven apples?"])
    assert refuse_instruction(long, free, again, NONE) == "repeated"
    assert refuse_instruction(long, free, NONE, again) == "in an evaluation"
    assert refuse_instruction(Lesson("Answer this.", "", QUESTION), CHOICE, NONE, NONE) is None
    assert refuse_instruction(Lesson("Which planet is the largest?", ""), CHOICE, NONE, NONE) == "no four choices"


def test_rouge_by_hand() -> None:
    known = Novelty(["the cat sat on the mat"])
    assert known.nearest("The cat lay on a mat!") == pytest.approx(2 * 4 / 12)
    assert known.nearest("") == 0.0 and NONE.nearest("x") == 0.0
    known.add("something else")
    assert known.nearest("something else") == 1.0


def test_lessons_without_spaces_have_words_and_near_copies() -> None:
    text, other_numbers, math = "小明有12个苹果吃了5个还剩几个", "小明有17个苹果吃了8个还剩几个", load_domain("math")
    assert refuse_instruction(Lesson(text, ""), math, NONE, NONE) is None
    assert refuse_instruction(Lesson(other_numbers, ""), math, Novelty([text]), NONE) == "repeated"
    assert refuse_instruction(Lesson("请解释为什么天空是蓝色的", ""), math, Novelty([text]), NONE) is None
    copies = [Lesson(text.replace("12", str(number)), "3") for number in range(10, 40)]
    with pytest.raises(UnmaskError, match="a lesson that is near a held-out one is left out"):
        split_apart({"sums": copies}, 10, 5, 0)


@pytest.mark.parametrize(
    ("domain", "text", "why"),
    [
        ("knowledge", "B. Jupiter", None),
        ("knowledge", "C", None),
        ("knowledge", " D) Mars", None),
        ("knowledge", "Jupiter", "no letter"),
        ("knowledge", "A man who was born in Paris", "no letter"),
        ("coding", "def f(x):\n    return x", None),
        ("coding", "```python\ndef f(x):\n    return x\n```", None),
        ("coding", "def f(x:\n  return x", "no function that parses"),
        ("coding", "print(1)", "no function that parses"),
        ("math", "1 + 1 = 2\n#### 2", None),
        ("math", "It is two.", "no answer"),
        ("reasoning", "  ", "no response"),
        ("reasoning", "so we go on and say that it is " * 3, "repeats itself"),
        ("reasoning", "Yes", None),
    ],
)
def test_responses_are_dropped_for_a_reason(domain: str, text: str, why: str | None) -> None:
    assert refuse_response(text, load_domain(domain)) == why


class Scripted(Writer):
    """Writes by the seed, as a model would, and counts its batches."""

    def __init__(self, stop_after: int = 10**9) -> None:
        self.batches, self.stop_after = 0, stop_after

    def write(self, prefix: str, rows: Sequence[str], sampling: Sampling, stop: str, seed: int) -> list[Text]:
        if self.batches == self.stop_after:
            raise KeyboardInterrupt
        self.batches += 1
        if sampling.temperature:
            return [
                Text(f" Compute the number {seed + 7 * place} and tell how it is made.", place != 1)
                for place in range(len(rows))
            ]
        return [Text(f" {row.count('7')} and more", True) for row in rows]


FREE = Domain(name="free", ask="Write.", requirements=("One.",), role="A teacher.")
PLAN = SpecialisePlan(number=10, batch=4, patience=20)


def lessons(folder: Path, writer: Writer, plan: SpecialisePlan = PLAN) -> Any:
    return specialise(writer, "pico", FREE, SUMS, folder, plan)


def test_a_run_that_was_stopped_anywhere_goes_on_to_the_same_lessons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import unmask.moe.experts.lessons.domain as filters

    monkeypatch.setattr(filters, "SIMILAR", 0.99)
    writer = Scripted()
    whole = lessons(tmp_path / "whole", writer)
    assert whole.kept == 10 and whole.dropped["cut off"] >= 3
    for stop in range(writer.batches):
        folder = tmp_path / str(stop)
        with pytest.raises(KeyboardInterrupt):
            lessons(folder, Scripted(stop))
        torn = folder / "instructions.jsonl"
        if stop:
            torn.write_text(torn.read_text() + '[{"text": "half')
        rest = Scripted()
        lessons(folder, rest)
        assert rest.batches == writer.batches - stop, "nothing is written twice"
        assert (folder / "lessons.jsonl").read_bytes() == (tmp_path / "whole" / "lessons.jsonl").read_bytes()


def test_batches_that_are_written_at_once_are_kept_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import unmask.moe.experts.lessons.domain as filters

    monkeypatch.setattr(filters, "SIMILAR", 0.99)

    class Wide(Scripted):
        width = 3

    lessons(tmp_path / "one", Scripted())
    lessons(tmp_path / "three", Wide())
    assert (tmp_path / "three" / "lessons.jsonl").read_bytes() == (tmp_path / "one" / "lessons.jsonl").read_bytes()


def test_lessons_are_lessons(tmp_path: Path) -> None:
    kept = lessons(tmp_path, Scripted()).kept
    found = read_lessons(tmp_path / "lessons.jsonl")
    assert len(found) == kept > 0
    for lesson in found:
        assert lesson.instruction.startswith("Compute") and lesson.output.endswith("and more")
