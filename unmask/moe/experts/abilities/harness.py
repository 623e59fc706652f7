"""Harness: runs lm-evaluation-harness on a model in memory, and keeps the result of each item, so that models are compared item by item.

What lm-eval does not do: leave out items that a model has learned, read local files, and run code of models in a sandbox. So for tests of
code, it provides neither data nor metric here.
"""

from __future__ import annotations

import json
import logging
import random
import tempfile
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
from unmask.moe.experts.lessons.lessons import Lesson, lettered

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_QUESTIONS: Final = ("question", "input", "prompt", "text", "problem", "goal", "ctx")  # columns of the harness's own tests


def _nothing(_: str) -> bool:
    return False


@dataclass(frozen=True)
class Fetched:
    """Items that the harness fetches by the name of their test, without learned items."""

    learned: Callable[[str], bool] = _nothing


Items = Sequence[Item] | Fetched | None  # None: fetched, and nothing was learned


def draw_tests(files: Mapping[str, Path | None], limit: int | None, seed: int, lessons: Sequence[Lesson]) -> dict[str, Items]:
    """The items of each test, from its file or fetched by the harness, without learned items. Raises UnmaskError for an unknown test."""
    is_learned = learned_of(lessons)
    for name in files:
        find_test(name)
    return {
        name: draw_items(name, file, limit, seed, is_learned) if file else Fetched(is_learned) for name, file in files.items()
    }


def draw_items(name: str, file: Path, limit: int | None, seed: int, learned: Callable[[str], bool] = _nothing) -> list[Item]:
    """`limit` random items of a local file, drawn with the seed, without learned items. Raises UnmaskError if no item is left."""
    items = [item for item in read_items(name, file) if not learned(item.key)]
    if not items:
        raise UnmaskError(f"{file}: all items are among the learned lessons, so there is nothing to test.")
    if limit is not None and limit < len(items):
        items = random.Random(f"{seed}:{name}").sample(items, limit)
    return items


def learned_of(lessons: Sequence[Lesson]) -> Callable[[str], bool]:
    """A function that says whether an item is among these lessons. It compares the words of the question."""
    questions = {_plain(part) for lesson in lessons for part in (lesson.instruction, lesson.input) if part}
    return lambda key: _plain(key) in questions


def _keys(doc: Mapping[str, Any]) -> Iterator[str]:
    """The question of a harness item, in the forms that a lesson made from it can have."""
    for column in _QUESTIONS:
        if isinstance(doc.get(column), str):
            yield doc[column]
            if isinstance(doc.get("choices"), list):
                yield f"{doc[column]} {lettered(doc['choices'])}"


def _plain(text: str) -> str:
    """The words only, without the tests that a lesson of code contains."""
    return " ".join(text.split("\nIt has to pass:")[0].casefold().split())


def accuracy(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    name: str,
    items: Items = None,
    *,
    run_code: bool = False,
    unsandboxed: bool = False,
    limit: int | None = None,
    batch: int = 8,
) -> NDArray[np.float64]:
    """1 for each item that a model answers correctly, 0 for the others, in order.

    items: from a local file. With None or `Fetched`, the harness fetches its own, the first `limit` of each part. run_code: run code that
    the model writes, in a sandbox. unsandboxed: run it even if no sandbox is available. Raises UnmaskError for an unknown test, for code
    that may not be run, and if the harness is not installed.
    """
    permissions = {"run_code": run_code, "unsandboxed": unsandboxed}
    return accuracies(model, tokenizer, {name: items}, limit=limit, batch=batch, **permissions)[name]


def accuracies(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    requested: Mapping[str, Items],
    *,
    run_code: bool = False,
    unsandboxed: bool = False,
    limit: int | None = None,
    batch: int = 8,
) -> dict[str, NDArray[np.float64]]:
    """`accuracy` for several tests. It raises the same errors, before anything is measured."""
    require_code_to_run(requested, run_code, unsandboxed)
    tests = {name: find_test(name) for name in requested}
    items_of = {
        name: _fetched(name, tests[name], limit, items or Fetched())
        if tests[name].asked == "code" and (items is None or isinstance(items, Fetched))
        else items
        for name, items in requested.items()
    }
    lm, judged = _language_model(model, tokenizer, batch), partial(passes, unsandboxed=unsandboxed)
    return {
        name: _by_name(lm, tests[name], limit, items or Fetched())
        if items is None or isinstance(items, Fetched)
        else _scores(lm, tests[name], name, items, judged)
        for name, items in items_of.items()
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


def _language_model(model: Any, tokenizer: PreTrainedTokenizerBase, batch: int) -> Any:
    require_package("lm_eval")
    from lm_eval.models.huggingface import HFLM

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    # in bf16, the log-likelihoods of two choices can round to the same number
    lm = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=batch, softmax_dtype="float32")
    if not draws_bars():  # progress bars would fill a log
        for kind in ("loglikelihood", "generate_until"):
            setattr(lm, kind, partial(getattr(lm, kind), disable_tqdm=True))
    return lm


def _scores(lm: Any, test: Test, name: str, items: Sequence[Item], judged: Callable[[Program], bool]) -> NDArray[np.float64]:
    """Ask the items through the harness, and score the answers."""
    from datasets import Dataset
    from lm_eval import evaluate
    from lm_eval.api.task import ConfigurableTask

    if test.asked == "choice":

        def score(doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, float]:
            likelihoods = np.array([likelihood for likelihood, _ in results])
            if test.by_length:
                likelihoods = likelihoods / [len(choice.strip()) for choice in items[doc["index"]].choices]
            return {"acc": float(likelihoods.argmax() == items[doc["index"]].target)}

    else:

        def score(doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, float]:
            item, completion = items[doc["index"]], str(results[0])
            if item.program is not None:
                return {"acc": float(judged(item.program(completion)))}
            return {"acc": float(is_right(test, completion, item.target))}

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
        said_until = {"until": list(test.stop), "max_gen_toks": room, "do_sample": False}
        config |= {"output_type": "generate_until", "doc_to_target": lambda _: "", "generation_kwargs": said_until}
    results = evaluate(lm, {name: ConfigurableTask(config=config)}, log_samples=True, bootstrap_iters=0)
    return _values(results, "acc", "none")


def _fetched(name: str, test: Test, limit: int | None, items: Fetched) -> list[Item]:
    """Items of a test of code from the hub: the first `limit`, without learned items."""
    from datasets import load_dataset

    path, part = test.dataset
    try:
        splits = load_dataset(path, part)
    except (OSError, ValueError) as error:
        raise _not_loaded(path, error) from error
    rows = [row for split in splits.values() for row in split]
    rows.sort(key=lambda row: _in_order(str(row["task_id"])))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, f"{name}.jsonl")
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        first_items = read_items(name, file)[:limit]
    fresh = [item for item in first_items if not items.learned(item.key)]
    if not fresh:
        raise _all_learned(len(first_items))
    return fresh


def _in_order(task: str) -> int:
    """The number of a task: 11 for "11", 3 for "HumanEval/3"."""
    return int(task.rpartition("/")[2])


def _by_name(lm: Any, test: Test, limit: int | None, items: Fetched) -> NDArray[np.float64]:
    """Run a test of the harness on data that it fetches: the first `limit` items of each part, without learned items."""
    from lm_eval import simple_evaluate

    name, metric, counted = test.hub
    try:
        results = simple_evaluate(
            lm, tasks=[name], limit=limit, log_samples=True, bootstrap_iters=0, num_fewshot=test.shots,
            confirm_run_unsafe_code=False,
        )  # fmt: skip
    except (OSError, ValueError, ImportError) as error:
        raise _not_loaded(name, error) from error
    return _values(results, metric, counted, items)


def _all_learned(number: int) -> UnmaskError:
    return UnmaskError(
        f"All {number} items that the harness fetched are among the learned lessons, so there is nothing to test."
    )


def _not_loaded(name: str, error: Exception) -> UnmaskError:
    return UnmaskError(f"The harness cannot load '{name}': {cause_of(error)} Give a local file instead: NAME=FILE.")


def _values(results: Any, metric: str, counted: str, items: Fetched = Fetched()) -> NDArray[np.float64]:
    """The metric of each item, under one of the task's filters, without learned items."""
    values: list[float] = []
    left_out = 0
    for name in sorted(results["samples"]):
        samples = [sample for sample in results["samples"][name] if sample.get("filter", "none") == counted]
        fresh = [sample for sample in samples if not any(items.learned(key) for key in _keys(sample["doc"]))]
        left_out += len(samples) - len(fresh)
        values += [float(sample[metric]) for sample in sorted(fresh, key=lambda sample: sample["doc_id"])]
    if left_out and not values:
        raise _all_learned(left_out)
    if not values:
        raise UnmaskError(f"The harness returned no '{metric}' with the filter '{counted}'. Another version of it may work.")
    return np.array(values)
