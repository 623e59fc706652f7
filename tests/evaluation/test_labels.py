"""Labels that are read once change no score, and are read once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tiny import encode_words, labelled, write_rows
from unmask.evaluation import mteb_adapter
from unmask.evaluation.mteb_adapter import evaluate
from unmask.evaluation.tasks import LocalTask, find_task


@pytest.fixture
def task(tmp_path: Path) -> LocalTask:
    write_rows(tmp_path / "train.jsonl", labelled(0, 300))
    write_rows(tmp_path / "test.jsonl", labelled(300, 60))
    found = find_task(str(tmp_path))
    assert isinstance(found, LocalTask)
    return found


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is asked of a data set, one by one."""
    from datasets import Dataset

    seen: list[Any] = []
    original = Dataset._getitem

    def look(self: Any, key: Any, **named: Any) -> Any:
        seen.append(key)
        return original(self, key, **named)

    monkeypatch.setattr(Dataset, "_getitem", look)
    return seen


def test_scores_are_those_of_mteb_alone(task: LocalTask, looks: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    fast = evaluate(task, "words", encode_words)
    few = len(looks)
    monkeypatch.setattr(mteb_adapter, "read_labels_once", lambda _: None)
    looks.clear()
    slow = evaluate(task, "words", encode_words)
    assert (fast.main_score, fast.scores) == (slow.main_score, slow.scores)
    assert fast.items is not None and slow.items is not None
    np.testing.assert_array_equal(fast.items.columns["value"], slow.items.columns["value"])
    assert 3 * few < len(looks), "a look at each label of each experiment is what is spared"
