"""Lessons: an instruction, optionally with an input, and the response that an expert learns; and seed lessons of public task sets.

Only the response is learned. The prompt is Alpaca's template, as in Self-MoE (arXiv 2406.12034, section 2.1). Seeds are recognised by their
columns:

| columns | set | lesson |
|---|---|---|
| instruction, output (input) | lessons, Alpaca, Self-Instruct | the same |
| subject, question, choices, answer | MMLU | question with choices A to D; letter and choice |
| task, input, target | BIG-Bench Hard | the input of a task; its target |
| question, answer | GSM8K | question; solution without the calculator's marks |
| text, code | MBPP | the task with its first test; the function |
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from unmask.encoding.words import composed, keyword_spans
from unmask.errors import UnmaskError
from unmask.io.files import atomic, only_writer_of
from unmask.io.rows import Row, field, read_rows
from unmask.io.unicode import without_surrogates

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further context. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n"
)
WITHOUT_INPUT = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Response:\n"
)


@dataclass(frozen=True)
class Lesson:
    """One row of a domain; `where` is its file and line."""

    instruction: str
    output: str
    input: str = ""
    where: str = ""

    @property
    def question(self) -> str:
        """The instruction and the input in one text. Filters compare lessons by it."""
        return f"{self.instruction} {self.input}".strip()

    @property
    def prompt(self) -> str:
        """The text before the response."""
        if self.input:
            return WITH_INPUT.format(instruction=self.instruction, input=self.input)
        return WITHOUT_INPUT.format(instruction=self.instruction)


@dataclass(frozen=True)
class LessonTokens:
    """Token ids of a lesson. The response begins at `start` and ends with the end-of-sequence token, unless it is cut."""

    ids: tuple[int, ...]
    start: int
    where: str
    cut: bool = False


def read_lessons(file: Path) -> list[Lesson]:
    """Lessons from rows with instruction, output and optionally input. Raises UnmaskError with file and line for a bad row."""
    lessons = []
    for line, row in read_rows(file):
        instruction, output = (field(file, line, row, column) for column in ("instruction", "output"))
        for column, text in (("instruction", instruction), ("output", output)):
            if not text.strip():
                raise UnmaskError(f"{file}, line {line}: the {column} is empty.")
        lessons.append(Lesson(instruction, output, str(row.get("input") or ""), f"{file.name}:{line}"))
    if not lessons:
        raise UnmaskError(f"{file} holds no lesson.")
    return lessons


def tokenize_lessons(tokenizer: PreTrainedTokenizerBase, lessons: Sequence[Lesson], max_length: int) -> list[LessonTokens]:
    """Tokenize prompt and response together, so that the border between them is the same as in generated text.

    A token across the border counts as response. A response that is too long is cut, and then has no end-of-sequence token. Raises
    UnmaskError for a prompt that leaves no room for a response, and for a tokenizer without an end-of-sequence token.
    """
    if tokenizer.eos_token_id is None:
        raise UnmaskError("The tokenizer has no end-of-sequence token, so a response would never end. Use another model.")
    pairs = [(lesson.prompt, lesson.output) for lesson in lessons]
    tokenized = []
    for lesson, (ids, start) in zip(lessons, tokenize_pairs(tokenizer, pairs), strict=True):
        full = (*ids, int(tokenizer.eos_token_id))
        if start >= max_length:
            raise UnmaskError(
                f"{lesson.where}: the prompt has {start} tokens, so {max_length} leave no room for the response. Raise --max-length."
            )
        tokenized.append(LessonTokens(full[:max_length], start, lesson.where, len(full) > max_length))
    return tokenized


def tokenize_pairs(tokenizer: PreTrainedTokenizerBase, pairs: Sequence[tuple[str, str]]) -> list[tuple[tuple[int, ...], int]]:
    """The token ids of each text with its continuation, and the index at which that begins; without special tokens at the end.

    Both are tokenized together. A token across the border counts as what follows.
    """
    texts = [without_surrogates(text + following) for text, following in pairs]
    encoded = tokenizer(texts, return_offsets_mapping=True, return_special_tokens_mask=True, verbose=False)
    tokenized = []
    rows = zip(pairs, encoded["input_ids"], encoded["offset_mapping"], encoded["special_tokens_mask"], strict=True)
    for (text, _), ids, offsets, special in rows:
        plain = [index for index, is_special in enumerate(special) if not is_special]
        start = next(index for index in plain if offsets[index][1] > len(text))
        tokenized.append((tuple(ids[: plain[-1] + 1]), start))
    return tokenized


SIMILAR = 0.7  # ROUGE-L above which two instructions count as the same
_CALCULATOR = re.compile(r"<<[^<>]*>>")
LETTERS = "ABCDEFGHIJ"


class Novelty:
    """Remembers texts, and measures how near another text is to them by ROUGE-L (F1 of the longest common subsequence of words)."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.word_lists = [words(text) for text in texts]

    def nearest(self, text: str) -> float:
        """The highest ROUGE-L to a remembered text."""
        from rapidfuzz.distance import LCSseq

        tokens = words(text)
        highest = 0.0
        for remembered in self.word_lists:
            total = len(tokens) + len(remembered)
            # skip texts that cannot win: a common part is at most as long as the shorter text
            if total and 2 * min(len(tokens), len(remembered)) / total > highest:
                highest = max(highest, 2 * LCSseq.similarity(tokens, remembered) / total)
        return highest

    def add(self, text: str) -> None:
        """Remember a text."""
        self.word_lists.append(words(text))


def words(text: str) -> list[str]:
    """Lower-case words, as ROUGE compares them.

    Scripts without spaces have no words to find. There every two neighbouring characters are one: a whole clause as a word would make an
    instruction too short, and would hide a copy with other numbers.
    """
    text = composed(text.lower())
    return [text[start:end] for start, end in keyword_spans(text)]


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
            location = f"{file.parent.name}/{file.name}"
            return [replace(convert(file, line, row), where=f"{location}:{line}") for line, row in table]
    layouts = "; ".join(", ".join(needed) for needed in [("instruction", "output"), *_LAYOUTS])
    raise UnmaskError(f"{file} has the columns {', '.join(columns)}; lessons are made of: {layouts}.")


def sample_seeds(
    source: Path, output: Path, number: int, held_out: Path | None = None, held_out_number: int = 0, *, seed: int = 0
) -> dict[Path, int]:
    """Sample lessons of a file into `output`, and others to test on into `held_out`. Returns the number of lessons by file."""
    lessons = {source.stem: read_seeds(source)}
    [(train, test)] = split_apart(lessons, number, held_out_number if held_out else 0, seed).values()
    # held-out lessons first: if the output exists, so does the other file
    files = {held_out: test, output: train} if held_out else {output: train}
    with ExitStack() as locks:
        for file in files:
            locks.enter_context(only_writer_of(file))
        for file, sample in files.items():
            write_lessons(sample, file)
    return {file: len(sample) for file, sample in files.items()}


def split(lessons: Sequence[Lesson], train: int, test: int, seed: int) -> tuple[list[Lesson], list[Lesson]]:
    """Two parts without a lesson in common, drawn by the seed. Raises UnmaskError if there are too few.

    The same instruction and input make the same lesson, whatever its response.
    """
    unique = _unique(lessons)
    if len(unique) < train + test:
        raise UnmaskError(f"{train} + {test} lessons were asked for, and there are {len(unique)} different ones.")
    sample = random.Random(f"{seed}:seeds").sample(unique, train + test)
    return sample[:train], sample[train:]


def split_apart(
    domains: Mapping[str, Sequence[Lesson]], train: int, test: int, seed: int
) -> dict[str, tuple[list[Lesson], list[Lesson]]]:
    """As `split` for each domain, and no lesson of the first parts is near one of the second parts (ROUGE-L above 0.7).

    So a held-out lesson is never a learned one with other numbers. Raises UnmaskError if there are too few.
    """
    unique = {name: _unique(lessons) for name, lessons in domains.items()}
    shuffled = {name: random.Random(f"{seed}:seeds").sample(lessons, len(lessons)) for name, lessons in unique.items()}
    held_out = {name: lessons[:test] for name, lessons in shuffled.items()}
    forbidden = Novelty(lesson.question for of_domain in held_out.values() for lesson in of_domain)
    parts = {}
    for name, lessons in shuffled.items():
        distinct = (lesson for lesson in lessons[test:] if forbidden.nearest(lesson.question) <= SIMILAR)
        learned = list(islice(distinct, train))
        if len(held_out[name]) < test or len(learned) < train:
            raise UnmaskError(
                f"{name}: {train} + {test} lessons were asked for. {len(lessons)} are different, and {len(learned)} of them can be learned "
                "then: a lesson that is near a held-out one is left out."
            )
        parts[name] = (learned, held_out[name])
    return parts


def _unique(lessons: Sequence[Lesson]) -> list[Lesson]:
    return list({(lesson.instruction, lesson.input): lesson for lesson in lessons}.values())


def write_lessons(lessons: Sequence[Lesson], file: Path) -> None:
    """Write lessons as jsonl, each with where it came from."""
    with atomic(file) as scratch:
        rows = (
            {"instruction": lesson.instruction, "input": lesson.input, "output": lesson.output, "from": lesson.where}
            for lesson in lessons
        )
        scratch.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def keep_lessons(lessons: Sequence[Lesson], file: Path) -> list[Lesson]:
    """Write lessons, or check that an earlier run's file has the same. Returns them as read back. Raises UnmaskError if they differ."""
    if not file.is_file():
        write_lessons(lessons, file)
    saved = read_lessons(file)
    if [replace(lesson, where="") for lesson in saved] != [replace(lesson, where="") for lesson in lessons]:
        raise UnmaskError(
            f"'{file}' holds {len(saved)} lessons of an earlier run, and these settings and data give {len(lessons)} others. Give another "
            "folder, or the settings and data of that run."
        )
    return saved


def lettered_options(choices: Sequence[object]) -> str:
    """Choices as a question shows them: a line each, behind its letter."""
    return "\n".join(f"{letter}. {choice}" for letter, choice in zip(LETTERS, choices, strict=False))


def strip_calculator_marks(answer: str) -> str:
    """A solution of GSM8K without the marks of its calculator."""
    return _CALCULATOR.sub("", answer)


def _multiple_choice(file: Path, line: int, row: Row) -> Lesson:
    choices, answer = field(file, line, row, "choices", list), field(file, line, row, "answer", int)
    if not 0 <= answer < len(choices) <= len(LETTERS):
        raise UnmaskError(f"{file}, line {line}: the answer {answer} is none of {len(choices)} choices.")
    options = lettered_options(choices)
    subject = str(row["subject"]).replace("_", " ")
    question = f"{field(file, line, row, 'question')}\n{options}"
    response = f"{LETTERS[answer]}. {choices[answer]}"
    return Lesson(f"Answer this question about {subject}.", response, question)


def _task(file: Path, line: int, row: Row) -> Lesson:
    name = str(row["task"]).replace("_", " ")
    return Lesson(f"Solve this problem of {name}.", field(file, line, row, "target"), field(file, line, row, "input"))


def _solution(file: Path, line: int, row: Row) -> Lesson:
    return Lesson(field(file, line, row, "question"), strip_calculator_marks(field(file, line, row, "answer")))


def _function(file: Path, line: int, row: Row) -> Lesson:
    tests = row.get("test_list") or []
    task = f"{field(file, line, row, 'text')}\nIt has to pass: {tests[0]}" if tests else field(file, line, row, "text")
    code = field(file, line, row, "code").replace("\r\n", "\n").replace("\t", "    ")
    return Lesson(task, code)


_LAYOUTS: dict[tuple[str, ...], Callable[[Path, int, Row], Lesson]] = {
    ("subject", "question", "choices", "answer"): _multiple_choice,
    ("task", "input", "target"): _task,
    ("question", "answer"): _solution,
    ("text", "code"): _function,
}
