"""Leakage: training texts that are, or nearly are, the texts that a task scores."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from unmask.errors import UnmaskError
from unmask.io.paths import expanded
from unmask.io.terminal import say
from unmask.tasks.find import resolve_tasks
from unmask.tasks.kinds.kind import Forms
from unmask.tasks.task import LocalTask
from unmask.training.data import DataSet, DataSource, read_all_rows
from unmask.training.text_keys import fold

SHINGLE: Final = 5  # letters: a changed word touches few of them, and two texts on one subject share few
THRESHOLD: Final = 0.8
"""Jaccard similarity of letter shingles from which on two texts are near duplicates."""

TaskTexts = tuple[Sequence[Forms], Sequence[tuple[int, int]]]
"""Texts of a task, and the index pairs that it compares. A document may have two forms, with its title and without."""
_Matches = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Leak:
    """A training text and the most similar text of a task. row: line in the training file; position: in the task's texts."""

    row: int
    column: str
    text: str
    position: int
    task_text: str
    similarity: float


@dataclass(frozen=True)
class TaskLeaks:
    """What leaks into one task. texts: distinct texts of the task; seen: how many of them the training data hold, near ones included.

    leaks: one for each distinct training text. both: indices of the examples two of whose texts are a pair that the task scores, so
    that training saw the answer; one: indices of the other examples that leak.
    """

    task: str
    texts: int
    seen: int
    leaks: tuple[Leak, ...]
    both: tuple[int, ...]
    one: tuple[int, ...]

    @property
    def exact(self) -> int:
        """Distinct training texts that equal a text of the task, except for case, punctuation and spaces."""
        return sum(leak.similarity == 1 for leak in self.leaks)

    @property
    def near(self) -> int:
        """Distinct training texts that are nearly texts of the task."""
        return len(self.leaks) - self.exact


@dataclass(frozen=True)
class LeakReport:
    """Leaks of one data set into every task. texts: its distinct texts."""

    data: str
    texts: int
    examples: int
    tasks: tuple[TaskLeaks, ...]

    def as_json(self) -> dict[str, Any]:
        """All leaks, with counts."""
        tasks = [{**asdict(task), "exact": task.exact, "near": task.near} for task in self.tasks]
        return {**asdict(self), "tasks": tasks}


def search_leaks(train: Sequence[str], tasks: Sequence[str]) -> list[LeakReport]:
    """`find_leaks` for training data and task folders by name."""
    task_texts: dict[str, TaskTexts] = {}
    for task in resolve_tasks(tasks):
        if not isinstance(task, LocalTask):
            raise UnmaskError(f"Leaks are searched in task folders, but '{task.name}' is a task of mteb.")
        task_texts[task.name] = task.texts_and_pairs
    datasets = [read_all_rows(_data_name(path), DataSource(path=path), Path()) for path in train]
    for data in datasets:
        if data.unread:
            say(f"{data.name}: columns not searched: {', '.join(data.unread)}")
    return find_leaks(datasets, task_texts)


def _data_name(path: str) -> str:
    """Many files are named train.jsonl, so their folder is part of the label."""
    if path.startswith(("hub:", "starter:")):
        return path
    file = expanded(path).resolve()
    return file.name if file.is_dir() else f"{file.parent.name}/{file.stem}"


def find_leaks(datasets: Sequence[DataSet], tasks: Mapping[str, TaskTexts]) -> list[LeakReport]:
    """For each data set, its texts that equal a task's text once folded, or have a shingle similarity of at least `THRESHOLD`."""
    searched = [_SearchedTask.of(name, *texts_and_pairs) for name, texts_and_pairs in tasks.items()]
    keys = [[[fold(text) for text in example.texts] for example in dataset.examples] for dataset in datasets]
    distinct = [dict.fromkeys(key for row in rows for key in row if key) for rows in keys]
    matches = _matches(
        tuple(dict.fromkeys(key for of_set in distinct for key in of_set)),
        tuple(dict.fromkeys(key for task in searched for key in task.positions)),
    )
    return [
        LeakReport(dataset.name, len(of_set), len(rows), tuple(_task_leaks(dataset, rows, matches, task) for task in searched))
        for dataset, rows, of_set in zip(datasets, keys, distinct, strict=True)
    ]


def remove_leaks(dataset: DataSet, report: LeakReport) -> DataSet:
    """The data set without the examples that leak, which `skipped` counts. Raises UnmaskError if nothing would be left."""
    leaking = {index for task in report.tasks for index in (*task.both, *task.one)}
    examples = [example for index, example in enumerate(dataset.examples) if index not in leaking]
    if not examples:
        raise UnmaskError(f"data set '{dataset.name}': all {len(leaking)} examples leak into a task.")
    return replace(dataset, examples=examples, skipped={**dataset.skipped, "in a task": len(leaking)}) if leaking else dataset


@dataclass(frozen=True)
class _SearchedTask:
    """A task to compare training texts with.

    texts: each in its first form. size: number of distinct ones. positions: folded text, in any form -> its first position. pairs:
    folded texts that it compares.
    """

    name: str
    texts: Sequence[str]
    size: int
    positions: dict[str, int]
    pairs: set[frozenset[str]]

    @classmethod
    def of(cls, name: str, texts: Sequence[Forms], pairs: Sequence[tuple[int, int]]) -> _SearchedTask:
        forms = [(text,) if isinstance(text, str) else text for text in texts]
        keys = [[fold(form) for form in of_text] for of_text in forms]
        size = len({key for key, *_ in keys if key})
        positions: dict[str, int] = {}
        # a text in its first form goes before the second form of another
        for form in range(max((len(row) for row in keys), default=0)):
            for position, row in enumerate(keys):
                if row[form:] and row[form]:
                    positions.setdefault(row[form], position)
        compared = {frozenset((x, y)) for first, second in pairs for x in keys[first] for y in keys[second]}
        return cls(name, [first for first, *_ in forms], size, positions, compared)


def _task_leaks(dataset: DataSet, keys: list[list[str]], matches: _Matches, task: _SearchedTask) -> TaskLeaks:
    near = {
        key: {other: similarity for other, similarity in matches.get(key, {}).items() if other in task.positions}
        for row in keys
        for key in row
    }
    leaks: dict[str, Leak] = {}
    both, one_text = [], []
    for index, (example, row) in enumerate(zip(dataset.examples, keys, strict=True)):
        leaking = [key for key in row if near[key]]
        for column, key, text in zip(dataset.columns, row, example.texts, strict=False):  # rows may have fewer negatives
            if near[key] and key not in leaks:
                match, similarity = max(near[key].items(), key=lambda item: item[1])
                position = task.positions[match]
                leaks[key] = Leak(example.row, column, text, position, task.texts[position], similarity)
        if any(frozenset((x, y)) in task.pairs for a, b in combinations(leaking, 2) for x in near[a] for y in near[b]):
            both.append(index)
        elif leaking:
            one_text.append(index)
    reported = {task.positions[match] for similar in near.values() for match in similar}
    return TaskLeaks(task.name, task.size, len(reported), tuple(leaks.values()), tuple(both), tuple(one_text))


@lru_cache(maxsize=4)  # a study trains many models on the same rows, and this takes as long as a short training
def _matches(trained: tuple[str, ...], scored: tuple[str, ...]) -> _Matches:
    """Training text -> {scored text: Jaccard of their shingles}, for all that reach the threshold; 1 means equal texts only.

    Exact, and fast by prefix filtering (Bayardo et al. 2007): two sets with a Jaccard of t share one of the rarest n - ceil(t n) + 1
    elements of each, so only texts with a rare shingle in common are compared.
    """
    if not scored:
        return {}
    counts = Counter(shingle for text in (*trained, *scored) for shingle in _shingles(text))
    ranks = {shingle: rank for rank, shingle in enumerate(sorted(counts, key=lambda shingle: (counts[shingle], shingle)))}

    def rarest_first(text: str) -> array[int]:
        return array("L", sorted(ranks[shingle] for shingle in _shingles(text)))

    def prefix(shingles: array[int]) -> array[int]:
        return shingles[: len(shingles) - math.ceil(THRESHOLD * len(shingles) - 1e-9) + 1]

    by_size = sorted(((rarest_first(text), text) for text in scored), key=lambda row: len(row[0]))
    sizes = [len(shingles) for shingles, _ in by_size]
    index: dict[int, list[int]] = defaultdict(list)
    for number, (shingles, _) in enumerate(by_size):
        for shingle in prefix(shingles):
            index[shingle].append(number)
    matches: dict[str, dict[str, float]] = defaultdict(dict)
    for text in trained:
        shingles = rarest_first(text)
        size, elements = len(shingles), set(shingles)
        # sets of other sizes cannot be as similar as the threshold
        first, end = bisect_left(sizes, THRESHOLD * size - 1e-9), bisect_right(sizes, size / THRESHOLD + 1e-9)
        near_in_size = (
            numbers[bisect_left(numbers, first) : bisect_left(numbers, end)]
            for numbers in map(index.get, prefix(shingles))
            if numbers
        )
        for number in set().union(*near_in_size):
            other, task_text = by_size[number]
            shared = len(elements.intersection(other))
            similarity = shared / (size + len(other) - shared)
            if text == task_text:
                matches[text][text] = 1.0
            elif similarity >= THRESHOLD:
                matches[text][task_text] = min(similarity, math.nextafter(1, 0))  # other letters in the same shingles
    return dict(matches)


def _shingles(text: str) -> set[str]:
    return {text[start : start + SHINGLE] for start in range(max(1, len(text) - SHINGLE + 1))}
