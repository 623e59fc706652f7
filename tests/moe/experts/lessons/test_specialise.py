"""Lessons that a model writes: filtered for reasons that are counted, and the same however often the run was stopped."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.in_process import run_program
from tests.moe.experts.conftest import SUMS
from unmask.errors import UnmaskError
from unmask.moe.experts.lessons.domain import STOP, Domain, load_domain, shipped_domains
from unmask.moe.experts.lessons.filters import Novelty, parse_instruction, refuse_instruction, refuse_response, words
from unmask.moe.experts.lessons.generation import Sampling, Text, Writer
from unmask.moe.experts.lessons.lessons import Lesson, read_lessons
from unmask.moe.experts.lessons.seed_lessons import split_apart, write_lessons
from unmask.moe.experts.lessons.specialise import SpecialisePlan, record_of, specialise

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


def test_a_domain_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "cooking.toml"
    file.write_text('ask = "Write."\nrequirements = ["One."]\nrole = "A cook."\n')
    assert load_domain(str(file)) == Domain(name="cooking", ask="Write.", requirements=("One.",), role="A cook.")
    file.write_text('ask = "Write."\nrequirements = []\nrole = "A cook."\n')
    with pytest.raises(UnmaskError, match=r"cooking\.toml: requirements"):
        load_domain(str(file))
    with pytest.raises(UnmaskError, match="Did you mean 'math'"):
        load_domain("maths")


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


@pytest.mark.parametrize(
    "text",
    [
        "Tom has 12 apples; he eats 5, doesn't he?",
        "def f_1(x_y): return x_y ** 2  # __init__",
        "A café in Zürich: πr², 10° ≠ 5",
        "".join(map(chr, range(32, 127))),
    ],
)
def test_words_of_english_lessons_are_runs_of_letters_digits_and_underscores(text: str) -> None:
    """The lessons of kept results were filtered so."""
    assert words(text) == re.findall(r"\w+", text.lower())


def test_lessons_without_spaces_have_words_and_near_copies() -> None:
    text, other_numbers, math = "小明有12个苹果吃了5个还剩几个", "小明有17个苹果吃了8个还剩几个", load_domain("math")
    assert refuse_instruction(Lesson(text, ""), math, NONE, NONE) is None
    assert refuse_instruction(Lesson(other_numbers, ""), math, Novelty([text]), NONE) == "repeated"
    assert refuse_instruction(Lesson("请解释为什么天空是蓝色的", ""), math, Novelty([text]), NONE) is None
    copies = [Lesson(text.replace("12", str(number)), "3") for number in range(10, 40)]
    with pytest.raises(UnmaskError, match="a lesson that is near a held-out one is left out"):
        split_apart({"sums": copies}, 10, 5, 0)


def test_a_mark_belongs_to_its_letter_in_a_lesson() -> None:
    assert words("ठंडा पानी") == ["ठंडा", "पानी"]
    assert words("cafe\u0301") == words("caf\u00e9")


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


class Endless(Scripted):
    """Writes texts that do not end, so each is dropped."""

    def write(self, *job: Any) -> list[Text]:
        return [Text(text.text, False) for text in super().write(*job)]


def test_a_command_that_keeps_no_lesson_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    seeds, out = tmp_path / "seeds.jsonl", tmp_path / "out"
    write_lessons(SUMS, seeds)
    monkeypatch.setattr("unmask.moe.experts.lessons.specialise.open_writer", lambda *_: Endless())
    words = ["specialise", "math", "-m", "pico", "--seeds", str(seeds), "-o", str(out), "-n", "2"]
    code, told, error = run_program(words, monkeypatch, capfd)
    assert code == 2 and "dropped: cut off" in told
    assert error.splitlines()[-1].startswith(f"unmask: No lesson was kept, so there is nothing to learn in {out}. ")


def test_a_run_that_was_stopped_anywhere_goes_on_to_the_same_lessons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import unmask.moe.experts.lessons.filters as filters

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
    import unmask.moe.experts.lessons.filters as filters

    monkeypatch.setattr(filters, "SIMILAR", 0.99)

    class Wide(Scripted):
        width = 3

    lessons(tmp_path / "one", Scripted())
    lessons(tmp_path / "three", Wide())
    assert (tmp_path / "three" / "lessons.jsonl").read_bytes() == (tmp_path / "one" / "lessons.jsonl").read_bytes()


def test_a_model_that_repeats_itself_ends_the_run_with_fewer(tmp_path: Path) -> None:
    found = lessons(tmp_path, Scripted(), SpecialisePlan(number=10, batch=4, patience=3))
    assert found.kept < 10 and found.written == 36, "three batches for each that would have done"
    assert found.dropped["repeated"] > 20
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["kept"] == found.kept == len(report["examples"]) and report["written"] == 36
    assert found.written == sum(found.dropped.values()) + found.kept


def test_another_run_in_the_folder_is_refused(tmp_path: Path) -> None:
    lessons(tmp_path, Scripted())
    with pytest.raises(UnmaskError, match="holds a run with other lessons or settings"):
        lessons(tmp_path, Scripted(), SpecialisePlan(number=11, batch=4))
    with pytest.raises(UnmaskError, match="Each prompt shows 5 seed lessons, but only 4 were given"):
        specialise(Scripted(), "pico", FREE, SUMS[:4], tmp_path / "new", PLAN)


@pytest.mark.parametrize("name", ["instructions.jsonl", "responses.jsonl", "lessons.jsonl", "report.json"])
def test_files_of_somebody_else_are_not_replaced(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(UnmaskError, match=f"{name}' was not written by unmask"):
        lessons(tmp_path, Scripted())
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir() if not file.name.startswith(".")] == [(name, "mine")]


def test_batches_of_older_versions_belong_to_the_same_run() -> None:
    """The names of runs in folders that were written before the record had a type."""
    records = [record_of("pico", "transformers", FREE, SUMS, PLAN, ["x"], weights) for weights in (None, "w")]
    assert [record.run for record in records] == ["c2308578c4b5347e", "1b4ed48d541ea722"]


def test_lessons_are_lessons(tmp_path: Path) -> None:
    kept = lessons(tmp_path, Scripted()).kept
    found = read_lessons(tmp_path / "lessons.jsonl")
    assert len(found) == kept > 0
    for lesson in found:
        assert lesson.instruction.startswith("Compute") and lesson.output.endswith("and more")
