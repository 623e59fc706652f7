"""Lessons that a model writes: filtered for reasons that are counted, and the same however often the run was stopped."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from tests.moe.experts.conftest import SUMS
from unmask.errors import UnmaskError
from unmask.moe.experts.lessons.domain import (
    Domain,
    load_domain,
    parse_instruction,
    refuse_response,
)
from unmask.moe.experts.lessons.generation import Sampling, Text, Writer
from unmask.moe.experts.lessons.lessons import Lesson, Novelty
from unmask.moe.experts.lessons.specialise import SpecialisePlan, Yield, specialise

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

    def __init__(self, stop_after: int = 10**9, width: int = 1) -> None:
        self.batches, self.stop_after, self.width = 0, stop_after, width

    def write(self, prefix: str, rows: Sequence[str], sampling: Sampling, stop: str, seed: int) -> list[Text]:
        if self.batches == self.stop_after:
            raise KeyboardInterrupt
        self.batches += 1
        if sampling.temperature:
            texts = (f" Compute the number {seed + 7 * index} and tell how it is made." for index in range(len(rows)))
            return [Text(text, index != 1) for index, text in enumerate(texts)]
        return [Text(f" {row.count('7')} and more", True) for row in rows]


FREE = Domain(name="free", ask="Write.", requirements=("One.",), role="A teacher.")
PLAN = SpecialisePlan(number=10, batch=4, patience=20)


def lessons(folder: Path, writer: Writer, plan: SpecialisePlan = PLAN) -> Yield:
    return specialise(lambda: writer, FREE, SUMS, folder, plan, model="pico")


@pytest.fixture(autouse=True)
def _similar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unmask.moe.experts.lessons.domain.SIMILAR", 0.99)


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".lock"
    }


def test_a_run_that_was_stopped_anywhere_continues_to_the_same_lessons(tmp_path: Path) -> None:
    writer = Scripted()
    outcome = lessons(tmp_path / "whole", writer)
    assert outcome.kept == 10 and outcome.dropped["cut off"] >= 3
    for stop in range(writer.batches):
        folder = tmp_path / str(stop)
        with pytest.raises(KeyboardInterrupt):
            lessons(folder, Scripted(stop))
        rest = Scripted()
        assert lessons(folder, rest) == outcome
        assert rest.batches == writer.batches - stop, "nothing is written twice"
        assert files(folder) == files(tmp_path / "whole")
    with pytest.raises(UnmaskError, match=r"plan\.number was 10 and is 9 now"):
        lessons(tmp_path / "whole", Scripted(0), replace(PLAN, number=9))


def test_batches_that_are_written_at_once_give_the_same_lessons(tmp_path: Path) -> None:
    lessons(tmp_path / "one", Scripted())
    lessons(tmp_path / "three", Scripted(width=3))
    assert (tmp_path / "three" / "lessons.jsonl").read_bytes() == (tmp_path / "one" / "lessons.jsonl").read_bytes()


@pytest.mark.parametrize(
    "pattern", ["batches/instructions-1/*", "batches/responses-1-*/*", "specialise.json", "lessons.jsonl", "report.json"]
)
def test_damaged_files_are_written_again(pattern: str, tmp_path: Path) -> None:
    lessons(tmp_path / "whole", Scripted())
    before = files(tmp_path / "whole")
    [file] = (tmp_path / "whole").glob(pattern)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    sealed = file.name in ("step.json", "specialise.json")
    with pytest.warns(UserWarning, match="is damaged") if sealed else nullcontext():
        lessons(tmp_path / "whole", Scripted())
    assert files(tmp_path / "whole") == before
