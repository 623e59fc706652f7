"""Multiple choice: ability tests that ask for written answers, asked as a choice between the right answer and wrong ones of its form.

A small model writes hardly any right answer of these tests, so their accuracy is near 0 for every model. Which of several answers is the
likeliest can still be told. It is measured by `answer_nats`, without shots:

| test | the model reads | and chooses between |
|---|---|---|
| mmlu | the question, without its choices | the texts of its choices |
| bbh | the question | the options of the question, or the two answers of its task |
| gsm8k | the question, and the human solution up to its last result | that result, and the answers of three other problems |
| mbpp, humaneval | what a function shall do | its program, and the programs of three other tasks, under its name |

Why these wrong answers? They are right answers of other questions. So right and wrong ones come from one source, and a model that does not
read the question is right by chance only: in 1 of 4. Invented wrong answers can be told by their look, numbers that are less round, say.
To make the choice harder, answers of other questions have the same form: a number is as long, a program as many parameters and
about the same length. They belong to no lesson, since an expert would find a program likely that it has learned. Questions that are
nearly the same share no answers (ROUGE-L above 0.7, as for lessons).

BBH has the answers that its questions name, so chance is another share for each task. A task without such answers, as sorting words, is
left out. A model can be above chance if it always gives an answer that is frequent in a task.

With the result of the last step, GSM8K asks for one calculation with the numbers of a solution, not for finding the solution. How well a
model foresees the whole solution is told by its likelihood, which is measured beside the choice.
"""

from __future__ import annotations

import ast
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from unmask.errors import UnmaskError, unknown
from unmask.io.rows import Row, field, read_rows
from unmask.moe.experts.abilities.ability_tests import TEST_TASKS, TESTS, Item
from unmask.moe.experts.lessons.filters import SIMILAR, Novelty
from unmask.moe.experts.lessons.seed_lessons import lettered, without_marks

WRONG: Final = 3
# programs are sorted by length, and so many beside each other share their answers. The nearest in length would not do: there are more short
# programs than long ones, so most of the nearest ones are shorter than the right one, which would tell it
_TOGETHER: Final = 20
_OPTION: Final = re.compile(r"^(\([A-Z]\)) ", re.MULTILINE)
_OF_OTHERS: Final = re.compile(r"\b(above|these|both|neither|[A-D] and [A-D])\b", re.IGNORECASE)
_RESULT: Final = re.compile(r"<<[^<>]*=(-?[\d.]+)>>")
_HEAD: Final = "You are an expert Python programmer, and here is your task:"


@dataclass(frozen=True)
class Choice:
    """A question as a choice. item: with choices. solution: the human answer to the question, as the reference of an item.

    solution is None if the right choice is the human answer.
    """

    item: Item
    solution: Item | None = None


@dataclass(frozen=True)
class _Question:
    """A question with its right answer.

    closed: all answers, if the question has a closed set. form: answers of questions of the same form can be wrong answers. length: of the
    right answer, if those of about the same length are taken. name: what the answer defines; wrong answers get this name.
    """

    prompt: str
    key: str
    right: str
    closed: tuple[str, ...] = ()
    form: int = 0
    length: int = 0
    name: str = ""
    solution: Item | None = None


def require_multiple_choice(name: str) -> None:
    """Raise UnmaskError for a test that cannot be asked as a choice."""
    if name not in _READERS:
        raise unknown("ability as a multiple choice", name, _READERS)


def draw_choices(name: str, file: Path, limit: int | None, seed: int, learned: Callable[[str], bool]) -> list[Choice]:
    """`limit` random questions of a local file as choices, drawn with the seed. No question and no wrong answer is a learned one.

    Raises UnmaskError if the file lacks a column, and if no question has enough wrong answers.
    """
    rows = list(read_rows(file))
    if not rows or not set(TESTS[name].needed) <= rows[0][1].keys():
        raise UnmaskError(f"{file} does not fit the test '{name}': it needs the columns {', '.join(TESTS[name].needed)}.")
    questions = [question for question in _READERS[name](file, rows) if not learned(question.key)]
    shuffled = random.Random(f"{seed}:{name}").sample(questions, len(questions))
    asked = (choice for question in shuffled if (choice := _as_choice(question, questions, seed)))
    if not (choices := list(islice(asked, limit))):
        raise UnmaskError(f"{file}: no question that is not a learned lesson has wrong answers of the form of its right one.")
    return choices


def chance(choices: Sequence[Choice]) -> float:
    """The share of right choices, in percent, of a model that does not read the questions."""
    return 100 * sum(1 / len(choice.item.choices) for choice in choices) / len(choices)


def _as_choice(question: _Question, questions: Sequence[_Question], seed: int) -> Choice | None:
    """A question with its answers in random order. None if there are too few wrong ones."""
    draw = random.Random(f"{seed}:{question.key}")
    if not question.closed:
        wrong = list(islice(_wrong_answers(question, questions, draw), WRONG))
        answers = draw.sample([question.right, *wrong], WRONG + 1) if len(wrong) == WRONG else []
    else:
        answers = list(question.closed)
    if not answers:
        return None
    item = Item(question.prompt, question.key, tuple(answers), answers.index(question.right))
    return Choice(item, question.solution)


def _wrong_answers(question: _Question, questions: Sequence[_Question], draw: random.Random) -> Iterator[str]:
    """Different right answers of other questions of the same form, in random order."""
    alike = sorted((other for other in questions if other.form == question.form), key=lambda other: other.length)
    parts = max(1, len(alike) // _TOGETHER) if question.length else 1
    part_of = [place * parts // len(alike) for place in range(len(alike))]
    own_part = part_of[alike.index(question)]
    near = [other for other, part in zip(alike, part_of, strict=True) if part == own_part]
    given, own = {question.right}, Novelty([question.key])
    for other in draw.sample(near, len(near)):
        answer = re.sub(rf"\b{re.escape(other.name)}\b", question.name, other.right) if other.name else other.right
        if answer not in given and own.nearest(other.key) <= SIMILAR:
            given.add(answer)
            yield answer


def _mmlu(file: Path, rows: Sequence[tuple[int, Row]]) -> Iterator[_Question]:
    """Questions whose choices differ and can be read alone: "all of the above" cannot. A small model does not know what a letter means."""
    for line, row in rows:
        choices, answer = field(file, line, row, "choices", list), field(file, line, row, "answer", int)
        texts = tuple(f" {str(choice).strip()}" for choice in choices)
        if len(set(texts)) == len(texts) and not any(_OF_OTHERS.search(text) for text in texts):
            asked = field(file, line, row, "question")
            yield _Question(f"Question: {asked.strip()}\nAnswer:", f"{asked} {lettered(choices)}", texts[answer], texts)


def _bbh(file: Path, rows: Sequence[tuple[int, Row]]) -> Iterator[_Question]:
    """Questions that name their options by letters, and those of tasks with two answers."""
    of_task: dict[str, set[str]] = defaultdict(set)
    for line, row in rows:
        of_task[str(row["task"])].add(field(file, line, row, "target").strip())
    for line, row in rows:
        asked, right = field(file, line, row, "input"), field(file, line, row, "target").strip()
        answers = sorted(of_task[str(row["task"])])
        closed = _OPTION.findall(asked) or (answers if len(answers) == 2 else [])
        if right in closed:
            yield _Question(f"Q: {asked}\nA:", asked, f" {right}", tuple(f" {answer}" for answer in closed))


def _gsm8k(file: Path, rows: Sequence[tuple[int, Row]]) -> Iterator[_Question]:
    """Problems whose last calculation, which is marked, gives the answer, if the steps before do not tell it already."""
    for line, row in rows:
        question, answer = field(file, line, row, "question"), field(file, line, row, "answer")
        *_, last = [None, *_RESULT.finditer(answer)]
        right = answer.rpartition("####")[2].strip().replace(",", "")
        steps = without_marks(answer[: last.start()]) if last else ""
        told = re.search(rf"(?<![\d.]){re.escape(right)}(?!\.?\d)", steps)
        if last and last[1] == right and steps.rstrip(" $").endswith("=") and not told:
            prompt = f"Question: {question}\nAnswer:"
            solution = Item(prompt, question, reference=f" {without_marks(answer)}")
            yield _Question(f"{prompt} {steps}", question, right, form=len(right), solution=solution)


def _mbpp(file: Path, rows: Sequence[tuple[int, Row]]) -> Iterator[_Question]:
    """The tasks of the test."""
    for line, row in rows:
        if field(file, line, row, "task_id", int) in TEST_TASKS:
            code = field(file, line, row, "code").strip().replace("\r\n", "\n")
            text = field(file, line, row, "text")
            yield from _program(text, text, code, " ".join(map(str, row["test_list"])))


def _humaneval(file: Path, rows: Sequence[tuple[int, Row]]) -> Iterator[_Question]:
    """Functions without their documentation, which is the task."""
    for line, row in rows:
        prompt, name = field(file, line, row, "prompt"), field(file, line, row, "entry_point")
        body = field(file, line, row, "canonical_solution").rstrip()
        for function in _functions(f"{prompt}{body}", name):
            _, mark, head = prompt.partition(f"def {name}(")
            signature = re.split("\"\"\"|'''", head)[0].rstrip()
            yield from _program(ast.get_docstring(function) or "", prompt, f"{mark}{signature}\n{body}", f"{name}(")


def _program(task: str, key: str, code: str, tests: str) -> Iterator[_Question]:
    """A task with its program, if its tests call a function of the program."""
    for name in re.findall(r"(\w+)\(", tests):
        if functions := _functions(code, name):
            prompt = f"{_HEAD} {task}\n[BEGIN]\n"
            yield _Question(prompt, key, code, form=len(functions[0].args.args), length=len(code), name=name)
            return


def _functions(code: str, name: str) -> list[ast.FunctionDef]:
    """The functions of a program that have this name; none if it is not valid Python."""
    try:
        body = ast.parse(code).body
    except SyntaxError:
        return []
    return [part for part in body if isinstance(part, ast.FunctionDef) and part.name == name]


_READERS: Final[dict[str, Callable[[Path, Sequence[tuple[int, Row]]], Iterator[_Question]]]] = {
    "mmlu": _mmlu,
    "bbh": _bbh,
    "gsm8k": _gsm8k,
    "mbpp": _mbpp,
    "humaneval": _humaneval,
}
