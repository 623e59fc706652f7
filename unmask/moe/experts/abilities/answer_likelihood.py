"""Answer likelihood: how well a model predicts the right answers of ability tests, in nats per token. Lower is better.

Small models answer most tests at chance, so their accuracies do not differ. A continuous measure of the same items differs long before
(Schaeffer et al., 2023, arXiv 2304.15004). lm-eval has accuracies of likelihoods only, reads the prompt again for each choice, and has no
such choices for tests that ask for written answers. With n(x) the negative log-likelihood of a continuation x of the prompt, the mean over
its tokens (Brown et al., 2020, arXiv 2005.14165, section 2.4):

- An item with choices has n(right choice) - min n(wrong choice), which is minus the margin of the right choice. It is below 0 exactly if
  the right choice is the most likely. What makes all choices less likely, such as another style, cancels. The mean over tokens keeps long
  choices from deciding, and gives all tests one unit.
- Any other item has n(reference answer). There is nothing to compare with, so style counts here.

A small model writes hardly any right answer of tests that ask for written answers, but it may still prefer the right one among several:

| test | the model reads | and chooses between |
|---|---|---|
| bbh | the question | the options of the question, or the two answers of its task |
| gsm8k | the question, and the human solution up to its last result | that result, and the answers of three other problems |
| mbpp, humaneval | the task | its program, and the programs of three other tasks, under its name |

The wrong answers are right answers of other questions, so both kinds come from one source, and a model that does not read the question is
right in 1 of 4. Answers of other questions have the same form: a number is as long, a program has as many parameters and about the same
length. No question and no wrong answer belongs to a lesson, since an expert would find a program likely that it has learned. Questions
that are nearly the same share no answers (ROUGE-L above 0.7, as for lessons). BBH uses the answers that its questions name, so chance
differs between tasks; a task without such answers is left out.
"""

from __future__ import annotations

import ast
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.encoding.prefix_cache import common_prefix_length
from unmask.errors import UnmaskError, unknown
from unmask.io.rows import field
from unmask.io.terminal import progress_bar
from unmask.models.decoder import pad_id_of
from unmask.moe.experts.abilities.ability_tests import TEST_TASKS, Item, Rows, rows_of
from unmask.moe.experts.lesson_training import LessonCollator
from unmask.moe.experts.lessons.generation import can_repeat, repeat_prefix
from unmask.moe.experts.lessons.lessons import SIMILAR, LessonTokens, Novelty, strip_calculator_marks, tokenize_pairs
from unmask.moe.experts.likelihood import mean_losses
from unmask.training.targets import mean_by_text, target_logits

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def answer_likelihood(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    items: Sequence[Item],
    *,
    max_length: int = 2048,
    batch_tokens: int = 2048,
) -> NDArray[np.float64]:
    """The measure of this module for each item, in nats per token, shape (item,). Lower is better.

    A prompt that is too long loses its first tokens, as in the harness. An answer that is longer than max_length is cut.
    """
    nats = answer_nats(model, tokenizer, items, max_length=max_length, batch_tokens=batch_tokens)
    return np.array(
        [
            negative_margin(item, of_item) if item.choices else float(of_item[0])
            for item, of_item in zip(items, nats, strict=True)
        ]
    )


def answer_nats(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    items: Sequence[Item],
    *,
    max_length: int = 2048,
    batch_tokens: int = 2048,
) -> list[NDArray[np.float64]]:
    """n(x) of every choice of an item, shape (choice,), or of its reference answer, shape (1,), for each item.

    The prompt of an item is read once for all of its choices, if its cache can be repeated (`can_repeat`).
    """
    answers = [item.choices or (item.reference,) for item in items]
    pairs = [(item.prompt, answer) for item, choices in zip(items, answers, strict=True) for answer in choices]
    rows = []
    for ids, start in tokenize_pairs(tokenizer, pairs):
        # the first tokens of a long prompt go, except the very first, which may begin every text
        excess = max(0, min(len(ids) - max_length, start - 2))
        rows.append(LessonTokens((*ids[:1], *ids[1 + excess :])[:max_length], start - excess, ""))
    ends = np.cumsum([0, *map(len, answers)])
    by_item = [rows[begin:end] for begin, end in pairwise(ends)]
    prefix_lengths, repeats = [], can_repeat(model)
    for choices in by_item:
        # without the last token of the prompt: the first token of an answer is predicted from it
        common = min(common_prefix_length([row.ids for row in choices]), *(row.start - 1 for row in choices))
        prefix_lengths.append(max(0, common) if repeats and len(choices) > 1 else 0)
    unshared = [row for choices, length in zip(by_item, prefix_lengths, strict=True) if not length for row in choices]
    collate = LessonCollator(pad_id_of(tokenizer, model))
    losses = iter(mean_losses(model, unshared, [len(row.ids) for row in unshared], collate, batch_tokens))
    nats = []
    with progress_bar("reading choices", len(items)) as advance:
        for choices, length in zip(by_item, prefix_lengths, strict=True):
            nats.append(
                _continuation_nats(model, choices, length, collate) if length else np.array([next(losses) for _ in choices])
            )
            advance(1)
    return nats


def negative_margin(item: Item, nats: NDArray[np.float64]) -> float:
    """By how much the right choice is less likely than the likeliest wrong one: n(right) - min n(wrong)."""
    right = int(str(item.target))
    return float(nats[right] - np.delete(nats, right).min())


def require_answers(tests: Mapping[str, Sequence[Item]]) -> None:
    """Raise UnmaskError for a test with an item that has neither a wrong choice nor a reference answer."""
    for name, items in tests.items():
        if any(len(item.choices) < 2 and not item.reference for item in items):
            raise UnmaskError(
                f"'{name}' has an item without a reference answer, so nothing is measured. Use a file with answers."
            )


@torch.inference_mode()  # type: ignore[untyped-decorator]
def _continuation_nats(model: Any, rows: Sequence[LessonTokens], length: int, collate: LessonCollator) -> NDArray[np.float64]:
    """n(x) of choices whose first `length` tokens are the same."""
    inputs = collate([LessonTokens(row.ids[length:], row.start - length, "") for row in rows])
    ids, labels = (inputs[name].to(model.device) for name in ("input_ids", "labels"))
    # padding stands behind every token of a text, which does not see it: so no mask is needed
    batch = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "past_key_values": repeat_prefix(model, rows[0].ids[:length], len(rows)),
    }
    return np.asarray(mean_by_text(*target_logits(model, batch, labels)).double().cpu())


WRONG: Final = 3
# programs are sorted by length, and groups of this size share their answers. The nearest in length would not do: there are more short
# programs than long ones, so most of the nearest ones are shorter than the right one, which would tell it
_TOGETHER: Final = 20
_OPTION: Final = re.compile(r"^(\([A-Z]\)) ", re.MULTILINE)
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
    right answer, if wrong answers of about the same length are taken. name: what the answer defines; wrong answers get this name.
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
    questions = [question for question in _READERS[name](file, rows_of(name, file)) if not learned(question.key)]
    shuffled = random.Random(f"{seed}:{name}").sample(questions, len(questions))
    usable = (choice for question in shuffled if (choice := _choice(question, questions, seed)))
    if not (choices := list(islice(usable, limit))):
        raise UnmaskError(f"{file}: no question that is not a learned lesson has wrong answers of the form of its right one.")
    return choices


def chance(choices: Sequence[Choice]) -> float:
    """The share of right choices, in percent, of a model that does not read the questions."""
    return 100 * sum(1 / len(choice.item.choices) for choice in choices) / len(choices)


def _choice(question: _Question, questions: Sequence[_Question], seed: int) -> Choice | None:
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
    same_form = sorted(
        (candidate for candidate in questions if candidate.form == question.form), key=lambda candidate: candidate.length
    )
    parts = max(1, len(same_form) // _TOGETHER) if question.length else 1
    part_of = [index * parts // len(same_form) for index in range(len(same_form))]
    question_part = part_of[same_form.index(question)]
    near = [candidate for candidate, part in zip(same_form, part_of, strict=True) if part == question_part]
    used, novelty = {question.right}, Novelty([question.key])
    for candidate in draw.sample(near, len(near)):
        answer = (
            re.sub(rf"\b{re.escape(candidate.name)}\b", question.name, candidate.right) if candidate.name else candidate.right
        )
        if answer not in used and novelty.nearest(candidate.key) <= SIMILAR:
            used.add(answer)
            yield answer


def _bbh(file: Path, rows: Rows) -> Iterator[_Question]:
    """Questions that name their options by letters, or whose task has two answers."""
    of_task: dict[str, set[str]] = defaultdict(set)
    for line, row in rows:
        of_task[str(row["task"])].add(field(file, line, row, "target").strip())
    for line, row in rows:
        question, right = field(file, line, row, "input"), field(file, line, row, "target").strip()
        answers = sorted(of_task[str(row["task"])])
        closed = _OPTION.findall(question) or (answers if len(answers) == 2 else [])
        if right in closed:
            yield _Question(f"Q: {question}\nA:", question, f" {right}", tuple(f" {answer}" for answer in closed))


def _gsm8k(file: Path, rows: Rows) -> Iterator[_Question]:
    """Problems whose last calculation, which is marked, gives the answer, if the steps before do not tell it already."""
    for line, row in rows:
        question, answer = field(file, line, row, "question"), field(file, line, row, "answer")
        *_, last = [None, *_RESULT.finditer(answer)]
        right = answer.rpartition("####")[2].strip().replace(",", "")
        steps = strip_calculator_marks(answer[: last.start()]) if last else ""
        leaks = re.search(rf"(?<![\d.]){re.escape(right)}(?!\.?\d)", steps)
        if last and last[1] == right and steps.rstrip(" $").endswith("=") and not leaks:
            prompt = f"Question: {question}\nAnswer:"
            solution = Item(prompt, question, reference=f" {strip_calculator_marks(answer)}")
            yield _Question(f"{prompt} {steps}", question, right, form=len(right), solution=solution)


def _mbpp(file: Path, rows: Rows) -> Iterator[_Question]:
    """The tasks of the test."""
    for line, row in rows:
        if field(file, line, row, "task_id", int) in TEST_TASKS:
            code = field(file, line, row, "code").strip().replace("\r\n", "\n")
            text = field(file, line, row, "text")
            yield from _program(text, text, code, " ".join(map(str, row["test_list"])))


def _humaneval(file: Path, rows: Rows) -> Iterator[_Question]:
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


_READERS: Final[dict[str, Callable[[Path, Rows], Iterator[_Question]]]] = {
    "bbh": _bbh,
    "gsm8k": _gsm8k,
    "mbpp": _mbpp,
    "humaneval": _humaneval,
}
