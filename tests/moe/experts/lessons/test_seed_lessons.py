"""Seeds: rows of public sets become lessons; what is tested on is never learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from unmask.errors import UnmaskError
from unmask.moe.experts.lessons.lessons import (
    Lesson,
    Novelty,
    read_seeds,
    split_apart,
)


def rows(folder: Path, *given: dict[str, Any]) -> Path:
    file = folder / "set" / "rows.jsonl"
    file.parent.mkdir()
    file.write_text("".join(json.dumps(row) + "\n" for row in given))
    return file


@pytest.mark.parametrize(
    ("row", "lesson"),
    [
        (
            {"subject": "world_history", "question": "When?", "choices": ["1", "2", "3", "4"], "answer": 2},
            ("Answer this question about world history.", "C. 3", "When?\nA. 1\nB. 2\nC. 3\nD. 4"),
        ),
        ({"task": "date_work", "input": "Q", "target": "A"}, ("Solve this problem of date work.", "A", "Q")),
        ({"question": "1+1?", "answer": "It is <<1+1=2>>2.\n#### 2"}, ("1+1?", "It is 2.\n#### 2", "")),
        (
            {"text": "Double x.", "code": "def f(x):\r\n\treturn 2*x", "test_list": ["assert f(1) == 2", "b"]},
            ("Double x.\nIt has to pass: assert f(1) == 2", "def f(x):\n    return 2*x", ""),
        ),
        ({"instruction": "Do.", "output": "Done.", "input": "x", "more": 1}, ("Do.", "Done.", "x")),
    ],
    ids=["mmlu", "bbh", "gsm8k", "mbpp", "alpaca"],
)
def test_each_layout(row: dict[str, Any], lesson: tuple[str, str, str], tmp_path: Path) -> None:
    [found] = read_seeds(rows(tmp_path, row))
    assert (found.instruction, found.output, found.input) == lesson
    assert found.where.endswith("rows.jsonl:1")


def test_no_learned_lesson_is_near_a_held_out_one_of_any_domain() -> None:
    sums = [Lesson(f"How much is {number} and {number + 1}, if both are added up?", str(2 * number + 1)) for number in range(9)]
    words = [
        Lesson(f"Tell me what {word} means.", "No.")
        for word in ("hay", "an old red house", "it, if it does mean a thing", "x y z")
    ]
    for seed in range(5):
        parts = split_apart({"sums": [*sums, *words[:2]], "words": words}, 1, 1, seed)
        (learned, _), (also, _) = parts.values()
        held_out = Novelty(one.question for _, tested in parts.values() for one in tested)
        assert all(held_out.nearest(lesson.question) <= 0.7 for lesson in (*learned, *also))
        assert parts == split_apart({"sums": [*sums, *words[:2]], "words": words}, 1, 1, seed)
    with pytest.raises(
        UnmaskError, match=r"sums: 4 \+ 2 lessons were asked for. 9 are different, and 0 of them can be learned"
    ):
        split_apart({"sums": sums}, 4, 2, 0)
    with pytest.raises(
        UnmaskError, match=r"words: 4 \+ 1 lessons were asked for. 4 are different, and 3 of them can be learned"
    ):
        split_apart({"words": words}, 4, 1, 0)


@pytest.mark.parametrize(("name", "number"), [("gsm8k/train", 3500), ("mbpp/all", 974), ("bbh/test", 6511), ("mmlu/dev", 285)])
def test_real_sets(name: str, number: int, data: Path) -> None:
    found = read_seeds(data / f"{name}.jsonl")
    assert len(found) == number
    assert all(
        one.prompt.strip() and one.output.strip() and "<<" not in one.output[: 40 if "mbpp" in name else None] for one in found
    )
