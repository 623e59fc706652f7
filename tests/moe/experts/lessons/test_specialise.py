"""Lessons that a model writes: filtered for reasons that are counted, and the same however often the run was stopped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.moe.experts.conftest import SUMS
from unmask.moe.experts.lessons.domain import (
    Domain,
    load_domain,
    parse_instruction,
    refuse_response,
)
from unmask.moe.experts.lessons.generation import Sampling, Text, Writer
from unmask.moe.experts.lessons.lessons import Lesson, Novelty
from unmask.moe.experts.lessons.specialise import SpecialisePlan, specialise

NONE = Novelty([])


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


def test_rouge_by_hand() -> None:
    known = Novelty(["the cat sat on the mat"])
    assert known.nearest("The cat lay on a mat!") == pytest.approx(2 * 4 / 12)
    assert known.nearest("") == 0.0 and NONE.nearest("x") == 0.0
    known.add("something else")
    assert known.nearest("something else") == 1.0


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
