"""Ability tests of the Self-MoE paper. lm-eval downloads them by name; here they are read from local files, which its tasks do not accept.

| test | shots | scored | columns of a local file |
|---|---|---|---|
| mmlu | 0 | likeliest letter | subject, question, choices, answer |
| bbh | 3, chain of thought | text after "the answer is" | task, input, target; with cot_prompts.jsonl |
| gsm8k | 8 | number behind #### | question, answer; with train.jsonl |
| humaneval | 0 | code passes the tests | prompt, test, entry_point |
| mbpp | 3: tasks 2, 3, 4 | code passes the tests | task_id, text, code, test_list; tasks 11 to 510 are the test |
| hellaswag, piqa | 0 | likeliest ending, per character | context, endings, label; goal, sol1, sol2, label |
| truthfulqa * | 0 | likeliest answer (MC1) | question, best_answer, incorrect_answers |
| math, triviaqa, nq | 4, 5, 5 | as in lm-eval | only by name |

mmlu, bbh, gsm8k and humaneval use the paper's number of shots (Self-MoE, arXiv 2406.12034, section 3.1), the others lm-eval's.
* With a local file, the prompt differs from lm-eval's, which prepends six questions with answers. The two scores cannot be compared.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from unmask.errors import UnmaskError
from unmask.io.rows import Row, field, read_rows
from unmask.moe.experts.abilities.sandbox import Program
from unmask.moe.experts.lessons.lessons import LETTERS, lettered_options, strip_calculator_marks

Rows = Sequence[tuple[int, Row]]
"""The rows of a file, with the numbers of their lines."""
_MBPP_SHOTS: Final = (2, 3, 4)
TEST_TASKS: Final = range(11, 511)
"""The tasks of MBPP that are its test."""


@dataclass(frozen=True)
class Item:
    """One question as the model sees it.

    prompt: the question, after all shots. choices: possible continuations. target: the index of the right choice, or the right text.
    program: combines the code that the model wrote with the tests that judge it. key: text that identifies the item, to recognise
    it among lessons. reference: a right answer as it follows the prompt; empty for an item with choices.
    """

    prompt: str
    key: str
    choices: tuple[str, ...] = ()
    target: int | str = 0
    program: Callable[[str], Program] | None = None
    reference: str = ""


@dataclass(frozen=True)
class Test:
    """A test: how its questions are asked, and how the answer is found in the text that the model writes.

    hub: its name in the harness, with the metric and the filter; for a test of code, which the harness does not run, the name and part of
    its data on the hub. shots: in the harness's prompt. columns, read: of a local file. by_length: compare choices by their likelihood per
    character. answer: a pattern that finds the answer. stop: strings that end an answer.
    """

    asked: Literal["choice", "text", "code"]
    hub: tuple[str, ...]
    shots: int
    columns: tuple[str, ...] = ()
    read: Callable[[Path, Rows], list[Item]] | None = None
    by_length: bool = False
    answer: str = ""
    stop: tuple[str, ...] = ()
    max_new_tokens: int = 256


def rows_of(name: str, file: Path) -> Rows:
    """The rows of a test's local file. Raises UnmaskError if the file lacks a column."""
    rows, columns = list(read_rows(file)), TESTS[name].columns
    if not columns:
        raise UnmaskError(f"'{name}' is read by its name only: leave the file out.")
    if not rows or not set(columns) <= rows[0][1].keys():
        raise UnmaskError(f"{file} does not fit the test '{name}': it needs the columns {', '.join(columns)}.")
    return rows


def read_items(name: str, file: Path) -> list[Item]:
    """The items of a local file, in its order. Raises UnmaskError if the file lacks a column."""
    rows, read_file = rows_of(name, file), TESTS[name].read
    assert read_file is not None
    return read_file(file, rows)


def is_right(test: Test, text: str, target: int | str) -> bool:
    """Whether the last answer in the text of a model is the right one. Numbers are compared without commas."""
    matches = re.findall(test.answer, text)
    answer = matches[-1].strip().rstrip(".,") if matches else ""
    return (answer.replace(",", "") if re.fullmatch(r"-?[\d,.]+", answer) else answer) == target


def _mmlu(file: Path, rows: Rows) -> list[Item]:
    items = []
    for line, row in rows:
        choices, answer = field(file, line, row, "choices", list), field(file, line, row, "answer", int)
        question = field(file, line, row, "question")
        options = lettered_options(choices)
        subject = str(row["subject"]).replace("_", " ")
        head = f"The following are multiple choice questions (with answers) about {subject}.\n\n"
        letters = tuple(f" {letter}" for letter in LETTERS[: len(choices)])
        items.append(Item(f"{head}{question.strip()}\n{options}\nAnswer:", f"{question} {options}", letters, answer))
    return items


def _bbh(file: Path, rows: Rows) -> list[Item]:
    shots = _beside(file, "cot_prompts.jsonl")
    prompts = {str(row["task"]): field(shots, line, row, "prompt").split("-----\n", 1)[-1] for line, row in read_rows(shots)}
    items = []
    for line, row in rows:
        task, question = str(row["task"]), field(file, line, row, "input")
        if task not in prompts:
            raise UnmaskError(f"{file}, line {line}: {shots} has no examples of '{task}'.")
        prompt = f"{prompts[task].strip()}\n\nQ: {question}\nA: Let's think step by step."
        target = field(file, line, row, "target").strip()
        items.append(Item(prompt, question, target=target, reference=f" So the answer is {target}."))
    return items


def _gsm8k(file: Path, rows: Rows) -> list[Item]:
    shots = [row for _, row in read_rows(_beside(file, "train.jsonl"))][:8]
    head = "\n\n".join(f"Question: {row['question']}\nAnswer: {strip_calculator_marks(str(row['answer']))}" for row in shots)
    items = []
    for line, row in rows:
        question, answer = field(file, line, row, "question"), field(file, line, row, "answer")
        right = answer.rpartition("####")[2].strip().replace(",", "")
        prompt = f"{head}\n\nQuestion: {question}\nAnswer:"
        items.append(Item(prompt, question, target=right, reference=f" {strip_calculator_marks(answer)}"))
    return items


def _humaneval(file: Path, rows: Rows) -> list[Item]:
    items = []
    for line, row in rows:
        prompt, tests, name = (field(file, line, row, column) for column in ("prompt", "test", "entry_point"))
        program = _with_tests(prompt, f"{tests}\ncheck({name})\n")
        items.append(Item(prompt, prompt, program=program, reference=str(row.get("canonical_solution") or "").rstrip()))
    return items


def _with_tests(before: str, tests: str) -> Callable[[str], Program]:
    return lambda completion: Program(before + completion, tests)


def _mbpp(file: Path, rows: Rows) -> list[Item]:
    """The published protocol: tasks 2, 3 and 4 are the shots, and tasks 11 to 510 are the test."""
    tasks = {field(file, line, row, "task_id", int): row for line, row in rows}
    if lacking := [number for number in _MBPP_SHOTS if number not in tasks]:
        raise UnmaskError(f"{file} lacks task {lacking[0]}: the examples of 'mbpp' are its tasks 2, 3 and 4.")
    head = "".join(_mbpp_prompt(tasks[number]) + f"{str(tasks[number]['code']).strip()}\n[DONE]\n\n" for number in _MBPP_SHOTS)
    items = []
    for row in (row for number, row in tasks.items() if number in TEST_TASKS):
        code = str(row["code"]).strip().replace("\r\n", "\n")
        # the tests may use what the published solution imports
        imports = [ast.unparse(part) + "\n" for part in ast.parse(code).body if isinstance(part, ast.Import | ast.ImportFrom)]
        tests = "\n".join([str(row.get("test_setup_code") or ""), *map(str, row["test_list"])])
        program = _with_tests("".join(imports), tests)
        items.append(Item(head + _mbpp_prompt(row), str(row["text"]), program=program, reference=code))
    return items


def _mbpp_prompt(row: Row) -> str:
    head = "You are an expert Python programmer, and here is your task:"
    tests = "\n".join(map(str, row["test_list"]))
    return f"{head} {row['text']} Your code should pass these tests:\n\n{tests}\n[BEGIN]\n"


def _hellaswag(file: Path, rows: Rows) -> list[Item]:
    return [
        Item(
            field(file, line, row, "context"),
            field(file, line, row, "context"),
            tuple(f" {ending}" for ending in field(file, line, row, "endings", list)),
            int(row["label"]),
        )
        for line, row in rows
    ]


def _piqa(file: Path, rows: Rows) -> list[Item]:
    return [
        Item(f"Question: {row['goal']}\nAnswer:", str(row["goal"]), (f" {row['sol1']}", f" {row['sol2']}"), int(row["label"]))
        for _, row in rows
    ]


def _truthfulqa(file: Path, rows: Rows) -> list[Item]:
    items = []
    for line, row in rows:
        question, best = field(file, line, row, "question"), field(file, line, row, "best_answer")
        answers = [best, *field(file, line, row, "incorrect_answers", list)]
        items.append(Item(f"Q: {question}\nA:", question, tuple(f" {answer}" for answer in answers), 0))
    return items


def _beside(file: Path, name: str) -> Path:
    examples = file.with_name(name)
    if not examples.is_file():
        raise UnmaskError(f"{examples} does not exist. It must hold the examples for {file.name}.")
    return examples


TESTS: Final[dict[str, Test]] = {
    "mmlu": Test("choice", ("mmlu", "acc", "none"), 0, ("subject", "question", "choices", "answer"), _mmlu),
    "bbh": Test(
        "text", ("bbh_cot_fewshot", "exact_match", "get-answer"), 3, ("task", "input", "target"), _bbh,
        answer=r"the answer is (.*?)(?:\.\s|\.?$|\.?\n)", stop=("\n\n", "\nQ:"), max_new_tokens=512,
    ),
    "gsm8k": Test(
        "text", ("gsm8k", "exact_match", "strict-match"), 8, ("question", "answer"), _gsm8k,
        answer=r"####\s*(-?[\d,.]+)", stop=("\n\n", "Question:"),
    ),
    "humaneval": Test(
        "code", ("openai/openai_humaneval",), 0, ("prompt", "test", "entry_point"), _humaneval,
        stop=("\nclass", "\ndef", "\n#", "\nif", "\nprint"), max_new_tokens=512,
    ),
    "mbpp": Test(
        "code", ("google-research-datasets/mbpp", "full"), 3, ("task_id", "text", "code", "test_list"), _mbpp, stop=("[DONE]",),
    ),
    "hellaswag": Test("choice", ("hellaswag", "acc_norm", "none"), 0, ("context", "endings", "label"), _hellaswag, by_length=True),
    "piqa": Test("choice", ("piqa", "acc_norm", "none"), 0, ("goal", "sol1", "sol2", "label"), _piqa, by_length=True),
    "truthfulqa": Test("choice", ("truthfulqa_mc1", "acc", "none"), 0, ("question", "best_answer", "incorrect_answers"), _truthfulqa),
    "math": Test("text", ("minerva_math", "exact_match", "none"), 4),
    "triviaqa": Test("text", ("triviaqa", "exact_match", "remove_whitespace"), 5),
    "nq": Test("text", ("nq_open", "exact_match", "remove_whitespace"), 5),
}  # fmt: skip
