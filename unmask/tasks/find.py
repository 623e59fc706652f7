"""Tasks: a local folder of labelled data, checked row by row, or the name of a task in mteb.

A folder's kind is inferred from its files and columns, stated in its `task.toml`, or stated behind its path (`FOLDER:kind`).
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from unmask.errors import UnmaskError, unknown
from unmask.io import rows as rows_of
from unmask.io.files import inside
from unmask.io.rows import Row, read_rows
from unmask.tasks import columns
from unmask.tasks.columns import Column, read_columns
from unmask.tasks.tagged import read_sentences
from unmask.tasks.task import KINDS, Kind, LocalTask, MtebTask, Task

_DOCUMENTS_PER_QUERY_UNDER_LIMIT = 10
_TRAINING_PER_TEST_UNDER_LIMIT = 5  # a word-level probe is fitted on that many sentences for each that it is scored on


class TaskFile(BaseModel):
    """What `task.toml` may state."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str | None = None
    kind: Kind | None = None
    split: str | None = None
    limit: int | None = Field(default=None, ge=2)
    seed: int = 0
    text: str = "text"
    label: str = "label"
    instruction: str | None = None


def find_task(spec: str) -> Task:
    """The task of a folder (`FOLDER`, `FOLDER:kind`, `FOLDER#limit`), of one split of it (`FOLDER/dev.jsonl`) or of an mteb name.

    Raises UnmaskError for neither, and for bad rows.
    limit: at most so many items, sampled by the task's seed. Of a retrieval corpus the relevant documents stay and others are sampled
    up to ten a query; of the sentences that a word-level probe is fitted on, five for each that it is scored on. The limit becomes
    part of the task's name, since the task has changed.
    """
    spec, limit = _without_limit(spec)
    path, mark, kind = spec.rpartition(":")
    if mark and kind not in KINDS and Path(path).expanduser().is_dir() and not Path(spec).expanduser().is_dir():
        raise unknown("kind of task", kind, KINDS)
    path, kind = (path, kind) if mark and kind in KINDS else (spec, "")
    folder = Path(path).expanduser()
    if folder.is_dir():
        return _read_folder(folder, kind or None, limit)
    if folder.is_file():
        if (read := _file(folder.parent, folder.stem)) not in (folder, None):
            raise UnmaskError(f"'{folder}' would not be read, since '{read}' is: keep one of the two.")
        return _read_folder(folder.parent, kind or None, limit, split=folder.stem)
    if spec.startswith((".", "/", "~")) or kind:
        raise UnmaskError(f"There is no task folder '{path}'.")
    return _mteb_task(spec, limit)


def _without_limit(spec: str) -> tuple[str, int | None]:
    """`FOLDER#200` -> FOLDER and 200; a folder whose own name ends so stays whole."""
    path, mark, limit = spec.rpartition("#")
    if not mark or not limit.lstrip("-").isdecimal() or Path(spec).expanduser().is_dir():
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


def _read_folder(folder: Path, kind: str | None, limit: int | None, split: str | None = None) -> LocalTask:
    stated = _task_file(folder)
    if split:
        name = f"{stated.name or folder.resolve().name}-{split}"
        stated = stated.model_copy(update={"split": split, "name": name})
    kind = kind or stated.kind or _infer_kind(folder, stated)
    data = READERS[kind](folder, stated)
    task = LocalTask(stated.name or folder.resolve().name, kind, data, stated.seed, stated.instruction)  # type: ignore[arg-type]
    if not task.size:
        raise UnmaskError(f"'{folder}' holds no item to score.")
    limit = limit or stated.limit
    return _telling(_limited(task, limit) if limit and limit < task.size else task)


def _telling(task: LocalTask) -> LocalTask:
    """Refuse data that no score can be computed on, since all items are alike."""
    part = "train" if task.kind == "classification" else "test"
    column = {"sts": "score", "pair-classification": "label", "classification": "label", "clustering": "label"}.get(task.kind)
    if column and len({row[column] for row in task.data[part]}) < 2:
        raise UnmaskError(f"'{task.name}': all items have one {column}, so there is nothing to tell apart.")
    if task.kind == "word-level" and len({tag for row in task.data["train"] for tag in row["tags"]}) < 2:
        raise UnmaskError(
            f"'{task.name}': all words of the training sentences have one tag, so there is nothing to tell apart."
        )
    if task.kind == "summarization" and all(len({score for _, score in row["summaries"]}) < 2 for row in task.data["test"]):
        raise UnmaskError(f"'{task.name}': humans scored the summaries of every text alike, so there is nothing to rank.")
    return task


def _task_file(folder: Path) -> TaskFile:
    file = folder / "task.toml"
    if not file.is_file():
        return TaskFile()
    try:
        return TaskFile.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
    except tomllib.TOMLDecodeError as error:
        raise UnmaskError(f"{file}: no TOML: {error}.") from error
    except ValidationError as error:
        problem = error.errors()[0]
        allowed = ", ".join(TaskFile.model_fields)
        raise UnmaskError(f"{file}: {'.'.join(map(str, problem['loc']))}: {problem['msg']} (keys: {allowed}).") from error


def _infer_kind(folder: Path, stated: TaskFile) -> str:
    """The kind whose files and columns these are."""
    if (folder / "corpus.jsonl").is_file() and (folder / "queries.jsonl").is_file():
        return "retrieval"
    file = _main_file(folder, stated)
    first = next(read_rows(file), None)
    found = set(first[1]) if first else set()
    for kind, needed in (
        ("word-level", {"tokens", "tags"}),
        ("sts", {"sentence1", "sentence2", "score"}),
        ("pair-classification", {"sentence1", "sentence2", "label"}),
        ("reranking", {"query", "positive", "negative"}),
        ("summarization", {"source", "references", "systems"}),
    ):
        if needed <= found:
            return kind
    if {stated.text, stated.label} <= found:
        return _kind_of_labelled(folder, file)
    raise UnmaskError(
        f"'{folder}' is no task: {file.name} has the columns {', '.join(sorted(found)) or '(none)'}, and no kind of task has those "
        f"(kinds: {', '.join(KINDS)})."
    )


def _kind_of_labelled(folder: Path, file: Path) -> str:
    """Classification with a training file beside it, clustering of `all.jsonl`; anything else could be meant as either."""
    if _file(folder, "train"):
        return "classification"
    if file.stem == "all":
        return "clustering"
    raise UnmaskError(
        f"'{file}' has labelled texts, but there is no train.jsonl beside it to fit a classifier on. Add train.jsonl, or say what is "
        f"meant: '{folder}:clustering' clusters these texts, '{folder}:classification' fits on one half of them and tests on the other."
    )


def _file(folder: Path, stem: str) -> Path | None:
    places = (inside(folder, f"{stem}{ending}") for ending in rows_of.READERS)
    return next((place for place in places if place.is_file()), None)


def _main_file(folder: Path, stated: TaskFile) -> Path:
    stems = [stated.split] if stated.split else ["test", "all"]
    for stem in stems:
        if file := _file(folder, stem):
            return file
    raise UnmaskError(f"'{folder}' has none of {', '.join(f'{stem}.jsonl' for stem in stems)}, so it is no task folder.")


def _train_file(folder: Path, test: Path) -> Path | None:
    """The training file of a task that is tested on another file. Raises UnmaskError if it is the same one."""
    train = _file(folder, "train")
    if train and train.samefile(test):
        raise UnmaskError(
            f"'{test}' holds the training rows of a task, and a test on those says nothing about new ones. Give '{folder}' for its "
            f"test file, another file of it, or '{test}:clustering' to cluster labelled texts."
        )
    return train


def _read_sts(folder: Path, stated: TaskFile) -> dict[str, list[Row]]:
    needed: dict[str, Column] = {"sentence1": columns.text, "sentence2": columns.text, "score": columns.number}
    return {"test": read_columns(_main_file(folder, stated), needed)}


def _read_pairs(folder: Path, stated: TaskFile) -> dict[str, list[Row]]:
    needed: dict[str, Column] = {"sentence1": columns.text, "sentence2": columns.text, "label": columns.zero_or_one}
    return {"test": read_columns(_main_file(folder, stated), needed)}


def _read_labelled(file: Path, stated: TaskFile) -> list[Row]:
    return read_columns(file, {"text": columns.text, "label": columns.label}, {"text": stated.text, "label": stated.label})


def _read_classification(folder: Path, stated: TaskFile) -> dict[str, list[Row]]:
    test_file = _main_file(folder, stated)
    train_file = _train_file(folder, test_file)
    test = _read_labelled(test_file, stated)
    if train_file:
        train = _read_labelled(train_file, stated)
    else:  # one file: its halves, by the seed
        random.Random(stated.seed).shuffle(test)
        train, test = test[: len(test) // 2], test[len(test) // 2 :]
    if missing := {row["label"] for row in test} - {row["label"] for row in train}:
        raise UnmaskError(f"'{folder}': the training texts have none with the label '{min(missing)}'.")
    return {"train": train, "test": test}


def _read_clustering(folder: Path, stated: TaskFile) -> dict[str, list[Row]]:
    return {"test": _read_labelled(_main_file(folder, stated), stated)}


def _read_retrieval(folder: Path, stated: TaskFile) -> dict[str, list[Row]]:
    corpus_file, queries_file = folder / "corpus.jsonl", folder / "queries.jsonl"
    corpus = read_columns(corpus_file, {"_id": columns.new_id(), "text": columns.text, "title": columns.title})
    queries = read_columns(queries_file, {"_id": columns.new_id(), "text": columns.text})
    judged: dict[str, Column] = {
        "query-id": columns.id_of("query", queries, queries_file),
        "corpus-id": columns.id_of("document", corpus, corpus_file),
        "score": columns.gain,
    }
    qrels = read_columns(inside(folder, f"qrels_{stated.split or 'test'}.tsv"), judged)
    asked = {row["query-id"] for row in qrels if row["score"] > 0}
    return {"corpus": corpus, "queries": [row for row in queries if row["_id"] in asked], "qrels": qrels}


def _read_reranking(folder: Path, stated: TaskFile) -> dict[str, list[Row]]:
    table = read_columns(
        _main_file(folder, stated), {"query": columns.text, "positive": columns.texts, "negative": columns.texts}
    )
    # a query with no positive or no negative has the same score under every model, and is skipped by convention
    return {"test": [row for row in table if row["positive"] and row["negative"]]}


def _read_summarization(folder: Path, stated: TaskFile) -> dict[str, list[Row]]:
    needed: dict[str, Column] = {
        "source": columns.text,
        "references": columns.some(columns.texts),
        "summaries": columns.some(columns.summaries),
    }
    return {"test": read_columns(_main_file(folder, stated), needed, {"summaries": "systems"})}


def _read_word_level(folder: Path, stated: TaskFile) -> dict[str, list[Row]]:
    test_file = _main_file(folder, stated)
    train_file = _train_file(folder, test_file)
    if train_file is None:
        raise UnmaskError(f"'{folder}' has no train.jsonl, and a word-level probe has to be fitted on something.")
    files = {"train": train_file, "test": test_file}
    return {
        part: [{"tokens": list(one.words), "tags": list(one.tags)} for one in read_sentences(file)]
        for part, file in files.items()
    }


READERS: dict[str, Callable[[Path, TaskFile], dict[str, list[Row]]]] = {
    "sts": _read_sts,
    "pair-classification": _read_pairs,
    "classification": _read_classification,
    "clustering": _read_clustering,
    "retrieval": _read_retrieval,
    "reranking": _read_reranking,
    "summarization": _read_summarization,
    "word-level": _read_word_level,
}


def _limited(task: LocalTask, limit: int) -> LocalTask:
    draw = random.Random(task.seed)
    data = dict(task.data)
    if task.kind == "retrieval":
        data["queries"] = _sample(draw, data["queries"], limit)
        asked = {row["_id"] for row in data["queries"]}
        data["qrels"] = [row for row in data["qrels"] if row["query-id"] in asked]
        relevant = {row["corpus-id"] for row in data["qrels"]}
        others = [row for row in data["corpus"] if row["_id"] not in relevant]
        more = {row["_id"] for row in _sample(draw, others, limit * _DOCUMENTS_PER_QUERY_UNDER_LIMIT)}
        data["corpus"] = [row for row in data["corpus"] if row["_id"] in relevant | more]
    else:
        data["test"] = _sample(draw, data["test"], limit)
    if task.kind == "word-level":
        data["train"] = _sample(draw, data["train"], limit * _TRAINING_PER_TEST_UNDER_LIMIT)
    return replace(task, name=f"{task.name}#{limit}", data=data)


def _sample(draw: random.Random, table: Sequence[Row], size: int) -> list[Row]:
    kept = sorted(draw.sample(range(len(table)), min(size, len(table))))
    return [table[index] for index in kept]


def resolve_tasks(specs: Sequence[str], say: Callable[[str], None] = lambda _: None) -> list[Task]:
    """The tasks of several specs; "starter" stands for all starter tasks of this package, the name of a task set for its tasks.

    say is told which tasks of a set cannot be compared. A task that two sets share is there once. Raises UnmaskError for two
    different tasks of one name, which results could not tell apart.
    """
    tasks: dict[str, Task] = {}
    for spec in specs:
        for task in _expanded(spec, say):
            if tasks.get(task.name, task) is not task and not (isinstance(task, MtebTask) and tasks[task.name] == task):
                raise UnmaskError(_namesakes(tasks[task.name], task))
            tasks[task.name] = task
    if not tasks:
        raise UnmaskError("No task was given; `unmask tasks` lists the kinds, the task sets and the starter tasks.")
    return list(tasks.values())


def _expanded(spec: str, say: Callable[[str], None]) -> Sequence[Task]:
    from unmask.starter import starter_folders

    if spec == "starter":
        return [find_task(str(folder)) for folder in starter_folders()]
    name, limit = _without_limit(spec)
    if not is_path(name):
        from unmask.tasks.benchmarks import find_set

        if found := find_set(name):
            if limit is not None:
                raise UnmaskError(f"A limit works on local folders only, and '{name}' is a task set of mteb's tasks.")
            if not found.tasks:
                raise UnmaskError(f"No task of '{name}' can be compared: {next(iter(found.refused.values()))}.")
            if found.left_out:
                say(found.left_out)
            return found.tasks
    return [find_task(spec)]


def is_path(spec: str) -> bool:
    """Whether this is a file or folder, or is written like one."""
    path, mark, kind = spec.rpartition(":")
    names = [spec, path] if mark and kind in KINDS else [spec]
    return spec.startswith((".", "/", "~")) or any(Path(name).expanduser().exists() for name in names)


def _namesakes(one: Task, other: Task) -> str:
    if isinstance(one, MtebTask) and isinstance(other, MtebTask):
        return (
            f"Two sets hold '{one.name}' on other data ({one.revision} and {other.revision}), so their scores would be mixed up; "
            "compare on one set at a time."
        )
    return f"Two tasks are called '{one.name}'; give one of them a name in its task.toml."
