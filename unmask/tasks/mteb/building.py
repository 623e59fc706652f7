"""Local folders as tasks of mteb."""

from __future__ import annotations

from typing import Any, Final

from unmask.tasks.kinds import TEXT_KINDS
from unmask.tasks.mteb.tables import SPLIT
from unmask.tasks.task import LocalTask

TYPES: Final[dict[str, str]] = {mteb_type: name for name, kind in TEXT_KINDS.items() for mteb_type in kind.mteb_types}
"""mteb's types of task, by our kinds."""
SUBSET: Final = "default"


def build(task: LocalTask) -> Any:
    """An mteb task over the rows of a local one."""
    kind = TEXT_KINDS[task.kind]
    attributes: dict[str, Any] = {"metadata": _metadata(task), **kind.mteb_settings(task.data)}
    built = type("LocalMtebTask", (kind.mteb_class(),), attributes)()
    built.dataset = {SUBSET: kind.mteb_data(task.data)}
    built.data_loaded = True
    return built


def _metadata(task: LocalTask) -> Any:
    from mteb.abstasks.task_metadata import TaskMetadata

    kind = TEXT_KINDS[task.kind]
    return TaskMetadata(
        name=task.name.replace("/", "-"),  # mteb makes it a file's name
        description="a local folder",
        dataset={"path": f"local/{task.name}", "revision": task.revision},
        type=kind.mteb_types[0],
        eval_splits=[SPLIT],
        eval_langs=["eng-Latn"],
        main_score=kind.main_score,
    )
