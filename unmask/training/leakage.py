"""Leakage: training texts that are, or nearly are, the texts that a task scores."""

from __future__ import annotations

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from typing import Final

from unmask.errors import UnmaskError
from unmask.tasks.kinds.kind import Forms
from unmask.training.data import DataSet, content_hash
from unmask.training.text_keys import fold

SHINGLE: Final = 5  # letters: a changed word touches few of them, and two texts on one subject share few
_Matches = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Leak:
    """A training text and the text of a task that it is most like. row: line in the training file; place: position in the task's texts."""

    row: int
    column: str
    text: str
    place: int
    found: str
    similarity: float


@dataclass(frozen=True)
class TaskLeaks:
    """What leaks into one task. texts: distinct texts of the task; seen: how many of them the training data hold, near ones included.

    leaks: one for each distinct training text. both: places of the examples two of whose texts are a pair that the task scores, so
    that training saw the answer; one: places of the others that leak, which saw a text but not what it is compared with.
    """

    task: str
    texts: int
    seen: int
    leaks: tuple[Leak, ...]
    both: tuple[int, ...]
    one: tuple[int, ...]

    @property
    def exact(self) -> int:
        """Distinct training texts that are texts of the task, but for case, punctuation and spaces."""
        return sum(leak.similarity == 1 for leak in self.leaks)

    @property
    def near(self) -> int:
        """Distinct training texts that are nearly texts of the task."""
        return len(self.leaks) - self.exact


@dataclass(frozen=True)
class LeakReport:
    """Leaks of one data set into every task. texts: its distinct texts; revision: of the data set."""

    data: str
    revision: str
    texts: int
    examples: int
    threshold: float
    tasks: tuple[TaskLeaks, ...]


def find_leaks(
    dataset: DataSet,
    evaluation: Mapping[str, Sequence[Forms]],
    threshold: float = 0.8,
    pairs: Mapping[str, Iterable[tuple[int, int]]] | None = None,
) -> LeakReport:
    """Find the training texts that equal a task's text once folded, or whose letter shingles have a Jaccard of at least threshold.

    evaluation: texts by task. A document may be a text with its title and without, in both; so may a document of a training folder.
    pairs: the positions in those texts of the pairs that the task scores; without them no leak is called one of both texts. Raises
    UnmaskError for a threshold outside (0, 1].
    """
    return find_all_leaks([dataset], evaluation, threshold, pairs)[0]


def find_all_leaks(
    datasets: Sequence[DataSet],
    evaluation: Mapping[str, Sequence[Forms]],
    threshold: float = 0.8,
    pairs: Mapping[str, Iterable[tuple[int, int]]] | None = None,
) -> list[LeakReport]:
    """As `find_leaks`, of several data sets. The texts of the tasks, which may be many, are prepared once for all sets."""
    if not 0 < threshold <= 1:
        raise UnmaskError(f"The threshold of near duplicates is above 0 and at most 1, not {threshold}.")
    keys = [[[fold(text) for text in example.texts] for example in dataset.examples] for dataset in datasets]
    trained = [list(dict.fromkeys(key for row in rows for key in row if key)) for rows in keys]
    tasks = [_task(name, texts, (pairs or {}).get(name, ())) for name, texts in evaluation.items()]
    scored = tuple(dict.fromkeys(key for task in tasks for key in task.places))
    forms = [[form for key in of_set for form in _forms(key, data)] for data, of_set in zip(datasets, trained, strict=True)]
    matches = _matches(tuple(dict.fromkeys(key for of_set in forms for key in of_set)), scored, threshold)
    reports = []
    for dataset, rows, of_set in zip(datasets, keys, trained, strict=True):
        matching_keys = {key: likes for key in of_set if (likes := _likes(_forms(key, dataset), matches))}
        leaks = tuple(_task_leaks(dataset, rows, matching_keys, task) for task in tasks)
        reports.append(LeakReport(dataset.name, dataset.revision, len(of_set), len(rows), threshold, leaks))
    return reports


def without_leaks(dataset: DataSet, report: LeakReport, pairs_only: bool = False) -> DataSet:
    """The data set without the examples that leak, which `skipped` counts; pairs_only: without those that saw an answer only.

    Raises UnmaskError if the report is about other data, and if nothing would be left.
    """
    if report.revision != dataset.revision:
        raise UnmaskError(f"The report of leaks is about other data than '{dataset.name}' ({dataset.revision}).")
    leaking = {index for task in report.tasks for index in (task.both if pairs_only else (*task.both, *task.one))}
    examples = [example for index, example in enumerate(dataset.examples) if index not in leaking]
    if not examples:
        raise UnmaskError(f"data set '{dataset.name}': all {len(leaking)} examples leak into a task.")
    skipped = {**dataset.skipped, "in a task": len(leaking)} if leaking else dataset.skipped
    return replace(dataset, examples=examples, revision=content_hash(dataset.columns, examples), skipped=skipped)


@dataclass(frozen=True)
class _Task:
    """A task as training texts are compared with it.

    texts: each in its first form. size: number of distinct ones. places: folded text, in any form -> where it stands first. pairs:
    folded texts that it scores.
    """

    name: str
    texts: Sequence[str]
    size: int
    places: dict[str, int]
    pairs: set[frozenset[str]]


def _task(name: str, texts: Sequence[Forms], pairs: Iterable[tuple[int, int]]) -> _Task:
    forms = [(text,) if isinstance(text, str) else text for text in texts]
    keys = [[fold(form) for form in of_text] for of_text in forms]
    rows_by_key: dict[str, int] = {}
    for index, (first, *_) in enumerate(keys):
        if first:
            rows_by_key.setdefault(first, index)
    size = len(rows_by_key)
    for index, (_, *alternatives) in enumerate(keys):
        for key in filter(None, alternatives):
            rows_by_key.setdefault(key, index)
    compared = {frozenset((x, y)) for first, second in pairs for x in keys[first] for y in keys[second]}
    return _Task(name, [first for first, *_ in forms], size, rows_by_key, compared)


def _forms(key: str, dataset: DataSet) -> list[str]:
    """The key of a training text, and the key of the document without its title if it is one."""
    return [key, dataset.plain[key]] if key in dataset.plain else [key]


def _likes(forms: Sequence[str], matches: _Matches) -> Mapping[str, float]:
    """The scored texts that any form of a training text is like, each with the highest similarity."""
    likes: dict[str, float] = {}
    for form in forms:
        for key, like in matches.get(form, {}).items():
            likes[key] = max(like, likes.get(key, 0))
    return likes


def _task_leaks(dataset: DataSet, keys: list[list[str]], matches: _Matches, task: _Task) -> TaskLeaks:
    near = {
        key: {key_in_task: like for key_in_task, like in likes.items() if key_in_task in task.places}
        for key, likes in matches.items()
    }
    near = {key: likes for key, likes in near.items() if likes}
    leaks: dict[str, Leak] = {}
    both, one_text = [], []
    for index, (example, row) in enumerate(zip(dataset.examples, keys, strict=True)):
        leaking = [key for key in row if key in near]
        for column, key, text in zip(dataset.columns, row, example.texts, strict=False):  # rows may have fewer negatives
            if key in near and key not in leaks:
                key_in_task, like = max(near[key].items(), key=lambda match: match[1])
                place_in_task = task.places[key_in_task]
                leaks[key] = Leak(example.row, column, text, place_in_task, task.texts[place_in_task], like)
        if any(frozenset((x, y)) in task.pairs for a, b in combinations(leaking, 2) for x in near[a] for y in near[b]):
            both.append(index)
        elif leaking:
            one_text.append(index)
    found_rows = {task.places[key_in_task] for likes in near.values() for key_in_task in likes}
    return TaskLeaks(task.name, task.size, len(found_rows), tuple(leaks.values()), tuple(both), tuple(one_text))


@lru_cache(maxsize=4)  # a study trains many models on the same rows, and this takes as long as a short training
def _matches(trained: tuple[str, ...], scored: tuple[str, ...], threshold: float) -> _Matches:
    """Training text -> {scored text: Jaccard of their shingles}, for all that reach the threshold; 1 means equal texts only.

    Exact, and fast by prefixes (Bayardo et al. 2007): two sets with a Jaccard of t share one of the rarest n - ceil(t n) + 1
    elements of each, so only texts with a rare shingle in common are compared.
    """
    matches: dict[str, dict[str, float]] = defaultdict(dict)
    of_trained, of_scored = _ranked([trained, scored])
    index: dict[int, list[int]] = defaultdict(list)
    for number, shingles in enumerate(of_scored):
        for shingle in shingles[: _prefix(len(shingles), threshold)]:
            index[shingle].append(number)
    for key, shingles in zip(trained, of_trained, strict=True):
        candidates = {number for shingle in shingles[: _prefix(len(shingles), threshold)] for number in index.get(shingle, ())}
        shingle_set = set(shingles)
        for number in candidates:
            other_shingles = of_scored[number]
            if not threshold * len(shingle_set) <= len(other_shingles) <= len(shingle_set) / threshold:
                continue
            shared = len(shingle_set.intersection(other_shingles))
            like = shared / (len(shingle_set) + len(other_shingles) - shared)
            if key == scored[number]:
                matches[key][key] = 1.0
            elif like >= threshold:
                matches[key][scored[number]] = min(like, math.nextafter(1, 0))  # other letters in the same shingles
    return dict(matches)


def _prefix(size: int, threshold: float) -> int:
    return size - math.ceil(threshold * size - 1e-9) + 1


def _ranked(sides: Sequence[Sequence[str]]) -> list[list[array[int]]]:
    """The shingles of each text as numbers, the rarest first."""
    counts: Counter[str] = Counter()
    for texts in sides:
        for text in texts:
            counts.update(_shingles(text))
    ranks = {
        shingle: rank
        for rank, shingle in enumerate(sorted(counts, key=lambda shingle_count: (counts[shingle_count], shingle_count)))
    }
    return [[array("L", sorted(ranks[shingle] for shingle in _shingles(text))) for text in texts] for texts in sides]


def _shingles(text: str) -> set[str]:
    return {text[start : start + SHINGLE] for start in range(max(1, len(text) - SHINGLE + 1))}
