"""Domain: the topic of lessons, the prompts with which a base model writes them, and the filters that drop bad ones.

A base model follows examples, not orders. So the prompt for an instruction shows a list of requirements and three seed lessons. The prompt
for a response shows the role of an expert and five seed lessons with their responses (Self-MoE, arXiv 2406.12034, section 2.1). The
wording is our own. The filters follow Self-Instruct (arXiv 2212.10560).
"""

from __future__ import annotations

import ast
import re
import tomllib
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from unmask.errors import UnmaskError, first_problem, unknown
from unmask.io.paths import expanded
from unmask.moe.experts.lessons.lessons import SIMILAR, Lesson, Novelty, words

_SHIPPED = Path(__file__).parent / "domains"
STOP = "\n\nTask"  # what a base model writes when it continues with the next task
BLANK = "\n\n"  # the end of an instruction


class Domain(BaseModel):
    """The content of a domain file.

    form: "choice" needs four choices and a letter, "code" needs a response that parses as Python with a function, "free" needs neither.
    ask: first line of the prompt. requirements: numbered below it. role: who responds. answer: a pattern that every response must match.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    form: Literal["free", "choice", "code"] = "free"
    ask: str
    requirements: tuple[str, ...] = Field(min_length=1)
    role: str
    answer: re.Pattern[str] | None = None

    def brainstorm(self, seeds: Sequence[Lesson]) -> str:
        """The prompt for a new instruction."""
        rules = "\n".join(f"{number}. {rule}" for number, rule in enumerate(self.requirements, start=1))
        tasks = [f"Task {number}\n{_question(seed)}" for number, seed in enumerate(seeds, start=1)]
        return f"{self.ask}\n\nRequirements:\n{rules}\n\n" + "\n\n".join([*tasks, f"Task {len(seeds) + 1}\nInstruction:"])

    def respond(self, seeds: Sequence[Lesson]) -> str:
        """The shared beginning of the prompts for responses, up to the instruction to be answered."""
        tasks = [f"Task {number}\n{_question(seed)}\nResponse: {seed.output}" for number, seed in enumerate(seeds, start=1)]
        return f"{self.role}\n\n" + "\n\n".join(tasks) + f"\n\nTask {len(seeds) + 1}\n"

    @staticmethod
    def question(lesson: Lesson) -> str:
        """The end of the prompt, for one instruction."""
        return f"{_question(lesson)}\nResponse:"


def _question(lesson: Lesson) -> str:
    return f"Instruction: {lesson.instruction}" + (f"\nInput: {lesson.input}" if lesson.input else "")


def shipped_domains() -> dict[str, Path]:
    """The domains of this package, by name."""
    return {file.stem: file for file in sorted(_SHIPPED.glob("*.toml"))}


def load_domain(name: str) -> Domain:
    """A domain of this package, or of a TOML file. Raises UnmaskError with the mistake in the file."""
    file = shipped_domains().get(name, expanded(name))
    if not file.is_file():
        raise unknown("domain", name, [*shipped_domains(), "a TOML file"])
    try:
        return Domain.model_validate({"name": file.stem} | tomllib.loads(file.read_text(encoding="utf-8")))
    except tomllib.TOMLDecodeError as error:
        raise UnmaskError(f"{file} is not valid TOML: {error}.") from error
    except ValidationError as error:
        raise UnmaskError(f"{file}: {first_problem(error)}.") from error


_WORDS = (3, 150)
_SPAN, _TIMES = 8, 3  # a small model may repeat the same 8 words without end
_INPUT = re.compile(r"\n\s*Input:\s*", re.IGNORECASE)
_CHOICES = re.compile(r"^\s*A[.)].+\n\s*B[.)].+\n\s*C[.)].+\n\s*D[.)].+", re.MULTILINE)


def parse_instruction(text: str) -> Lesson | None:
    """The instruction and input in a text that follows "Instruction:". None if the text holds no instruction."""
    instruction, *rest = _INPUT.split(text, maxsplit=1)
    instruction, input_ = instruction.strip(), "".join(rest).strip()
    if not instruction or "Instruction:" in text or "Response:" in text:
        return None
    return Lesson(instruction, "", "" if input_.lower() in ("none", "n/a", "<noinput>") else input_)


def refuse_instruction(lesson: Lesson | None, domain: Domain, novelty: Novelty, forbidden: Novelty) -> str | None:
    """The reason to drop an instruction, or None."""
    if lesson is None:
        return "unparsable"
    if not _WORDS[0] <= len(words(lesson.question)) <= _WORDS[1]:
        return "length"
    if domain.form == "choice" and not _CHOICES.search(f"{lesson.instruction}\n{lesson.input}"):
        return "no four choices"
    if forbidden.nearest(lesson.question) > SIMILAR:
        return "in an evaluation"
    if novelty.nearest(lesson.question) > SIMILAR:
        return "repeated"
    return None


def refuse_response(text: str, domain: Domain) -> str | None:
    """The reason to drop a response, or None."""
    if not text.strip():
        return "no response"
    if domain.form == "choice" and not re.match(r"\s*[A-D](?:[.):]|\s*$)", text):
        return "no letter"
    if domain.form == "code":
        return None if _is_function(text) else "no function that parses"
    if domain.answer and not domain.answer.search(text):
        return "no answer"
    tokens = words(text)
    counts = Counter(tuple(tokens[start : start + _SPAN]) for start in range(len(tokens) - _SPAN + 1))
    return "repeats itself" if max(counts.values(), default=0) >= _TIMES else None


def _is_function(text: str) -> bool:
    code = re.sub(r"^```(?:python)?\n|\n```\s*$", "", text.strip())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError):
        return False
    return any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in tree.body)
