"""Seeds: rows of public task sets as lessons, told apart by their columns.

| columns | set | lesson |
|---|---|---|
| instruction, output (input) | lessons as they are, Alpaca, Self-Instruct | the same |
| subject, question, choices, answer | MMLU | question with choices A to D; letter and choice |
| task, input, target | BIG-Bench Hard | the input of a task; its target |
| question, answer | GSM8K | question; solution without the calculator's marks |
| text, code | MBPP | what a function shall do, with its first test; the function |
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

from unmask.errors import UnmaskError
from unmask.io.files import atomic, only_writer_of
from unmask.io.rows import Row, field, read_rows
from unmask.moe.experts.lessons.filters import SIMILAR, Novelty
from unmask.moe.experts.lessons.lessons import Lesson, read_lessons

_CALCULATOR = re.compile(r"<<[^<>]*>>")
LETTERS = "ABCDEFGHIJ"


def read_seeds(file: Path) -> list[Lesson]:
    """Lessons of a file, by its columns. Raises UnmaskError for columns that are none of these, and for a wrong row by its line."""
    table = list(read_rows(file))
    if not table:
        raise UnmaskError(f"{file} holds no rows.")
    columns = table[0][1].keys()
    if {"instruction", "output"} <= columns:
        return read_lessons(file)
    for needed, convert in _LAYOUTS.items():
        if set(needed) <= columns:
            return [convert(file, line, row) for line, row in table]
    known = "; ".join(", ".join(needed) for needed in [("instruction", "output"), *_LAYOUTS])
    raise UnmaskError(f"{file} has the columns {', '.join(columns)}; lessons are made of: {known}.")


def sample_seeds(
    source: Path, output: Path, number: int, held_out: Path | None = None, held_out_number: int = 0, *, seed: int = 0
) -> dict[Path, int]:
    """Sample lessons of a file into `output`, and others to test on into `held_out`. Returns the number of lessons by file."""
    by_file = {source.stem: read_seeds(source)}
    [(train, test)] = split_apart(by_file, number, held_out_number if held_out else 0, seed).values()
    # held-out lessons first: if the output exists, so does the other file
    files = [(file, lessons) for file, lessons in ((held_out, test), (output, train)) if file is not None]
    with ExitStack() as locks:
        for file, _ in files:
            locks.enter_context(only_writer_of(file))
        for file, lessons in files:
            write_lessons(lessons, file)
    return {file: len(lessons) for file, lessons in files}


def split(lessons: Sequence[Lesson], train: int, test: int, seed: int) -> tuple[list[Lesson], list[Lesson]]:
    """Two parts without a lesson in common, drawn by the seed. Raises UnmaskError if there are too few.

    The same instruction and input make the same lesson, whatever its response.
    """
    unique = _unique(lessons)
    if len(unique) < train + test:
        raise UnmaskError(f"{train} + {test} lessons were asked for, and there are {len(unique)} different ones.")
    drawn = random.Random(f"{seed}:seeds").sample(unique, train + test)
    return drawn[:train], drawn[train:]


def split_apart(
    domains: Mapping[str, Sequence[Lesson]], train: int, test: int, seed: int
) -> dict[str, tuple[list[Lesson], list[Lesson]]]:
    """As `split` for each domain, and no lesson of the first parts is near one of the second parts (ROUGE-L above 0.7).

    So a held-out lesson is no copy of a learned one with other numbers. Raises UnmaskError if there are too few.
    """
    shuffled = {name: _shuffled(lessons, seed) for name, lessons in domains.items()}
    held_out = {name: lessons[:test] for name, lessons in shuffled.items()}
    forbidden = Novelty(lesson.question for of_domain in held_out.values() for lesson in of_domain)
    parts = {}
    for name, lessons in shuffled.items():
        apart = (lesson for lesson in lessons[test:] if forbidden.nearest(lesson.question) <= SIMILAR)
        learned = list(islice(apart, train))
        if len(held_out[name]) < test or len(learned) < train:
            raise UnmaskError(
                f"{name}: {train} + {test} lessons were asked for. {len(lessons)} are different, and {len(learned)} of them can be learned "
                "beside the others: a lesson that is near a held-out one is left out."
            )
        parts[name] = (learned, held_out[name])
    return parts


def _unique(lessons: Sequence[Lesson]) -> list[Lesson]:
    return list({(lesson.instruction, lesson.input): lesson for lesson in lessons}.values())


def _shuffled(lessons: Sequence[Lesson], seed: int) -> list[Lesson]:
    unique = _unique(lessons)
    return random.Random(f"{seed}:seeds").sample(unique, len(unique))


def write_lessons(lessons: Sequence[Lesson], file: Path) -> None:
    """Write lessons as jsonl, each with where it came from."""
    with atomic(file) as scratch:
        rows = (
            {"instruction": lesson.instruction, "input": lesson.input, "output": lesson.output, "from": lesson.where}
            for lesson in lessons
        )
        scratch.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def keep_lessons(lessons: Sequence[Lesson], file: Path) -> list[Lesson]:
    """Write lessons, or check that the file of an earlier run has the same; as they are read back. Raises UnmaskError if it has others."""
    if not file.is_file():
        write_lessons(lessons, file)
    kept = read_lessons(file)
    if [_texts(lesson) for lesson in kept] != [_texts(lesson) for lesson in lessons]:
        raise UnmaskError(
            f"'{file}' holds {len(kept)} lessons of an earlier run, and these settings and data give {len(lessons)} others. Give another "
            "folder, or the settings and data of that run."
        )
    return kept


def _texts(lesson: Lesson) -> tuple[str, str, str]:
    return lesson.instruction, lesson.input, lesson.output


def lettered(choices: Sequence[object]) -> str:
    """Choices as a question shows them: a line each, behind its letter."""
    return "\n".join(f"{letter}. {choice}" for letter, choice in zip(LETTERS, choices, strict=False))


def without_marks(answer: str) -> str:
    """A solution of GSM8K without the marks of its calculator."""
    return _CALCULATOR.sub("", answer)


def _multiple_choice(file: Path, line: int, row: Row) -> Lesson:
    choices, answer = field(file, line, row, "choices", list), field(file, line, row, "answer", int)
    if not 0 <= answer < len(choices) <= len(LETTERS):
        raise UnmaskError(f"{file}, line {line}: the answer {answer} is none of {len(choices)} choices.")
    shown = lettered(choices)
    subject = str(row["subject"]).replace("_", " ")
    asked = f"{field(file, line, row, 'question')}\n{shown}"
    response = f"{LETTERS[answer]}. {choices[answer]}"
    return Lesson(f"Answer this question about {subject}.", response, asked, _at(file, line))


def _task(file: Path, line: int, row: Row) -> Lesson:
    name = str(row["task"]).replace("_", " ")
    return Lesson(
        f"Solve this problem of {name}.", field(file, line, row, "target"), field(file, line, row, "input"), _at(file, line)
    )


def _solution(file: Path, line: int, row: Row) -> Lesson:
    answer = without_marks(field(file, line, row, "answer"))
    return Lesson(field(file, line, row, "question"), answer, "", _at(file, line))


def _function(file: Path, line: int, row: Row) -> Lesson:
    tests = row.get("test_list") or []
    wanted = f"{field(file, line, row, 'text')}\nIt has to pass: {tests[0]}" if tests else field(file, line, row, "text")
    code = field(file, line, row, "code").replace("\r\n", "\n").replace("\t", "    ")
    return Lesson(wanted, code, "", _at(file, line))


def _at(file: Path, line: int) -> str:
    return f"{file.parent.name}/{file.name}:{line}"


_LAYOUTS: dict[tuple[str, ...], Callable[[Path, int, Row], Lesson]] = {
    ("subject", "question", "choices", "answer"): _multiple_choice,
    ("task", "input", "target"): _task,
    ("question", "answer"): _solution,
    ("text", "code"): _function,
}
