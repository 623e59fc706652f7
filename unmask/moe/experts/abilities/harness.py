"""Harness: runs lm-evaluation-harness on a model in memory, and keeps the result of each item, so that models are compared item by item.

Added to lm-eval: items that a model was trained on are left out, tests are read from local files, and code that a model writes runs in a
sandbox. Tests of code therefore use neither the data nor the metric of lm-eval.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from unmask.errors import UnmaskError, cause_of, require_package, unknown
from unmask.io.terminal import draws_bars
from unmask.moe.experts.abilities.ability_tests import TESTS, Item, Test, is_right, read_items
from unmask.moe.experts.abilities.sandbox import Program, passes, require_sandbox
from unmask.moe.experts.lessons.lessons import Lesson, lettered_options

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_QUESTIONS: Final = ("question", "input", "prompt", "text", "problem", "goal", "ctx")  # columns of the harness's own tests


@dataclass(frozen=True)
class HarnessItems:
    """lm-eval's own items of a test, without those that a model was trained on."""

    learned: Callable[[str], bool] = lambda _: False


TestItems = Sequence[Item] | HarnessItems


def draw_tests(
    files: Mapping[str, Path | None], limit: int | None, seed: int, lessons: Sequence[Lesson]
) -> dict[str, TestItems]:
    """The items of each test, from its file or fetched by its name, without learned items. Raises UnmaskError for an unknown test."""
    is_learned = learned_filter(lessons)
    for name in files:
        find_test(name)
    return {
        name: draw_items(name, file, limit, seed, is_learned) if file else HarnessItems(is_learned)
        for name, file in files.items()
    }


def draw_items(name: str, file: Path, limit: int | None, seed: int, learned: Callable[[str], bool]) -> list[Item]:
    """`limit` random items of a local file, drawn with the seed, without learned items. Raises UnmaskError if no item is left."""
    items = _drop_learned(read_items(name, file), learned, str(file))
    return random.Random(f"{seed}:{name}").sample(items, limit) if limit is not None and limit < len(items) else items


def _drop_learned(items: Sequence[Item], learned: Callable[[str], bool], where: str) -> list[Item]:
    fresh = [item for item in items if not learned(item.key)]
    if not fresh:
        raise UnmaskError(f"{where}: all {len(items)} items are among the learned lessons, so there is nothing to test.")
    return fresh


def learned_filter(lessons: Sequence[Lesson]) -> Callable[[str], bool]:
    """A function that says whether an item is among these lessons. It compares the words of the question."""
    questions = {_plain(part) for lesson in lessons for part in (lesson.instruction, lesson.input) if part}
    return lambda key: _plain(key) in questions


def _plain(text: str) -> str:
    """The words only, without the tests that a lesson of code contains."""
    return " ".join(text.split("\nIt has to pass:")[0].casefold().split())


def accuracies(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    items: Mapping[str, TestItems],
    *,
    run_code: bool = False,
    unsandboxed: bool = False,
    limit: int | None = None,
    batch: int = 8,
) -> dict[str, NDArray[np.float64]]:
    """For each test, a 0/1 array: was each item answered correctly?

    items: from local files. With `HarnessItems`, the harness fetches its own, the first `limit` of each part. run_code: run code that the
    model writes, in a sandbox. unsandboxed: run it even if no sandbox is available. Raises UnmaskError for an unknown test, for code that
    may not be run, and if the harness is not installed; before anything is measured.
    """
    require_code_to_run(items, run_code, unsandboxed)
    tests = {name: find_test(name) for name in items}
    local = {
        name: _fetch_code_items(name, tests[name], limit, of_test)
        if tests[name].asked == "code" and isinstance(of_test, HarnessItems)
        else of_test
        for name, of_test in items.items()
    }
    require_package("lm_eval")
    from lm_eval.models.huggingface import HFLM

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    # in bf16, the log-likelihoods of two choices can round to the same number
    lm = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=batch, softmax_dtype="float32")
    if not draws_bars():  # progress bars would fill a log
        for kind in ("loglikelihood", "generate_until"):
            setattr(lm, kind, partial(getattr(lm, kind), disable_tqdm=True))
    run = partial(passes, unsandboxed=unsandboxed)
    return {
        name: _score_harness_test(lm, tests[name], limit, of_test)
        if isinstance(of_test, HarnessItems)
        else _score_items(lm, tests[name], name, of_test, run)
        for name, of_test in local.items()
    }


def require_code_to_run(names: Iterable[str], run_code: bool, unsandboxed: bool = False) -> str:
    """A phrase that says how code of models is run; empty if no test asks for code. Raises UnmaskError if it may not be run."""
    code = [name for name in names if find_test(name).asked == "code"]
    if not code:
        return ""
    if not run_code:
        raise UnmaskError(f"'{code[0]}' runs code that the model writes, in a sandbox. Allow it with --run-code.")
    return f"code that models write runs {require_sandbox(unsandboxed)}"


def find_test(name: str) -> Test:
    """The test of ability with this name. Raises UnmaskError for an unknown name."""
    if name not in TESTS:
        raise unknown("ability", name, TESTS)
    return TESTS[name]


def _score_items(lm: Any, test: Test, name: str, items: Sequence[Item], run: Callable[[Program], bool]) -> NDArray[np.float64]:
    """Ask the items through the harness, and score the answers."""
    from datasets import Dataset
    from lm_eval import evaluate
    from lm_eval.api.task import ConfigurableTask

    def score(doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, float]:
        item = items[doc["index"]]
        if test.asked == "choice":
            likelihoods = np.array([likelihood for likelihood, _ in results])
            if test.by_length:
                likelihoods = likelihoods / [len(choice.strip()) for choice in item.choices]
            return {"acc": float(likelihoods.argmax() == item.target)}
        completion = str(results[0])
        right = is_right(test, completion, item.target) if item.program is None else run(item.program(completion))
        return {"acc": float(right)}

    dataset = Dataset.from_list([{"index": index, "prompt": item.prompt} for index, item in enumerate(items)])
    config: dict[str, Any] = {
        "task": name,
        "custom_dataset": lambda **_: {"test": dataset},
        "test_split": "test",
        "doc_to_text": lambda doc: doc["prompt"],
        "num_fewshot": 0,  # the prompt has the shots already
        "target_delimiter": "",
        "process_results": score,
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }
    if test.asked == "choice":
        config |= {
            "output_type": "multiple_choice",
            "doc_to_choice": lambda doc: list(items[doc["index"]].choices),
            "doc_to_target": lambda doc: items[doc["index"]].target,
        }
    else:
        room = min(test.max_new_tokens, lm.max_length // 2)
        generation = {"until": list(test.stop), "max_gen_toks": room, "do_sample": False}
        config |= {"output_type": "generate_until", "doc_to_target": lambda _: "", "generation_kwargs": generation}
    results = evaluate(lm, {name: ConfigurableTask(config=config)}, log_samples=True, bootstrap_iters=0)
    samples = sorted(results["samples"][name], key=lambda sample: sample["doc_id"])
    return np.array([float(sample["acc"]) for sample in samples])


def _fetch_code_items(name: str, test: Test, limit: int | None, items: HarnessItems) -> list[Item]:
    """Items of a test of code from the hub: the first `limit`, without learned items."""
    from datasets import load_dataset

    try:
        splits = load_dataset(*test.hub)
    except (OSError, ValueError) as error:
        raise _load_error(name, error) from error
    rows = [row for split in splits.values() for row in split]
    rows.sort(key=lambda row: int(str(row["task_id"]).rpartition("/")[2]))  # "11", "HumanEval/3"
    assert test.read is not None
    return _drop_learned(test.read(Path(name), list(enumerate(rows, start=1)))[:limit], items.learned, name)


def _score_harness_test(lm: Any, test: Test, limit: int | None, items: HarnessItems) -> NDArray[np.float64]:
    """Run a test of the harness on data that it fetches: the first `limit` items of each part, without learned items."""
    from lm_eval import simple_evaluate

    name, metric, filter_name = test.hub
    try:
        results = simple_evaluate(
            lm, tasks=[name], limit=limit, log_samples=True, bootstrap_iters=0, num_fewshot=test.shots,
            confirm_run_unsafe_code=False,
        )  # fmt: skip
    except (OSError, ValueError, ImportError) as error:
        raise _load_error(name, error) from error
    values: list[float] = []
    number = 0
    for part in sorted(results["samples"]):
        samples = [sample for sample in results["samples"][part] if sample.get("filter", "none") == filter_name]
        number += len(samples)
        for sample in sorted(samples, key=lambda sample: sample["doc_id"]):
            if not any(items.learned(key) for key in _keys(sample["doc"])):
                values.append(float(sample[metric]))
    if not number:
        raise UnmaskError(
            f"The harness returned no '{metric}' with the filter '{filter_name}'. Another version of it may work."
        )
    if not values:
        raise UnmaskError(f"{name}: all {number} items are among the learned lessons, so there is nothing to test.")
    return np.array(values)


def _keys(doc: Mapping[str, Any]) -> Iterator[str]:
    """The question of a harness item, in the forms that a lesson made from it can have."""
    for column in _QUESTIONS:
        if isinstance(doc.get(column), str):
            yield doc[column]
            if isinstance(doc.get("choices"), list):
                yield f"{doc[column]} {lettered_options(doc['choices'])}"


def _load_error(name: str, error: Exception) -> UnmaskError:
    return UnmaskError(f"'{name}' cannot be loaded: {cause_of(error)} Give a local file instead: NAME=FILE.")
