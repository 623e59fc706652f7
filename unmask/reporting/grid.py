"""Grid: what a results folder holds, design by design and task by task, under names that nothing else in it has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from unmask.designs.design import Design
from unmask.errors import UnmaskError
from unmask.evaluation.results import SENTENCE_TRANSFORMERS, Conditions, Cost, Failure, Result, ResultStore
from unmask.evaluation.seed_means import mean_over_seeds, runs_of
from unmask.evaluation.verdict import System, display_name, model_name, split_word_level

_SETTINGS = ("adapter", "model_revision", "dtype", "max_length", "attn_implementation", "trust_remote_code", "own_prompts")
_REVISION = "model_revision"
Measured = TypeVar("Measured", Result, Failure)
METRIC_NAMES = {
    "cosine_spearman": "Spearman",
    "cosine_ap": "avg. prec.",
    "accuracy": "accuracy",
    "v_measure": "V-measure",
    "ndcg_at_10": "nDCG@10",
    "map_at_1000": "MAP",
    "entity_f1": "entity F1",
    "ami": "AMI",
}


def metric_name(metric: str) -> str:
    """The short name of a metric."""
    return METRIC_NAMES.get(metric, metric)


@dataclass(frozen=True)
class DesignCost:
    """What a design costs over its tasks: tokens per text, and, where passes were timed, seconds, and bytes at the peak."""

    dim: int
    tokens_per_text: float | None
    tokens_per_second: float | None = None
    milliseconds_per_text: float | None = None
    peak_memory: int | None = None


@dataclass(frozen=True)
class Grid:
    """Results by system (model, design) and task; failures of the cells that have none; costs of passes.

    lost: results whose items are gone, which count as not measured; words: results on word-level tasks, one for all designs that
    share attention and layer, separate from those on texts (in a folder that holds nothing else, they are the results).
    """

    store: ResultStore
    results: list[Result]
    failures: list[Failure]
    costs: list[Cost]
    lost: int = 0
    words: list[Result] = field(default_factory=list)

    @cached_property
    def cells(self) -> dict[tuple[System, str], Result]:
        """The result of a system on a task."""
        return {(result.system, result.task): result for result in self.results}

    @cached_property
    def systems(self) -> list[System]:
        """Every system, as first measured."""
        return list(dict.fromkeys(result.system for result in self.results))

    @cached_property
    def tasks(self) -> dict[str, Result]:
        """Tasks, kind by kind, each with one of its results (for its kind, metric and number of items)."""
        first = {result.task: result for result in reversed(self.results)}
        task_names = dict.fromkeys(result.task for result in self.results)
        return {task: first[task] for kind in self.kinds for task in task_names if first[task].kind == kind}

    @cached_property
    def kinds(self) -> list[str]:
        """Kinds of task, as first measured."""
        return list(dict.fromkeys(result.kind for result in self.results))

    @cached_property
    def names(self) -> dict[System, str]:
        """Short, unique display name of each system."""
        short = {system: display_name(system, self.results) for system in self.systems}
        labels = list(short.values())
        return {
            system: name if labels.count(name) == 1 else f"{name} ({system[0]}, {system[1]})" for system, name in short.items()
        }

    @cached_property
    def best(self) -> dict[str, float]:
        """The best score on each task."""
        best: dict[str, float] = {}
        for result in self.results:
            best[result.task] = max(result.main_score, best.get(result.task, result.main_score))
        return best

    @cached_property
    def failed(self) -> dict[tuple[System, str], int]:
        """Index among the failures, for each system that failed on a task."""
        cells = [((failure.model, failure.design), failure.task) for failure in self.failures]
        return {cell: index for index, cell in reversed(list(enumerate(cells)))}

    def of(self, system: System) -> list[Result]:
        """The results of a system."""
        return [result for result in self.results if result.system == system]

    @cached_property
    def design_costs(self) -> dict[System, DesignCost]:
        """What each design costs: tokens as counted with its results; time and memory of the passes that it read."""
        return {system: self._cost(self.of(system)) for system in self.systems}

    def _cost(self, results: Sequence[Result]) -> DesignCost:
        texts, tokens = sum(result.texts for result in results), sum(result.tokens for result in results)
        per_text = tokens / texts if tokens and texts else None
        passes = self._passes(results)
        seconds = sum(run.seconds for run in passes)
        prompts = {run.prompt: [candidate for candidate in passes if candidate.prompt == run.prompt] for run in passes}
        timed = [(sum(run.seconds for run in runs), sum(run.texts for run in runs)) for runs in prompts.values()]
        if not seconds or not all(texts for _, texts in timed):
            return DesignCost(results[0].dim, per_text)
        return DesignCost(
            results[0].dim,
            per_text,
            sum(run.tokens for run in passes) / seconds,
            sum(1000 * spent / texts for spent, texts in timed),
            max((run.peak_memory for run in passes if run.peak_memory), default=None),
        )

    def _passes(self, results: Sequence[Result]) -> list[Cost]:
        """The forward passes that results were made from. Each design is parsed once, not once for each pass."""
        readers: dict[str, list[tuple[Design, Conditions]]] = {}
        for model_run in (run for result in results for run in runs_of(result)):
            if (design := design_of(model_run)) is not None:
                readers.setdefault(model_run.conditions.task, []).append((design, model_run.conditions))
        return [
            run
            for run in self.costs
            if any(
                run.attention == design.attention and run.prompt in design.prompts and run.is_of(conditions)
                for design, conditions in readers.get(run.task, ())
            )
        ]


def require_results(folder: Path) -> None:
    """Raise UnmaskError, without changing the folder, if `unmask compare` did not write it."""
    if not (folder / "results.jsonl").is_file():
        raise UnmaskError(f"'{folder}' holds no results.jsonl: give the folder that `unmask compare -o` wrote.")


def read_grid(folder: Path) -> Grid:
    """The grid of a folder that `unmask compare` wrote. Raises UnmaskError where there is nothing to report."""
    require_results(folder)
    store = ResultStore(folder)
    stored = [result for result in store.results if store.get(result.conditions) is not None]
    if not stored:
        raise UnmaskError(f"'{folder}' holds no result with its items: run `unmask compare` with -o {folder} first.")
    measured = {_cell_and_settings(result) for result in stored}
    failures = {_cell_and_settings(failure): failure for failure in store.failures if failure.applies}
    renamed, failed = _distinguish(stored, [failure for cell, failure in failures.items() if cell not in measured])
    texts, words = split_word_level(mean_over_seeds(renamed, saved=True))
    lost = len(store.results) - len(stored)
    return Grid(store, texts or words, failed, store.costs, lost, words if texts else [])


def design_of(result: Result) -> Design | None:
    """The design of a result; None for a model's own way of embedding, and for a name of another version."""
    if result.design == SENTENCE_TRANSFORMERS:
        return None
    try:
        return Design.parse(result.conditions.design)
    except UnmaskError:
        return None


def _cell_and_settings(result: Result | Failure) -> tuple[object, ...]:
    """What was measured, under which settings. Without the revisions: a failure may be of older weights or data than the result."""
    return (
        result.model,
        result.design,
        result.task,
        *(getattr(result.conditions, name) for name in _SETTINGS if name != _REVISION),
    )


def _distinguish(results: Sequence[Result], failures: Sequence[Failure]) -> tuple[list[Result], list[Failure]]:
    """Results and failures with names that tell apart what was measured under different conditions.

    A folder may hold a model in two dtypes, a design fitted on two corpora, a task whose data have changed. They are other systems and
    other tasks, not a second measurement of the same cell; the condition in which they differ joins the name. A failure under settings
    that no result of its model has is named after them, and renames no result.
    """
    settings: dict[str, dict[str, set[object]]] = {}
    by_design: dict[System, set[str | None]] = {}
    by_task: dict[str, set[str]] = {}
    for result in results:
        for name, values in settings.setdefault(result.model, {name: set() for name in _SETTINGS}).items():
            values.add(getattr(result.conditions, name))
        by_design.setdefault(result.system, set()).add(result.conditions.reference)
        by_task.setdefault(result.task, set()).add(result.conditions.task_revision)
    short = Counter(map(model_name, settings))

    def rename(result: Measured) -> Measured:
        change: dict[str, str] = {}
        of_model = settings.get(result.model, {})
        ignored = _REVISION if isinstance(result, Failure) else ""  # a failure may be of older weights
        if differing := [
            name
            for name, values in of_model.items()
            if len(values | ({getattr(result.conditions, name)} if name != ignored else set())) > 1
        ]:
            model = model_name(result.model) if short[model_name(result.model)] == 1 else result.model
            change["model"] = f"{model} ({', '.join(_setting(result.conditions, name) for name in differing)})"
        if len(by_design.get((result.model, result.design), ())) > 1:
            fit = f" (fit {(result.conditions.reference or 'none')[:7]})"
            change |= {"design": result.design + fit, "label": result.label + fit}
        if len(by_task.get(result.task, ())) > 1:
            change["task"] = f"{result.task} ({result.conditions.task_revision[:7]})"
        return result.model_copy(update=change)

    return [rename(result) for result in results], [rename(failure) for failure in failures]


def _setting(conditions: Conditions, name: str) -> str:
    value = getattr(conditions, name)
    if name == _REVISION:
        return str(value)[:7]
    if name == "adapter":
        return " + ".join(map(model_name, value.split(" + "))) if value else "no adapter"
    if name == "attn_implementation":
        return f"attention: {value or 'chosen by transformers'}"
    if name == "trust_remote_code":
        return f"code: {'its own' if value else 'not recorded'}"
    if name == "own_prompts":
        return f"{'with' if value else 'without'} its prompts"
    return f"{value} tokens" if name == "max_length" else str(value)
