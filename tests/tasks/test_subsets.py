"""A larger subset holds a smaller one, and none asks for what it does not hold."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from tests.tiny import write_task
from unmask.tasks.find import find_task
from unmask.tasks.kinds import TEXT_KINDS as KINDS
from unmask.tasks.kinds import retrieval
from unmask.tasks.sampling import drawn_halves, drawn_order
from unmask.tasks.task import LocalTask


def task_of(folder: Path, kind: str) -> LocalTask:
    task = find_task(str(write_task(folder / kind, kind)))
    assert isinstance(task, LocalTask)
    return task


@pytest.mark.parametrize("kind", KINDS)
def test_subsets_are_nested_and_of_their_size(kind: str, tmp_path: Path) -> None:
    task = task_of(tmp_path, kind)
    sizes = [size for size in (2, 3, 5) if size < task.size]
    assert sizes, "the task is large enough to be cut"
    parts = [task.subset(size) for size in sizes]
    assert [part.size for part in parts] == sizes
    texts = [set(part.texts_and_pairs[0]) for part in [*parts, task]]
    assert all(small <= large for small, large in pairwise(texts))
    assert texts[0] < texts[-1]
    assert len({part.name for part in [*parts, task]}) == len({part.revision for part in [*parts, task]}) == len(sizes) + 1
    assert task.subset(sizes[0]) == parts[0] and task.subset(task.size) is task
    classes = {row.get("label") for row in task.data[KINDS[kind].item_part]}
    assert all({row.get("label") for row in part.data[KINDS[kind].item_part]} == classes for part in parts)


def test_the_documents_of_a_query_stay_with_it_beside_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "DOCUMENTS_PER_QUERY", 2)
    task = task_of(tmp_path, "retrieval")
    part = task.subset(2)
    relevant = {row["corpus-id"] for row in part.data["qrels"]}
    others = [row for row in part.data["corpus"] if row["_id"] not in relevant]
    assert 0 < len(others) <= 4 and len(part.data["corpus"]) < len(task.data["corpus"])
    assert part.data["corpus"] == [row for row in task.data["corpus"] if row in part.data["corpus"]], (
        "in the order of the corpus"
    )
    known = {row["_id"] for row in part.data["corpus"]}
    assert {row["corpus-id"] for row in part.data["qrels"]} <= known
    assert {row["query-id"] for row in part.data["qrels"]} == {row["_id"] for row in part.data["queries"]}


@pytest.mark.parametrize("sizes", [(95, 4, 1), (1, 1, 1), (50, 50, 0)])
def test_every_beginning_holds_every_class_and_then_they_come_in_proportion(sizes: tuple[int, ...]) -> None:
    classes = [name for name, size in zip("abc", sizes, strict=True) for _ in range(size)]
    order = drawn_order(len(classes), 3, classes)
    assert sorted(order) == list(range(len(classes)))
    present = sum(size > 0 for size in sizes)
    for end in range(present, len(order) + 1):
        part = [classes[place] for place in order[:end]]
        assert len(set(part)) == present
        for name, size in zip("abc", sizes, strict=True):
            assert abs(part.count(name) - end * size / len(order)) < present
    assert order == drawn_order(len(classes), 3, classes) != drawn_order(len(classes), 4, classes) or len(order) < 4


@pytest.mark.parametrize("kind", KINDS)
def test_halves_share_no_item_and_lose_none(kind: str, tmp_path: Path) -> None:
    task = task_of(tmp_path, kind)
    parts = task.halves()
    items = [[str(row) for row in part.data[KINDS[kind].item_part]] for part in (task, *parts)]
    assert sorted(items[1] + items[2]) == sorted(items[0])
    assert abs(parts[0].size - parts[1].size) <= KINDS[kind].number_of_classes(task.data)
    assert not set(items[1]) & set(items[2]), "rows of these tasks are all different"
    if kind == "retrieval":
        assert all(part.data["corpus"] == task.data["corpus"] for part in parts)
        assert {row["query-id"] for row in parts[0].data["qrels"]} == {row["_id"] for row in parts[0].data["queries"]}
    assert len({part.name for part in (task, *parts)}) == len({part.revision for part in (task, *parts)}) == 3
    assert task.halves() == parts


@pytest.mark.parametrize("sizes", [(96, 4, 2), (1, 1, 1), (51, 49, 0)])
def test_each_half_has_half_of_every_class(sizes: tuple[int, ...]) -> None:
    classes = [name for name, size in enumerate(sizes) for _ in range(size)]
    first, second = drawn_halves(len(classes), 0, classes)
    for name, size in enumerate(sizes):
        shares = [sum(classes[place] == name for place in half) for half in (first, second)]
        assert sum(shares) == size and abs(shares[0] - shares[1]) == size % 2
    assert abs(len(first) - len(second)) <= 1, "odd classes take turns"
