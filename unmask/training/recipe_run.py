"""A recipe as `unmask train` runs it: rows of its tasks are left out, its tasks choose the checkpoint, the result is compared with its
untrained base, and a model card says how it was made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from unmask.errors import UnmaskError, require_package
from unmask.evaluation.embedder_scores import require_scorable, score
from unmask.evaluation.training_gain import revisions_of, training_gain
from unmask.io.terminal import say
from unmask.models.identity import identity_of
from unmask.models.source import Source
from unmask.runs import runs
from unmask.tasks.find import item_file, resolve_tasks, specs_below
from unmask.tasks.task import LocalTask, Task
from unmask.training import processes
from unmask.training.card import write_card
from unmask.training.leakage import TaskTexts
from unmask.training.recipe import Recipe, ineffective_settings
from unmask.training.records import COMPARED, TrainingJob, TrainingResult
from unmask.training.train import SILENT, Listener, train

if TYPE_CHECKING:
    from unmask.embedder import Embedder


def run_recipe(
    recipe: Recipe,
    folder: Path,
    root: Path,
    listener: Listener = SILENT,
    *,
    keep_leaks: bool = False,
    excluded_tasks: Sequence[Task] = (),
) -> list[TrainingJob]:
    """Train by a recipe.

    Args:
        root: Folder that the paths of data and tasks are relative to.
        keep_leaks: Train also on rows with texts of tasks.
        excluded_tasks: More tasks whose texts are left out of the training rows.

    Raises:
        UnmaskError: As `train`, and for tasks that cannot serve.
    """
    for sentence in ineffective_settings(recipe):
        say(sentence)
    evaluation = recipe.evaluation
    tasks, compared = _resolve_below(evaluation.tasks, root), _resolve_below(evaluation.compared, root)
    require_scorable([*tasks, *compared])
    # Local tasks by their files, since another sample is the same data; tasks of mteb, which may be part of a benchmark, by their names
    choosing = {item_file(spec) for spec in specs_below(root, evaluation.tasks)} | _mteb_names(tasks)
    for name in evaluation.compared:
        if choosing & ({item_file(spec) for spec in specs_below(root, [name])} | _mteb_names(_resolve_below([name], root))):
            raise UnmaskError(
                f"evaluation.compared names '{name}', and evaluation.tasks chooses the checkpoint by the same data, so the comparison "
                "would flatter the trained model: name it in one of the two only."
            )
    if compared:
        require_package("mteb")
    unsearchable = [task.name for task in _resolve_below(evaluation.held_out, root) if not isinstance(task, LocalTask)]
    if unsearchable:
        raise UnmaskError(
            f"Leaks are searched in task folders, and '{unsearchable[0]}', which evaluation.held_out names, is a task of mteb."
        )
    searched = _texts_to_search([*tasks, *compared, *_resolve_below(evaluation.held_out, root), *excluded_tasks])

    def score_tasks(embedder: Embedder) -> dict[str, float]:
        return score(embedder, tasks)

    jobs = train(recipe, folder, root, score_tasks if tasks else None, listener, {} if keep_leaks else searched)
    for job in jobs if processes.is_first() else ():
        record = runs.read_result(job.folder, TrainingResult)
        assert record is not None
        if keep_leaks and searched:
            record = record.model_copy(update={"kept_leaks": True})
            runs.amend_result(job.folder, record)
        write_card(recipe, job)
        if compared and not (record.gain is not None and record.gain.is_of(compared)):
            _record_gain(recipe, job, record, compared, folder, models=len(jobs))
            write_card(recipe, job)
    return jobs


def _record_gain(
    recipe: Recipe, job: TrainingJob, record: TrainingResult, tasks: Sequence[Task], folder: Path, *, models: int
) -> None:
    """Compare a trained embedder with its untrained base, and record the gain. models: trained by the recipe."""
    if (weights := identity_of(Source(recipe.model)).revision) != record.base.weights:
        raise UnmaskError(
            f"The base model '{recipe.model}' has changed since the run in '{job.folder}': its weights were {record.base.weights} and are "
            f"{weights} now. Restore it, or choose another folder."
        )
    say(f"{job.label}: comparing with the untrained base")
    base = Source(recipe.model, dtype=recipe.dtype)
    gain = training_gain(Source(str(job.result)), job.design, base, tasks, recipe.max_length, folder / COMPARED)
    context = {
        "unsearched": tuple(task.name for task in tasks if not isinstance(task, LocalTask)),
        "kept_leaks": record.kept_leaks,
        "runs": models,
        "revisions": revisions_of(tasks),
    }
    # write_card may have amended the result
    latest = runs.read_result(job.folder, TrainingResult) or record
    runs.amend_result(job.folder, latest.model_copy(update={"gain": gain.model_copy(update=context)}))


def _mteb_names(tasks: Sequence[Task]) -> set[str]:
    return {task.name for task in tasks if not isinstance(task, LocalTask)}


def _resolve_below(names: Sequence[str], root: Path) -> list[Task]:
    """Tasks by name. root: task folders may be below it."""
    return resolve_tasks(specs_below(root, names)) if names else []


def _texts_to_search(tasks: Sequence[Task]) -> Mapping[str, TaskTexts]:
    """Texts to search for, by task. Raises UnmaskError for two tasks of one name: the texts of one would not be searched for."""
    task_by_name: dict[str, LocalTask] = {}
    for task in tasks:
        if isinstance(task, LocalTask) and task_by_name.setdefault(task.name, task).revision != task.revision:
            raise UnmaskError(
                f"Two tasks are called '{task.name}', and hold other data. Rename the folder of one, or give one a name in its task.toml."
            )
    return {name: task.texts_and_pairs for name, task in task_by_name.items()}
