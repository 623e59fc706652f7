"""mteb's tasks and benchmarks as what we can run: kind, pinned revision, subsets, splits; metadata only, so it works offline."""

from __future__ import annotations

import hashlib
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from unmask.errors import UnmaskError
from unmask.tasks.kinds import TEXT_KINDS
from unmask.tasks.task import MtebTask

TYPES = {mteb_type: name for name, kind in TEXT_KINDS.items() for mteb_type in kind.mteb_types}
"""Our kinds by mteb's types of task."""
_REFUSED = {
    "BitextMining": "it matches sentences of two languages",
    "Regression": "it predicts a number from a vector",
}


def short(name: str) -> str:
    """A canonical spelling: `MTEB(eng, v2)`, `mteb-eng-v2` and `MTEB eng v2` are one name."""
    return re.sub(r"[^a-z0-9]+", "-", name.casefold()).strip("-")


@cache
def task_names() -> dict[str, str]:
    """mteb's names of its tasks by their short ones."""
    from mteb.get_tasks import _TASKS_REGISTRY

    return {short(name): name for name in _TASKS_REGISTRY}


@cache
def benchmark_names() -> dict[str, str]:
    """mteb's names of its benchmarks with a text task, by their short names and aliases."""
    return {short(alias): benchmark.name for benchmark in _benchmarks() for alias in (benchmark.name, *benchmark.aliases)}


@cache
def _benchmarks() -> tuple[Any, ...]:
    import mteb

    with quiet():
        return tuple(benchmark for benchmark in mteb.get_benchmarks() if any(_is_text(task) for task in benchmark.tasks))


def find(name: str) -> MtebTask:
    """A task by its name in mteb, on its English subsets, or on all of them where none is English alone.

    Raises UnmaskError for a name that mteb does not have, and for a task that is none of our kinds.
    """
    if short(name) not in task_names():
        raise UnmaskError(f"'{name}' is not a task of mteb.")
    return _described(english(task_names()[short(name)]))


def of_benchmark(name: str) -> tuple[list[MtebTask], dict[str, str]]:
    """The tasks of a benchmark as it filters them, and why each of the others cannot be compared, by its name in mteb."""
    tasks: list[MtebTask] = []
    refused: dict[str, str] = {}
    (benchmark,) = (candidate for candidate in _benchmarks() if candidate.name == name)
    for task in benchmark.tasks:
        if reason := _refusal(task):
            refused[task.metadata.name] = reason
        else:
            tasks.append(_described(task))
    return tasks, refused


def described_benchmark(name: str) -> str:
    """Where a benchmark comes from."""
    (benchmark,) = (candidate for candidate in _benchmarks() if candidate.name == name)
    return str(benchmark.reference or "mteb")


def english(name: str) -> Any:
    """mteb's task of this name on its English subsets, or on all where none is English alone (STS22: en, not de-en)."""
    import mteb

    with quiet():
        try:
            return mteb.get_task(name, languages=["eng"], exclusive_language_filter=True)
        except ValueError:
            return mteb.get_task(name)


def _is_text(task: Any) -> bool:
    return list(task.metadata.modalities) == ["text"]


def _refusal(task: Any) -> str | None:
    """Why a task of mteb cannot be compared, or None."""
    kind, name = task.metadata.type, task.metadata.name
    if not _is_text(task):
        return f"'{name}' is a {kind} task of {', '.join(task.metadata.modalities)}"
    if kind not in TYPES:
        return f"'{name}' is a {kind} task" + (f": {_REFUSED[kind]}" if kind in _REFUSED else "")
    return None


def _described(task: Any) -> MtebTask:
    if reason := _refusal(task):
        raise UnmaskError(f"{reason}; the kinds that can be compared are {', '.join(TEXT_KINDS)}.")
    return MtebTask(
        name=task.metadata.name,
        kind=TYPES[task.metadata.type],
        revision=_revision(task),
        metric=task.metadata.main_score,
        splits=tuple(task.eval_splits),
        subsets=tuple(task.hf_subsets),
    )


def _revision(task: Any) -> str:
    """The pinned revision of the data; with the subsets and splits where those are a choice, since another is another score."""
    if task.is_aggregate:
        parts = " ".join(_revision(part) for part in task.metadata.tasks)
        return hashlib.sha256(parts.encode()).hexdigest()[:16]
    revision = str(task.metadata.dataset["revision"])
    if task.metadata.is_multilingual or list(task.eval_splits) != list(task.metadata.eval_splits):
        return f"{revision}:{'+'.join(task.hf_subsets)}:{'+'.join(task.eval_splits)}"
    return revision


@contextmanager
def quiet() -> Iterator[None]:
    """Keep mteb's and datasets' log lines, bars and warnings (of beta tasks, of its 100-step regression) off the terminal."""
    import datasets

    bars, level = datasets.are_progress_bars_disabled(), logging.root.manager.disable
    datasets.disable_progress_bars()
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            _ignore_harmless()
            yield
    finally:
        logging.disable(level)
        if not bars:
            datasets.enable_progress_bars()


def _ignore_harmless() -> None:
    from scipy.stats import ConstantInputWarning
    from sklearn.exceptions import ConvergenceWarning, UndefinedMetricWarning

    for harmless in (ConvergenceWarning, UndefinedMetricWarning, ConstantInputWarning):
        warnings.simplefilter("ignore", harmless)
    warnings.filterwarnings("ignore", message="The task '.*' is (currently in beta|superseded)")
