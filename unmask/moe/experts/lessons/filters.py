"""Filters: decide which written lessons are kept, and give the reason for each that is not. After Self-Instruct (arXiv 2212.10560)."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Sequence

from unmask.encoding.words import composed, keyword_spans
from unmask.moe.experts.lessons.domain import Domain
from unmask.moe.experts.lessons.lessons import Lesson

SIMILAR = 0.7  # ROUGE-L above which two instructions count as the same
_WORDS = (3, 150)
_INPUT = re.compile(r"\n\s*Input:\s*", re.IGNORECASE)
_CHOICES = re.compile(r"^\s*A[.)].+\n\s*B[.)].+\n\s*C[.)].+\n\s*D[.)].+", re.MULTILINE)


def parse_instruction(text: str) -> Lesson | None:
    """The instruction and input in a text that follows "Instruction:". None if the text holds no instruction."""
    instruction, *rest = _INPUT.split(text, maxsplit=1)
    instruction, input_ = instruction.strip(), "".join(rest).strip()
    if not instruction or "Instruction:" in text or "Response:" in text:
        return None
    return Lesson(instruction, "", "" if input_.lower() in ("none", "n/a", "<noinput>") else input_)


class Novelty:
    """Remembers texts, and measures how near another text is to them by ROUGE-L (F1 of the longest common subsequence of words)."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.known = [words(text) for text in texts]

    def nearest(self, text: str) -> float:
        """The highest ROUGE-L to a remembered text."""
        from rapidfuzz.distance import LCSseq

        own = words(text)
        most = 0.0
        for other in self.known:
            total = len(own) + len(other)
            # skip texts that cannot win: a common part is at most as long as the shorter text
            if total and 2 * min(len(own), len(other)) / total > most:
                most = max(most, 2 * LCSseq.similarity(own, other) / total)
        return most

    def add(self, text: str) -> None:
        """Remember a text."""
        self.known.append(words(text))


def words(text: str) -> list[str]:
    """Lower-case words, as ROUGE compares them.

    Scripts without spaces have no words to find. There every two neighbouring characters are one: a whole clause as a word would make an
    instruction too short, and would hide a copy with other numbers.
    """
    text = composed(text.lower())
    return [text[start:end] for start, end in keyword_spans(text)]


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
    if domain.answer and not re.search(domain.answer, text):
        return "no answer"
    return "repeats itself" if _loops(words(text)) else None


def _is_function(text: str) -> bool:
    code = re.sub(r"^```(?:python)?\n|\n```\s*$", "", text.strip())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError):
        return False
    return any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in tree.body)


def _loops(text: Sequence[str], span: int = 8, times: int = 3) -> bool:
    """Whether the same `span` words occur `times` times, as when a small model repeats itself without end."""
    seen: dict[tuple[str, ...], int] = {}
    for start in range(len(text) - span + 1):
        key = tuple(text[start : start + span])
        seen[key] = seen.get(key, 0) + 1
        if seen[key] >= times:
            return True
    return False
