"""A task of mteb on its first items keeps its protocol and its classes, and a larger part holds a smaller one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.tasks.test_mteb_tasks import DRAWING, TASKS, no_data_of_before, noisy, offline  # noqa: F401
from tests.tiny import labelled
from unmask.tasks.mteb import cutting, evaluator
from unmask.tasks.mteb.evaluator import count_items, count_texts, evaluate
from unmask.tasks.task import MtebTask

UNCUT = {"BiorxivClusteringS2S"}  # several sets of texts, each scored for itself


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", TASKS)
def test_every_kind_of_task_is_scored_on_a_part_of_its_items(name: str, offline: Callable[[str], MtebTask]) -> None:  # noqa: F811
    task = offline(name)
    size = count_items(task)
    if name in UNCUT:
        assert size is None
        return
    assert size is not None
    cells = sum(len(cutting._cells(part)) for part in evaluator._loaded(task))
    part = task.limited(max(2 * cells, size // 2))
    assert (part.name, part.in_mteb, part.kind) == (f"{name}@{part.limit}", name, task.kind)
    assert part.revision != task.revision
    fewer = count_items(part)
    assert fewer is not None and fewer < size
    assert abs(fewer - (part.limit or 0)) <= 2 * cells
    assert count_texts(part) < count_texts(task)
    found = evaluate(part, "noisy", noisy)
    assert np.isfinite(found.main_score)
    if name in DRAWING:  # as the other tasks do that draw at all
        assert found.main_score == evaluate(part, "noisy", noisy).main_score
    evaluator._loaded.cache_clear()
    assert count_items(task) == size, "the task itself is whole"


@pytest.mark.parametrize("name", ["Banking77Classification", "STSBenchmark", "SprintDuplicateQuestions", "SciFact"])
def test_a_larger_part_holds_a_smaller_one(name: str, offline: Callable[[str], MtebTask]) -> None:  # noqa: F811
    task, seen = offline(name), []
    for limit in (4, 6, 12):
        texts: set[str] = set()

        def encode(batch: Any, instruction: str | None, texts: set[str] = texts) -> Any:
            texts.update(batch)
            return noisy(batch)

        evaluate(task.limited(limit), "noisy", encode)
        seen.append(texts)
    assert seen[0] < seen[1] < seen[2]


def of_twelve_classes(part: int) -> Any:
    from datasets import Dataset

    texts = [row["text"] for row in labelled(0, 60)]
    return Dataset.from_dict({"sentences": texts, "labels": [f"class {number % 12}" for number in range(60)]})


def test_a_part_of_more_classes_than_items_has_a_score(
    offline: Callable[[str], MtebTask],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(TASKS, "StackExchangeClustering.v2", of_twelve_classes)
    part = offline("StackExchangeClustering.v2").limited(6)
    found = evaluate(part, "noisy", noisy)
    assert count_items(part) == 12, "one text of each class"
    assert found.items is not None and found.items.n == 12
    assert 0 < found.main_score <= 1
