"""Means over seeds: models that were trained with one recipe and design, and differ only in the seed, count as one.

A run of `unmask train` is a folder with `run.json` and `model`. Any other model counts on its own. A result has a note on the training of
its model, because the folder may be moved or trained again later.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
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


def training_note(model: str) -> dict[str, Any]:
    """What the provenance of a new result says of the training of its model: the seed, and a hash of everything else that decides on its
    weights. Empty if it is not a run of `unmask train`, or if the record of the run is damaged."""
    folder = expanded(model).parent
    if Path(model).name != "model" or not (folder / "run.json").is_file():
        return {}
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
        weights = [
            base["weights"],
            (base["teacher"] or {}).get("weights"),
            *([guide["weights"]] if (guide := base.get("guide")) else []),
        ]
        otherwise = json.dumps([same, record["design"], rows, weights], sort_keys=True)
        return {TRAINING: {"seed": int(record["seed"]), "otherwise": hashlib.sha256(otherwise.encode()).hexdigest()[:16]}}
    except (Damaged, KeyError, TypeError, AttributeError, ValueError):
        return {}


def mean_over_seeds(results: Sequence[Result], *, saved: bool = False) -> list[Result]:
    """The results, where runs that differ only in their seed are joined to one `SeedMean` for each design and task.

    A task on which one of the seeds has no score is left out, and counts as not scored. Other results are unchanged, including those from
    a run with a single seed (see `one_seed`). Raises UnmaskError for the same seed twice.

    saved: the results come from a folder, which several commands may have filled. Runs are then joined only if all of them were scored
    on the same tasks, and if no seed is there twice.
    """
    tasks: dict[System, set[str]] = {}
    for result in results:
        tasks.setdefault(result.system, set()).add(result.task)
    first_runs: dict[System, list[System]] = {}
    joined: set[System] = set()
    for group in _groups(results):
        systems = [system for _, system in group]
        repeated = next((pair for pair in pairwise(group) if pair[0][0] == pair[1][0]), None)
        if len(group) == 1 or (saved and (repeated or any(tasks[system] != tasks[systems[0]] for system in systems))):
            continue
        if repeated:
            (seed, (model, _)), (_, (second, _)) = repeated
            raise UnmaskError(f"'{model}' and '{second}' are the same training with seed {seed}. Give one of them.")
        first_runs[systems[0]] = systems
        joined |= set(systems)
    by_cell = {(result.system, result.task): result for result in results}
    means: list[Result] = []
    for result in results:
        runs = [by_cell.get((system, result.task)) for system in first_runs.get(result.system, ())]
        if result.system not in joined:
            means.append(result)
        elif runs and all(runs):
            means.append(_seed_mean([run for run in runs if run]))
    return means


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


System = tuple[str, str]


def _groups(results: Sequence[Result]) -> list[list[tuple[int, System]]]:
    """Trained systems that differ only in their seed, each after its seed, in the order of seeds."""
    groups: dict[tuple[str, str], dict[System, int]] = {}
    for result in results:
        # a name that a report made up stands for other conditions, such as another precision
        if (note := result.provenance.get(TRAINING)) and result.model == result.conditions.model:
            groups.setdefault((note["otherwise"], result.design), {})[result.system] = int(note["seed"])
    return [sorted((seed, system) for system, seed in group.items()) for group in groups.values()]


def _seed_mean(runs: Sequence[Result]) -> SeedMean:
    first = runs[0]
    scores = [run.main_score for run in runs]
    shared = [name for name in first.scores if all(name in run.scores for run in runs)]
    fields = {name: getattr(first, name) for name in Result.model_fields}
    # the common folder of the runs without `.seedN`, or all of their folders
    folders = [Path(run.model).parent for run in runs]
    names = dict.fromkeys(str(folder.with_name(folder.name.rpartition(".seed")[0] or folder.name)) for folder in folders)
    first_name, *other_names = names
    model = "+".join([first_name, *(Path(name).name for name in other_names)]) + f" ({len(folders)} seeds)"
    return SeedMean(
        **fields
        | {
            "model": model,
            "conditions": first.conditions.model_copy(update={"model": model}),
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
