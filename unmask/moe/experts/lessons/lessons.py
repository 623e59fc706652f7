"""Lessons: an instruction, optionally with an input, and the response that an expert learns.

Only the response is learned. The prompt is Alpaca's template, as in Self-MoE (arXiv 2406.12034, section 2.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from unmask.encoding.words import without_surrogates
from unmask.errors import UnmaskError
from unmask.io.rows import field, read_rows

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
        whole = (*ids, int(tokenizer.eos_token_id))
        if start >= max_length:
            raise UnmaskError(
                f"{lesson.where}: the prompt has {start} tokens, so {max_length} leave no room for the response. Raise --max-length."
            )
        tokenized.append(LessonTokens(whole[:max_length], start, lesson.where, len(whole) > max_length))
    return tokenized


def tokenize_pairs(tokenizer: PreTrainedTokenizerBase, pairs: Sequence[tuple[str, str]]) -> list[tuple[tuple[int, ...], int]]:
    """The token ids of each text with what follows it, and the place where that begins; without special tokens at the end.

    Both are tokenized together. A token across the border counts as what follows.
    """
    texts = [without_surrogates(text + following) for text, following in pairs]
    encoded = tokenizer(texts, return_offsets_mapping=True, return_special_tokens_mask=True, verbose=False)
    tokenized = []
    rows = zip(pairs, encoded["input_ids"], encoded["offset_mapping"], encoded["special_tokens_mask"], strict=True)
    for (text, _), ids, offsets, special in rows:
        real = [place for place, mark in enumerate(special) if not mark]
        start = next(place for place in real if offsets[place][1] > len(text))
        tokenized.append((tuple(ids[: real[-1] + 1]), start))
    return tokenized
