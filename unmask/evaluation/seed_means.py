"""Means over seeds: models that were trained with one recipe and design, and differ only in the seed, count as one.

A run of `unmask train` is a folder with `run.json` and `model`. Any other model counts on its own. A result keeps a note of the training
of its model, because the folder may be moved or trained again later.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from unmask.errors import UnmaskError
from unmask.evaluation.results import Result
from unmask.io.paths import expanded
from unmask.io.seals import Damaged, open_line

DEVIATION = "deviation over seeds"
"""The key of the standard deviation of the main score over seeds, among the scores of a `SeedMean`."""


TRAINING = "training"
"""The key of the note on the training of a model, in the provenance of a result."""


class SeedMean(Result):
    """Results of one design on one task under several seeds of its training, joined: scores are means over the seeds.

    runs: the results, in the order of their seeds. `scores` also has the `DEVIATION` of the main score. There is no interval, because an
    interval over the items of one run says nothing about another run.
    """

    runs: tuple[Result, ...] = Field(exclude=True)


@dataclass(frozen=True)
class Training:
    """How a run was trained: its seed, and a hash of everything else that decides on its weights."""

    seed: int
    otherwise: str


def training(model: str) -> Training | None:
    """The training of a model; None if it is not a run of `unmask train`. Raises UnmaskError for a broken record."""
    folder = expanded(model).parent
    if Path(model).name != "model" or not (folder / "run.json").is_file():
        return None
    try:
        content = open_line((folder / "run.json").read_bytes())
        record = content["result"]
        # a seed draws its rows and negatives, so their hash differs between equivalent runs; files and the rows kept out do not
        rows = {
            stage: {name: [sorted(data["leaks"]), data.get("files")] for name, data in sets.items()}
            for stage, sets in record["data"].items()
        }
        same = {key: value for key, value in content["settings"]["recipe"].items() if key not in ("designs", "seeds")}
        base = record["base"]
        weights = [base["weights"], (base["teacher"] or {}).get("weights")]
        otherwise = json.dumps([same, record["design"], rows, weights], sort_keys=True)
        return Training(int(record["seed"]), hashlib.sha256(otherwise.encode()).hexdigest()[:16])
    except (Damaged, KeyError, TypeError, AttributeError, ValueError) as error:
        raise UnmaskError(f"{folder / 'run.json'} is not what `unmask train` wrote: {error!r}.") from error


def training_note(model: str) -> dict[str, Any]:
    """What the provenance of a new result says of the training of its model. Empty if there is nothing to say.

    A broken record does not stop the scoring: `mean_over_seeds` reports it.
    """
    try:
        trained = training(model)
    except UnmaskError:
        return {}
    return {TRAINING: asdict(trained)} if trained else {}


def _noted(result: Result) -> Training | None:
    """The training that a result notes. None for a result of an older version, and for a name that a report made up."""
    note = result.provenance.get(TRAINING)
    if not note or result.model != result.conditions.model:
        return None
    return Training(int(note["seed"]), str(note["otherwise"]))


def mean_over_seeds(results: Sequence[Result], *, kept: bool = False) -> list[Result]:
    """The results, where runs that differ only in their seed are joined to one `SeedMean` for each design and task.

    A task on which one of the seeds has no score is left out, and counts as not scored. Other results are unchanged, including those from
    a run with a single seed (see `one_seed`). Raises UnmaskError for the same seed twice.

    kept: the results come from a folder, which several commands may have filled. Runs are then joined only if all of them were scored
    on the same tasks, and if no seed is there twice.
    """
    groups = [group for group in _groups(results) if len(group) > 1]
    if kept:
        tasks = _tasks(results)
        groups = [group for group in groups if _twice(group) is None and len({tasks[system] for _, system in group}) == 1]
    for seeds in groups:
        if same := _twice(seeds):
            seed, model, second = same
            raise UnmaskError(f"'{model}' and '{second}' are the same training with seed {seed}. Give one of them.")
    joined = {system: seeds for seeds in groups for _, system in seeds}
    joined_results: list[Result] = []
    for result in results:
        group = joined.get(result.system)
        if group is None:
            joined_results.append(result)
        elif result.system == group[0][1]:
            runs = [run for _, system in group for run in results if (run.system, run.task) == (system, result.task)]
            if len(runs) == len(group):
                joined_results.append(_mean(runs))
    return joined_results


def one_seed(results: Sequence[Result]) -> str | None:
    """A warning about trained designs with a single seed; None if there are none."""
    alone = dict.fromkeys(str(Path(group[0][1][0]).parent) for group in _groups(results) if len(group) == 1)
    if not alone:
        return None
    return (
        f"One seed of {', '.join(alone)}: tests are about these embedders, not about their designs, because one seed does not show how "
        "much trainings differ. Train with 3 seeds or more, and give every run with -m."
    )


def seed_scores(results: Sequence[Result]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Main scores of one system on its tasks, as `seed_test` takes them: (seed, task) for means over seeds, else (task,)."""
    if not any(isinstance(result, SeedMean) for result in results):
        return np.array([result.main_score for result in results])
    return np.array([[run.main_score for run in runs_of(result)] for result in results]).T


def runs_of(result: Result) -> tuple[Result, ...]:
    """The measurements behind a result: one for each seed, or itself."""
    return result.runs if isinstance(result, SeedMean) else (result,)


Group = list[tuple[int, tuple[str, str]]]  # seeds and systems


def _groups(results: Sequence[Result]) -> list[Group]:
    """Trained systems that differ only in their seed, grouped, in the order of their seeds."""
    noted = {result.model: note for result in results if (note := _noted(result))}
    trainings = {model: noted.get(model) or training(model) for model in dict.fromkeys(result.model for result in results)}
    groups: dict[tuple[str, str], Group] = {}
    for model, design in dict.fromkeys(result.system for result in results):
        trained = trainings[model]
        if trained is not None:
            groups.setdefault((trained.otherwise, design), []).append((trained.seed, (model, design)))
    return [sorted(group) for group in groups.values()]


def _twice(group: Group) -> tuple[int, str, str] | None:
    """A seed that is there twice, with its two models."""
    return next(((seed, first[0], second[0]) for (seed, first), (after, second) in pairwise(group) if seed == after), None)


def _tasks(results: Sequence[Result]) -> dict[tuple[str, str], frozenset[str]]:
    """The tasks of each system."""
    by_system: dict[tuple[str, str], set[str]] = {}
    for result in results:
        by_system.setdefault(result.system, set()).add(result.task)
    return {system: frozenset(tasks) for system, tasks in by_system.items()}


def _mean(runs: Sequence[Result]) -> SeedMean:
    first = runs[0]
    scores = [run.main_score for run in runs]
    shared = [name for name in first.scores if all(name in run.scores for run in runs)]
    fields = {name: getattr(first, name) for name in Result.model_fields}
    return SeedMean(
        **fields
        | {
            "model": (name := _name([Path(run.model).parent for run in runs])),
            "conditions": first.conditions.model_copy(update={"model": name}),
            "main_score": float(np.mean(scores)),
            "interval": None,
            "scores": {name: float(np.mean([run.scores[name] for run in runs])) for name in shared}
            | {DEVIATION: float(np.std(scores, ddof=1))},
            "texts": sum(run.texts for run in runs),
            "tokens": sum(run.tokens for run in runs),
            "truncated": sum(run.truncated for run in runs),
            "provenance": {name: value for name, value in first.provenance.items() if name != TRAINING}
            | {"runs": [run.model for run in runs]},
            "runs": tuple(runs),
        }
    )


def _name(folders: Sequence[Path]) -> str:
    """The name of several runs: their common folder without `.seedN`, or all of their folders."""
    names = dict.fromkeys(str(folder.with_name(folder.name.rpartition(".seed")[0] or folder.name)) for folder in folders)
    first, *rest = names
    return "+".join([first, *(Path(name).name for name in rest)]) + f" ({len(folders)} seeds)"
