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
| math | 4 | content of the last \\boxed{} | problem, solution; with train.jsonl |
| triviaqa *, nq | 5 | one of the answers | question, answer (a list, or a table with `aliases`); with train.jsonl |

mmlu, bbh, gsm8k and humaneval use the paper's number of shots (Self-MoE, arXiv 2406.12034, section 3.1), the others lm-eval's.
* With a local file, the prompt differs from lm-eval's. For truthfulqa, lm-eval prepends six questions with answers. For triviaqa, it
appends a question mark to each question. Scores of the two prompts cannot be compared.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from unmask.errors import UnmaskError
from unmask.io.rows import Row, field, read_rows
from unmask.moe.experts.abilities.sandbox import Program
from unmask.moe.experts.lessons.lessons import LETTERS, lettered, without_marks

Asked = Literal["choice", "text", "code"]
_MBPP_SHOTS: Final = (2, 3, 4)
TEST_TASKS: Final = range(11, 511)
"""The tasks of MBPP that are its test."""


@dataclass(frozen=True)
class Item:
    """One question as the model sees it.

    prompt: the question, after all shots. choices: possible continuations. target: the index of the right choice, or the right text or
    texts. program: combines the code that the model wrote with the tests that judge it. key: text that identifies the item, to recognise
    it among lessons. reference: a right answer as it follows the prompt; empty for an item with choices.
    """

    prompt: str
    key: str
    choices: tuple[str, ...] = ()
    target: int | str | tuple[str, ...] = 0
    program: Callable[[str], Program] | None = None
    reference: str = ""


@dataclass(frozen=True)
class Test:
    """A test: how its questions are asked, and how the answer is found in the text that the model writes.

    hub: its name in the harness, with the metric and the filter. dataset: for a test of code, the name and part of its data on the hub
    (the harness does not run these tests). needed: columns of a local file. by_length: compare choices by their likelihood per character.
    answer, find: a pattern or a function that finds the answer. stop: strings that end an answer.
    """

    asked: Asked
    hub: tuple[str, str, str]
    shots: int
    needed: tuple[str, ...]
    read: Callable[[Path], list[Item]]
    by_length: bool = False
    answer: str = ""
    find: Callable[[str], str] | None = None
    stop: tuple[str, ...] = ()
    max_new_tokens: int = 256
    dataset: tuple[str, str | None] = ("", None)


def read_items(name: str, file: Path) -> list[Item]:
    """The items of a local file, in its order. Raises UnmaskError if the file lacks a column."""
    test = TESTS[name]
    rows = list(read_rows(file))
    if not rows or not set(test.needed) <= rows[0][1].keys():
        raise UnmaskError(f"{file} does not fit the test '{name}': it needs the columns {', '.join(test.needed)}.")
    return test.read(file)


def said(test: Test, text: str) -> str:
    """The answer in the text of a model: the last match, or the empty string. A number is given without commas."""
    if test.find is not None:
        return test.find(text)
    matches = re.findall(test.answer, text)
    answer = matches[-1].strip().rstrip(".,") if matches else ""
    return answer.replace(",", "") if re.fullmatch(r"-?[\d,.]+", answer) else answer


def is_right(test: Test, text: str, target: int | str | tuple[str, ...]) -> bool:
    """Whether a model wrote the right text, or one of the right texts."""
    answer = said(test, text)
    return bool(answer) and answer in target if isinstance(target, tuple) else answer == target


def _mmlu(file: Path) -> list[Item]:
    items = []
    for line, row in read_rows(file):
        choices, answer = field(file, line, row, "choices", list), field(file, line, row, "answer", int)
        question = field(file, line, row, "question")
        options = lettered(choices)
        subject = str(row["subject"]).replace("_", " ")
        head = f"The following are multiple choice questions (with answers) about {subject}.\n\n"
        letters = tuple(f" {letter}" for letter in LETTERS[: len(choices)])
        items.append(Item(f"{head}{question.strip()}\n{options}\nAnswer:", f"{question} {options}", letters, answer))
    return items


def _bbh(file: Path) -> list[Item]:
    shots = _beside(file, "cot_prompts.jsonl")
    prompts = {str(row["task"]): field(shots, line, row, "prompt").split("-----\n", 1)[-1] for line, row in read_rows(shots)}
    items = []
    for line, row in read_rows(file):
        task, question = str(row["task"]), field(file, line, row, "input")
        if task not in prompts:
            raise UnmaskError(f"{file}, line {line}: {shots} has no examples of '{task}'.")
        prompt = f"{prompts[task].strip()}\n\nQ: {question}\nA: Let's think step by step."
        target = field(file, line, row, "target").strip()
        items.append(Item(prompt, question, target=target, reference=f" So the answer is {target}."))
    return items


def _gsm8k(file: Path) -> list[Item]:
    shots = [row for _, row in read_rows(_beside(file, "train.jsonl"))][:8]
    head = "\n\n".join(f"Question: {row['question']}\nAnswer: {without_marks(str(row['answer']))}" for row in shots)
    items = []
    for line, row in read_rows(file):
        question, answer = field(file, line, row, "question"), field(file, line, row, "answer")
        right = answer.rpartition("####")[2].strip().replace(",", "")
        prompt = f"{head}\n\nQuestion: {question}\nAnswer:"
        items.append(Item(prompt, question, target=right, reference=f" {without_marks(answer)}"))
    return items


def _humaneval(file: Path) -> list[Item]:
    items = []
    for line, row in read_rows(file):
        prompt, tests, name = (field(file, line, row, column) for column in ("prompt", "test", "entry_point"))
        program = _with_tests(prompt, f"{tests}\ncheck({name})\n")
        items.append(Item(prompt, prompt, program=program, reference=str(row.get("canonical_solution") or "").rstrip()))
    return items


def _with_tests(before: str, tests: str) -> Callable[[str], Program]:
    return lambda completion: Program(before + completion, tests)


def _mbpp(file: Path) -> list[Item]:
    """The published protocol: tasks 2, 3 and 4 are the shots, and tasks 11 to 510 are the test."""
    rows = {field(file, line, row, "task_id", int): row for line, row in read_rows(file)}
    if lacking := [number for number in _MBPP_SHOTS if number not in rows]:
        raise UnmaskError(f"{file} lacks task {lacking[0]}: the examples of 'mbpp' are its tasks 2, 3 and 4.")
    head = "".join(_mbpp_prompt(rows[number]) + f"{str(rows[number]['code']).strip()}\n[DONE]\n\n" for number in _MBPP_SHOTS)
    items = []
    for number, row in ((number, row) for number, row in rows.items() if number in TEST_TASKS):
        code = str(row["code"]).strip().replace("\r\n", "\n")
        try:
            statements = ast.parse(code).body
        except SyntaxError as error:
            raise UnmaskError(f"{file}, task {number}: the solution is not valid Python ({error.msg}).") from error
        # the tests may use what the published solution imports
        imports = [ast.unparse(part) + "\n" for part in statements if isinstance(part, ast.Import | ast.ImportFrom)]
        tests = "\n".join([str(row.get("test_setup_code") or ""), *map(str, row["test_list"])])
        program = _with_tests("".join(imports), tests)
        items.append(Item(head + _mbpp_prompt(row), str(row["text"]), program=program, reference=code))
    if not items:
        raise UnmaskError(f"{file} has no items: the test 'mbpp' uses the tasks {TEST_TASKS[0]} to {TEST_TASKS[-1]}.")
    return items


def _mbpp_prompt(row: Row) -> str:
    head = "You are an expert Python programmer, and here is your task:"
    tests = "\n".join(map(str, row["test_list"]))
    return f"{head} {row['text']} Your code should pass these tests:\n\n{tests}\n[BEGIN]\n"


def _hellaswag(file: Path) -> list[Item]:
    return [
        Item(
            field(file, line, row, "context"),
            field(file, line, row, "context"),
            tuple(f" {ending}" for ending in field(file, line, row, "endings", list)),
            int(row["label"]),
        )
        for line, row in read_rows(file)
    ]


def _piqa(file: Path) -> list[Item]:
    return [
        Item(f"Question: {row['goal']}\nAnswer:", str(row["goal"]), (f" {row['sol1']}", f" {row['sol2']}"), int(row["label"]))
        for _, row in read_rows(file)
    ]


def _truthfulqa(file: Path) -> list[Item]:
    items = []
    for line, row in read_rows(file):
        question, best = field(file, line, row, "question"), field(file, line, row, "best_answer")
        answers = [best, *field(file, line, row, "incorrect_answers", list)]
        items.append(Item(f"Q: {question}\nA:", question, tuple(f" {answer}" for answer in answers), 0))
    return items


def _math(file: Path) -> list[Item]:
    shots = _beside(file, "train.jsonl")
    head = "".join(
        f"Problem:\n{field(shots, line, row, 'problem')}\n\nSolution:\n{field(shots, line, row, 'solution')}\n\n"
        for line, row in list(read_rows(shots))[:4]
    )
    items = []
    for line, row in read_rows(file):
        problem, solution = field(file, line, row, "problem"), field(file, line, row, "solution")
        if not (right := boxed(solution)):
            raise UnmaskError(f"{file}, line {line}: the solution has no answer in \\boxed{{}}.")
        items.append(Item(f"{head}Problem:\n{problem}\n\nSolution:", problem, target=right, reference=f"\n{solution}"))
    return items


def boxed(text: str) -> str:
    r"""The content of the last \boxed{} of a solution, in a standard form (the most frequent of Minerva's rules)."""
    _, mark, rest = text.rpartition("\\boxed{")
    depth, inner = 1, ""
    for char in rest:
        depth += {"{": 1, "}": -1}.get(char, 0)
        if depth == 0:
            break
        inner += char
    if not mark or depth:
        return ""
    for pattern, replacement in (
        ("dfrac", "frac"),
        ("tfrac", "frac"),
        ("\\left", ""),
        ("\\right", ""),
        ("\\!", ""),
        ("\\,", ""),
    ):
        inner = inner.replace(pattern, replacement)
    inner = re.sub(r"\\(?:text|mbox|textbf)\{(.*?)\}", r"\1", inner)
    inner = re.sub(r"(?<=\d),(?=\d{3})|\^\\circ|\^\{\\circ\}|\\?[$%]|\s", "", inner)
    return inner.rstrip(".")


def _questions(form: str, head: str, between: str) -> Callable[[Path], list[Item]]:
    """A reader of questions with several right answers. Five questions of train.jsonl are the shots."""

    def read(file: Path) -> list[Item]:
        shots = _beside(file, "train.jsonl")
        examples = [
            form.format(field(shots, line, row, "question")) + f" {_answers(shots, line, row)[0]}"
            for line, row in list(read_rows(shots))[:5]
        ]
        items = []
        for line, row in read_rows(file):
            question = field(file, line, row, "question")
            answers = _answers(file, line, row)
            right = tuple(dict.fromkeys(map(plain_answer, answers)))
            prompt = head + between.join([*examples, form.format(question)])
            items.append(Item(prompt, question, target=right, reference=f" {answers[0]}"))
        return items

    return read


def _answers(file: Path, line: int, row: Row) -> list[str]:
    """The right answers of a question, from a list or from a table with `aliases`."""
    value = row.get("answer")
    answers = value.get("aliases") if isinstance(value, dict) else value
    if not isinstance(answers, list) or not answers or not all(isinstance(answer, str) and answer for answer in answers):
        raise UnmaskError(f"{file}, line {line}: 'answer' must be a list of texts, or a table with such a list in 'aliases'.")
    return answers


def plain_answer(text: str) -> str:
    """The first line of a short answer in a standard form: lower case, without punctuation and articles."""
    words = re.sub(r"[^\w\s]", "", text.strip().split("\n")[0].casefold()).split()
    return " ".join(word for word in words if word not in ("a", "an", "the")) or " ".join(words)


def _beside(file: Path, name: str) -> Path:
    examples = file.with_name(name)
    if not examples.is_file():
        raise UnmaskError(f"{examples} does not exist. It must hold the examples for {file.name}.")
    return examples


_NUMBER = r"####\s*(-?[\d,.]+)"
_CODE = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
TESTS: Final[dict[str, Test]] = {
    "mmlu": Test("choice", ("mmlu", "acc", "none"), 0, ("subject", "question", "choices", "answer"), _mmlu),
    "bbh": Test(
        "text", ("bbh_cot_fewshot", "exact_match", "get-answer"), 3, ("task", "input", "target"), _bbh,
        answer=r"the answer is (.*?)(?:\.\s|\.?$|\.?\n)", stop=("\n\n", "\nQ:"), max_new_tokens=512,
    ),
    "gsm8k": Test(
        "text", ("gsm8k", "exact_match", "strict-match"), 8, ("question", "answer"), _gsm8k,
        answer=_NUMBER, stop=("\n\n", "Question:"),
    ),
    "humaneval": Test(
        "code", ("humaneval", "pass@1", "create_test"), 0, ("prompt", "test", "entry_point"), _humaneval,
        stop=_CODE, max_new_tokens=512, dataset=("openai/openai_humaneval", None),
    ),
    "mbpp": Test(
        "code", ("mbpp", "pass_at_1", "none"), 3, ("task_id", "text", "code", "test_list"), _mbpp,
        stop=("[DONE]",), dataset=("google-research-datasets/mbpp", "full"),
    ),
    "hellaswag": Test("choice", ("hellaswag", "acc_norm", "none"), 0, ("context", "endings", "label"), _hellaswag, by_length=True),
    "piqa": Test("choice", ("piqa", "acc_norm", "none"), 0, ("goal", "sol1", "sol2", "label"), _piqa, by_length=True),
    "truthfulqa": Test("choice", ("truthfulqa_mc1", "acc", "none"), 0, ("question", "best_answer", "incorrect_answers"), _truthfulqa),
    "math": Test(
        "text", ("minerva_math", "exact_match", "none"), 4, ("problem", "solution"), _math,
        find=boxed, stop=("Problem:",), max_new_tokens=512,
    ),
    "triviaqa": Test(
        "text", ("triviaqa", "exact_match", "remove_whitespace"), 5, ("question", "answer"),
        _questions("Question: {}\nAnswer:", "", "\n\n"),
        find=plain_answer, stop=("\n", ".", ","), max_new_tokens=32,
    ),
    "nq": Test(
        "text", ("nq_open", "exact_match", "remove_whitespace"), 5, ("question", "answer"),
        _questions("Q: {}?\nA:", "Answer these questions:\n\n", "\n"),
        find=plain_answer, stop=("\n", ".", ","), max_new_tokens=32,
    ),
}  # fmt: skip
TARGETS: Final = ("mmlu", "bbh", "gsm8k", "humaneval")
