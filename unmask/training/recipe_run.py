"""A recipe as `unmask train` runs it: rows of its tasks are left out, its tasks choose the checkpoint, the result is compared with its
untrained base, and a card tells how it was made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from unmask.errors import UnmaskError, require_package
from unmask.evaluation.embedder_scores import scorable, score
from unmask.evaluation.training_gain import revisions_of, training_gain
from unmask.io.terminal import say
from unmask.models.identity import identity_of
from unmask.models.source import Source
from unmask.runs import runs
from unmask.tasks.find import item_file, resolve_tasks, specs_below
from unmask.tasks.task import LocalTask, Task
from unmask.training import processes
from unmask.training.card import write_card
from unmask.training.recipe import Evaluation, Recipe, without_effect
from unmask.training.records import COMPARED, TrainingResult, TrainingRun
from unmask.training.run import SILENT, Listener, Scored, train

if TYPE_CHECKING:
    from unmask.embedder import Embedder


def run_recipe(
    recipe: Recipe,
    folder: Path,
    root: Path,
    listener: Listener = SILENT,
    *,
    keep_leaks: bool = False,
    held_out: Sequence[Task] = (),
) -> list[TrainingRun]:
    """Train by a recipe. root: where paths of data and tasks start. held_out: more tasks whose texts are left out of the training rows.

    keep_leaks: leave nothing out. Raises UnmaskError.
    """
    for sentence in without_effect(recipe):
        say(sentence)
    evaluation = recipe.evaluation
    _require_other_files(evaluation, root)
    tasks, compared = (scorable(_tasks(names, root)) for names in (evaluation.tasks, evaluation.compared))
    _require_other_tasks(tasks, compared)
    if compared:
        require_package("mteb")
    searched = _texts([*tasks, *compared, *_searchable(_tasks(evaluation.held_out, root)), *held_out])
    left_out = {} if keep_leaks else searched

    def scored(embedder: Embedder) -> dict[str, float]:
        return score(embedder, tasks)

    trained = train(recipe, folder, root, scored if tasks else None, listener, left_out)
    if processes.is_first():
        for run in trained:
            if keep_leaks and searched:
                _note_leaks(run)
            write_card(recipe, run)
            if compared and _compare(recipe, run, compared, folder, len(trained)):
                write_card(recipe, run)
    return trained


def _compare(recipe: Recipe, run: TrainingRun, tasks: Sequence[Task], folder: Path, count: int) -> bool:
    """Compare a trained embedder with its untrained base, and record it. Whether that was still to be done. count: runs of the recipe."""
    record = runs.read_result(run.folder, TrainingResult)
    if record is None or (record.gain is not None and record.gain.is_of(tasks)):
        return False
    if (weights := identity_of(Source(recipe.model)).revision) != record.base.weights:
        raise UnmaskError(
            f"The base model '{recipe.model}' has changed since the run in '{run.folder}': its weights were {record.base.weights} and are "
            f"{weights} now. Restore it, or choose another folder."
        )
    say(f"{run.design.name}, seed {run.seed}: comparing with the untrained base")
    base = Source(recipe.model, dtype=recipe.dtype)
    gain = training_gain(Source(str(run.result)), run.design, base, tasks, recipe.max_length, folder / COMPARED)
    unsearched = tuple(task.name for task in tasks if not isinstance(task, LocalTask))
    gain = gain.model_copy(
        update={"unsearched": unsearched, "kept_leaks": record.kept_leaks, "runs": count, "revisions": revisions_of(tasks)}
    )
    runs.amend_result(run.folder, record.model_copy(update={"gain": gain}))
    return True


def _note_leaks(run: TrainingRun) -> None:
    """Record that rows with texts of tasks were not left out."""
    record = runs.read_result(run.folder, TrainingResult)
    if record is not None:
        runs.amend_result(run.folder, record.model_copy(update={"kept_leaks": True}))


def _require_other_files(evaluation: Evaluation, root: Path) -> None:
    """Raise UnmaskError if a task to compare on has the data of a task that chooses the checkpoint, even if it is another sample."""
    chosen_by = {item_file(spec) for spec in specs_below(root, evaluation.tasks)}
    for name in evaluation.compared:
        if any(item_file(spec) in chosen_by for spec in specs_below(root, [name])):
            raise _chosen_by(name)


def _require_other_tasks(tasks: Sequence[Task], compared: Sequence[Task]) -> None:
    """The same for tasks of mteb, which have no file, and which may be part of a benchmark or be spelled in two ways."""
    chosen_by = {task.name for task in tasks if not isinstance(task, LocalTask)}
    for task in compared:
        if not isinstance(task, LocalTask) and task.name in chosen_by:
            raise _chosen_by(task.name)


def _chosen_by(name: str) -> UnmaskError:
    return UnmaskError(
        f"evaluation.compared names '{name}', and evaluation.tasks chooses the checkpoint by the same data, so the comparison "
        "would flatter the trained model: name it in one of the two only."
    )


def _tasks(names: Sequence[str], root: Path) -> list[Task]:
    """Tasks by name. The folder of a task may lie where the data lie."""
    return resolve_tasks(specs_below(root, names)) if names else []


def _searchable(tasks: Sequence[Task]) -> list[Task]:
    """The same tasks. Raises UnmaskError for one whose texts cannot be searched for, because nothing would be held out."""
    for task in tasks:
        if not isinstance(task, LocalTask):
            raise UnmaskError(
                f"Leaks are looked for in task folders, and '{task.name}', which evaluation.held_out names, is a task of mteb."
            )
    return list(tasks)


def _texts(tasks: Sequence[Task]) -> Mapping[str, Scored]:
    """What is searched for, by task. Raises UnmaskError for two tasks of one name: the texts of one would not be searched for."""
    task_by_name: dict[str, LocalTask] = {}
    for task in tasks:
        if isinstance(task, LocalTask) and task_by_name.setdefault(task.name, task).revision != task.revision:
            raise UnmaskError(
                f"Two tasks are called '{task.name}', and hold other data. Rename the folder of one, or give one a name in its task.toml."
            )
    return {name: task.texts_and_pairs for name, task in task_by_name.items()}
