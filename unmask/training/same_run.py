"""A run that goes on: its tasks, its rows, its base model, its teacher and its precision have to be those with which it began.

A finished run is not trained again. Its tasks and its files have to be the same, too: what it says of its rows would be wrong.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from unmask.errors import UnmaskError
from unmask.io.files import remove
from unmask.io.paths import expanded
from unmask.models.identity import identity_of
from unmask.models.source import Source, lasting_name
from unmask.tasks.kinds.kind import Forms
from unmask.training import processes
from unmask.training.recipe import Recipe
from unmask.training.records import BASE, DATA, BaseRecord, DataRecord, DataSetRecord, ModelRecord, StageData, TeacherRecord
from unmask.training.run_folder import digest, is_begun
from unmask.training.sources import digest_of_source
from unmask.training.stage_run import is_finished, stage_folder
from unmask.training.stages import STAGES
from unmask.training.trainee import training_precision

Scored = tuple[Sequence[Forms], Sequence[tuple[int, int]]]
"""Texts of a task, and the places of those that it compares."""


def hash_of_texts(scored: Scored) -> str:
    """A hash of what is searched for of a task, 16 hex digits."""
    return hashlib.sha256(repr([list(part) for part in scored]).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def require_same_tasks(folder: Path, tasks: Mapping[str, Scored]) -> None:
    """Raise UnmaskError if the run began with other held-out tasks, or with other texts of one of them."""
    record = DataRecord.read(folder / DATA) if is_begun(folder) else None
    sets = [data for stage in record.stages.values() for data in stage.values()] if record else []
    before, now = {task for data in sets for task in data.leaks}, set(tasks)
    if sets and before != now:
        raise UnmaskError(
            f"'{folder}' holds a run whose rows were checked for leaks into {_listed(before)}, and now they are checked for "
            f"leaks into {_listed(now)}: give another folder, or use --keep-leaks, or leave it out, as before."
        )
    for task, scored in tasks.items() if sets else ():
        if {data.leaks[task].texts for data in sets if task in data.leaks} - {None, hash_of_texts(scored)}:
            raise UnmaskError(
                f"The texts of the task '{task}' have changed since the rows of the run in '{folder}' were checked for them, so it may "
                "have learned some. Give another folder, or bring the old texts back."
            )


def require_same_files(folder: Path, recipe: Recipe, root: Path) -> None:
    """Raise UnmaskError if a file of rows has changed since the run in a folder began. Files that are gone do not matter.

    Older records do not have the hash of their files. Rows of the hub and of this package have none.
    """
    record = DataRecord.read(folder / DATA)
    known = {name: data.files for stage in record.stages.values() for name, data in stage.items()} if record else {}
    for name, before in known.items():
        source = recipe.data[name]
        if before and (root / expanded(source.path)).exists() and before != digest_of_source(source.path, source.split, root):
            raise UnmaskError(
                f"The file of the data set '{name}' has changed since the run in '{folder}' began, so its record is not of this data: "
                "give another folder."
            )


def _listed(tasks: Collection[str]) -> str:
    return ", ".join(sorted(tasks)) or "no task"


def require_same_data(folder: Path, seen: dict[str, StageData], recipe: Recipe) -> None:
    """Raise UnmaskError if steps were made with other rows, because the run could not continue with the same schedule.

    Files that changed in other rows than these do not matter, and older records do not have their hash. If the record of the rows is
    damaged, nothing says which rows the steps saw, so the stages begin anew.
    """
    file = folder / DATA
    record = DataRecord(stages=seen, recipe=digest(recipe))
    before = DataRecord.read(file) if is_begun(folder) else record
    changed = [
        f"{stage}: {name}"
        for stage, sets in seen.items()
        for name in sets
        if before and _rows(before.stages[stage].get(name)) != _rows(sets[name])
    ]
    if changed:
        raise UnmaskError(f"The data changed since the run in '{folder}' began ({', '.join(changed)}): give another folder.")
    processes.wait()
    if processes.is_first():
        if before is None:
            warnings.warn(f"Nothing says which rows the stages in '{folder}' saw, so they are begun anew.", stacklevel=2)
            remove(folder / "stages")
        record.write(file)
    processes.wait()


def _rows(data: DataSetRecord | None) -> DataSetRecord | None:
    """What a record says of the rows alone."""
    if data is None:
        return None
    counts = {task: leaks.model_copy(update={"texts": None}) for task, leaks in data.leaks.items()}
    return data.model_copy(update={"files": None, "leaks": counts})


def require_same_base(recipe: Recipe, folder: Path) -> BaseRecord:
    """The base model and the teacher of a run by their content, and its precision.

    Raises UnmaskError if one of them has changed since the run began.
    """
    file = folder / BASE
    before = BaseRecord.read(file) if is_begun(folder) else None
    base = require_unchanged("base model", recipe.model, before, folder)
    record = BaseRecord(
        model=base.model,
        weights=base.weights,
        teacher=_teacher(recipe, folder, before.teacher if before else None),
        precision=_same_precision(recipe, folder, before),
    )
    processes.wait()
    if processes.is_first():
        record.write(file)
    return record


def _same_precision(recipe: Recipe, folder: Path, before: BaseRecord | None) -> str | None:
    """The precision of a run. None if it began under a version that did not record it."""
    now = training_precision(recipe)
    if before is None:
        return now
    if before.precision not in (None, now):
        raise UnmaskError(
            f"The run in '{folder}' began in {before.precision}, and on this machine dtype = \"{recipe.dtype}\" is {now}: continue it "
            f"where it is {before.precision}, or give another folder."
        )
    return before.precision


def _teacher(recipe: Recipe, folder: Path, before: TeacherRecord | None) -> TeacherRecord | None:
    """The teacher of a run. It is not asked for again when the stage that learns from it is done."""
    for number, name in enumerate(recipe.stages, start=1):
        teacher = STAGES[name].teacher(recipe.stage(name))
        if teacher is not None:
            if is_finished(stage_folder(folder, number, name)):
                return before
            now = require_unchanged("teacher", teacher.model, before, folder)
            if before is not None and before.design != teacher.design:
                raise UnmaskError(
                    f"The run in '{folder}' began with a teacher under '{before.design}', and it is under '{teacher.design}' now. Bring "
                    "the old prompts back, or give another folder."
                )
            return TeacherRecord(model=now.model, weights=now.weights, design=teacher.design)
    return None


def require_unchanged(what: str, model: str, before: ModelRecord | None, folder: Path) -> ModelRecord:
    """A model as it is now. Raises UnmaskError if it was another one when the run began."""
    now = ModelRecord(model=lasting_name(model), weights=identity_of(Source(model)).revision)
    if before is not None and before.weights != now.weights:
        raise UnmaskError(
            f"The {what} '{model}' has changed since the run in '{folder}' began: its weights were {before.weights} "
            f"and are {now.weights} now. Bring the old {what.removesuffix(' model')} back, or give another folder."
        )
    return now
