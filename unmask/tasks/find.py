"""Finding tasks: a local folder of labelled data, or the name of a task or task set in mteb.

A folder's kind is inferred from its files and columns, stated in its `task.toml`, or stated behind its path (`FOLDER:kind`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from unmask.errors import UnmaskError, unknown
from unmask.io.paths import expanded
from unmask.io.terminal import say
from unmask.tasks.folder import TaskFolder, open_folder
from unmask.tasks.kinds import KINDS
from unmask.tasks.kinds.kind import TaskKind
from unmask.tasks.task import LocalTask, MtebTask, Task


def find_task(spec: str) -> Task:
    """The task of a folder (`FOLDER`, `FOLDER:kind`, `FOLDER#limit`), of one split of it (`FOLDER/dev.jsonl`), or of an mteb name.

    limit: at most this number of items, sampled by the task's seed. Retrieval keeps the relevant documents and ten others for each
    query; a word-level task keeps five training sentences for each item. The limit becomes part of the task's name.
    Raises UnmaskError if there is no such task, and for bad rows.
    """
    path, kind, limit = _parsed(spec)
    folder = expanded(path)
    if folder.is_dir():
        return _read_folder(open_folder(folder), kind, limit)
    if folder.is_file() and folder.parent.name == "qrels":  # a split of BEIR's own layout
        return _read_folder(open_folder(folder.parent.parent, split=f"qrels_{folder.stem}"), kind, limit)
    if folder.is_file():
        opened = open_folder(folder.parent, split=folder.stem)
        if (preferred := opened.file(folder.stem)) not in (folder, None):
            raise UnmaskError(f"'{folder}' would not be read, because '{preferred}' is read instead: keep one of the two.")
        return _read_folder(opened, kind, limit)
    if path.startswith((".", "/", "~")) or kind:
        raise UnmaskError(f"There is no task folder '{path}'.")
    return _mteb_task(path, limit)


def _parsed(spec: str) -> tuple[str, str, int | None]:
    """The path (or mteb name), the kind (or "") and the limit of a spec."""
    spec, limit = without_limit(spec)
    path, mark, kind = spec.rpartition(":")
    if mark and kind not in KINDS and expanded(path).is_dir() and not expanded(spec).is_dir():
        raise unknown("kind of task", kind, KINDS)
    return (path, kind, limit) if mark and kind in KINDS else (spec, "", limit)


def item_file(spec: str) -> str:
    """The file of the items that a spec scores, whatever sample it takes; the folder of a retrieval task; the name of an mteb task."""
    path, _, _ = _parsed(spec)
    resolved = expanded(path)
    if resolved.is_file():
        return str(resolved.resolve())
    if not resolved.is_dir():
        return path
    with suppress(UnmaskError):
        resolved = open_folder(resolved).main_file
    return str(resolved.resolve())


def without_limit(spec: str) -> tuple[str, int | None]:
    """`FOLDER#200` -> FOLDER and 200; a folder whose own name ends so stays whole."""
    path, mark, limit = spec.rpartition("#")
    if not mark or not limit.lstrip("-").isdecimal() or expanded(spec).is_dir():
        return spec, None
    if int(limit) < 2:
        raise UnmaskError(f"A limit is at least 2 items, not {limit}.")
    return path, int(limit)


def _mteb_task(name: str, limit: int | None) -> MtebTask:
    from unmask.tasks.benchmarks import unknown_task
    from unmask.tasks.mteb import catalogue

    if catalogue.short(name) not in catalogue.task_names():
        raise unknown_task(name)
    if limit is not None:
        raise UnmaskError(f"A limit works on local folders only, and '{name}' is a task of mteb.")
    return catalogue.find(name)


def _read_folder(folder: TaskFolder, kind_name: str, limit: int | None) -> LocalTask:
    settings = folder.settings
    kind = _stated_kind(folder, kind_name) or recognised_kind(folder)
    _refuse_idle_names(folder, kind)
    name, limit = settings.name or folder.path.resolve().name, limit or settings.limit
    task = LocalTask(name, kind.name, kind.read(folder), settings.seed, settings.instruction)
    if not task.size:
        raise UnmaskError(f"'{folder.path}' holds no item to score.")
    if limit and limit < task.size:
        data = kind.sample(task.data, limit, random.Random(task.seed))
        task = replace(task, name=f"{task.name}#{limit}", data=data)
    if reason := kind.nothing_to_tell(task.data):
        raise UnmaskError(f"'{task.name}': {reason}.")
    _say_copies(task, kind)
    return task


def _say_copies(task: LocalTask, kind: TaskKind) -> None:
    """Tell how many scored texts are training texts, too: their score says nothing about new texts."""
    trained = {kind.texts_of(row)[0][0] for row in task.data.get("train", ())}
    copies = sum(kind.texts_of(row)[0][0] in trained for row in task.data[kind.item_part]) if trained else 0
    if copies:
        share = f"{copies} of its {task.size} test texts ({copies / task.size:.1%})"
        say(f"{task.name}: {share} are also in its own train file, so its score may be too high.")


def _refuse_idle_names(folder: TaskFolder, kind: TaskKind) -> None:
    """Raise UnmaskError if `task.toml` names a column that the kind does not have."""
    for key in ("text", "label"):
        if key in folder.settings.model_fields_set and key not in kind.named:
            readers = ", ".join(name for name, reader_kind in KINDS.items() if key in reader_kind.named)
            raise UnmaskError(
                f"{folder.path / 'task.toml'}: '{key}' would change nothing, because a {kind.name} task has no column that it could "
                f"name. Remove it, or state another kind ({readers})."
            )


def _stated_kind(folder: TaskFolder, name: str) -> TaskKind | None:
    """The kind that the user or `task.toml` names, if any."""
    if not name and (stated := folder.settings.kind) is not None:
        if stated not in KINDS:
            raise UnmaskError(f"{folder.path / 'task.toml'}: {unknown('kind of task', stated, KINDS)}")
        name = stated
    return KINDS[name] if name else None


def recognised_kind(folder: TaskFolder) -> TaskKind:
    """The kind whose files and columns a folder has."""
    kinds = sorted(KINDS.values(), key=lambda kind: kind.order)
    for kind in kinds:
        if kind.recognises(folder):
            return kind
    for kind in kinds:
        if reason := kind.near_miss(folder):
            raise UnmaskError(reason)
    raise UnmaskError(
        f"'{folder.path}' is not a task folder: {folder.main_file.name} has the columns {', '.join(sorted(folder.columns)) or '(none)'}, "
        f"which match no kind of task (kinds: {', '.join(KINDS)}; `unmask tasks` shows their columns)."
    )


def specs_below(root: Path, names: Sequence[str]) -> list[str]:
    """The specs of tasks that a recipe or a plan names: a path below `root`, or any other spec, with starter tasks as paths.

    Raises UnmaskError for an unknown starter task, and for a name that is neither a folder of `root` nor known to mteb.
    """
    return [spec for name in names for spec in (starter_specs(name) or [_below(root, name)])]


def _below(root: Path, name: str) -> str:
    path = _parsed(name)[0]
    if (root / path).exists():
        return str(root / name)
    if expanded(path).exists():
        return name
    if "/" in path:
        return str(root / name)
    from unmask.tasks.benchmarks import known_names
    from unmask.tasks.mteb.catalogue import short

    if short(path) not in known_names():
        raise UnmaskError(f"There is no folder '{root / path}', and mteb has no task or task set '{path}'.")
    return name


def starter_specs(spec: str) -> list[str]:
    """The folders of `starter` (all starter tasks) or `starter:NAME`, each with the `#limit` of the spec, if any.

    Nothing for other specs.
    Raises UnmaskError for an unknown starter task.
    """
    from unmask.starter import starter_folders

    plain, mark, limit = spec.partition("#")
    stem, _, name = plain.partition(":")
    if stem != "starter":
        return []
    folders = {folder.name: str(folder) for folder in starter_folders()}
    if name and name not in folders:
        raise unknown("starter task", name, folders)
    return [f"{folder}{mark}{limit}" for folder in ([folders[name]] if name else folders.values())]


def resolve_tasks(specs: Sequence[str]) -> list[Task]:
    """The tasks of several specs. "starter" means all starter tasks, "starter:NAME" one. The name of a task set means its tasks, and so
    does a folder of task folders.

    Tasks of a set that cannot be compared are listed. A task that two sets share comes once. Raises UnmaskError for two different tasks of
    one name, because results could not tell them apart.
    """
    tasks: dict[str, Task] = {}
    for spec in specs:
        for task in _expanded(spec):
            if tasks.get(task.name, task) is not task and not (isinstance(task, MtebTask) and tasks[task.name] == task):
                raise UnmaskError(_namesakes(tasks[task.name], task))
            tasks[task.name] = task
    if not tasks:
        raise UnmaskError("No task was given; `unmask tasks` lists the kinds, the task sets and the starter tasks.")
    return list(tasks.values())


def _expanded(spec: str) -> Sequence[Task]:
    if starter := starter_specs(spec):
        return [find_task(folder) for folder in starter]
    name, limit = without_limit(spec)
    if not is_path(name):
        from unmask.tasks.benchmarks import find_set

        if task_set := find_set(name):
            if limit is not None:
                raise UnmaskError(f"A limit works on local folders only, and '{name}' is a task set of mteb's tasks.")
            if not task_set.tasks:
                raise UnmaskError(f"No task of '{name}' can be compared: {next(iter(task_set.refused.values()))}.")
            if task_set.left_out:
                say(task_set.left_out)
            return task_set.tasks
    if folders := _task_folders(expanded(name)):
        return [find_task(str(folder) if limit is None else f"{folder}#{limit}") for folder in folders]
    return [find_task(spec)]


def _task_folders(folder: Path) -> list[Path]:
    """The task folders in a folder that holds nothing else; none for a folder of any other kind."""
    inner = sorted(folder.iterdir()) if folder.is_dir() else []
    return inner if inner and all(path.is_dir() and any(path.glob("*.*")) for path in inner) else []


def is_path(spec: str) -> bool:
    """Whether this is a file or folder, or is written like one."""
    path, mark, kind = spec.rpartition(":")
    names = [spec, path] if mark and kind in KINDS else [spec]
    return spec.startswith((".", "/", "~")) or any(expanded(name).exists() for name in names)


def _namesakes(task: Task, second: Task) -> str:
    if isinstance(task, MtebTask) and isinstance(second, MtebTask):
        return (
            f"Two sets hold '{task.name}' on other data ({task.revision} and {second.revision}), so their scores would be mixed up; "
            "compare on one set at a time."
        )
    return f"Two tasks are called '{task.name}'; give one of them a name in its task.toml."
