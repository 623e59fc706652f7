"""A recipe as `unmask train` runs it: rows of its tasks are left out, its tasks choose the checkpoint, and a card tells how it was made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from unmask.evaluation.embedder_scores import scorable, score
from unmask.tasks.find import resolve_tasks
from unmask.tasks.task import LocalTask, Task
from unmask.training import processes
from unmask.training.card import write_card
from unmask.training.recipe import Recipe
from unmask.training.run import SILENT, Listener, Run, Scored, train

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
) -> list[Run]:
    """Train by a recipe. root: where paths of data and tasks start. held_out: more tasks whose texts are left out of the training rows.

    keep_leaks: leave nothing out. Raises UnmaskError.
    """
    tasks = scorable(_tasks(recipe.evaluation.tasks, root))
    left_out = {} if keep_leaks else _texts([*tasks, *_tasks(recipe.evaluation.held_out, root), *held_out])

    def scored(embedder: Embedder) -> dict[str, float]:
        return score(embedder, tasks)

    done = train(recipe, folder, root, scored if tasks else None, listener, left_out)
    if processes.is_first():
        for run in done:
            write_card(recipe, run)
    return done


def _tasks(names: Sequence[str], root: Path) -> list[Task]:
    """Tasks by name. The folder of a task may lie where the data lie."""
    if not names:
        return []
    return resolve_tasks([str(root / name) if (root / name.partition("#")[0]).exists() else name for name in names])


def _texts(tasks: Sequence[Task]) -> Mapping[str, Scored]:
    return {task.name: task.texts_and_pairs for task in tasks if isinstance(task, LocalTask)}
