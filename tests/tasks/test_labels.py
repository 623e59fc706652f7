"""Labels that are read once change no score, and are read once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score

from tests.tiny import encode_words, labelled, write_rows
from unmask.tasks.find import find_task
from unmask.tasks.kinds.classification import Classification
from unmask.tasks.mteb import labels
from unmask.tasks.mteb.evaluator import evaluate
from unmask.tasks.task import LocalTask


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
    monkeypatch.setattr(Classification, "prepare", lambda *_: None)
    looks.clear()
    slow = evaluate(task, "words", encode_words)
    assert (fast.main_score, fast.scores) == (slow.main_score, slow.scores)
    assert fast.items is not None and slow.items is not None
    np.testing.assert_array_equal(fast.items.columns["value"], slow.items.columns["value"])
    assert 3 * few < len(looks), "a look at each label of each experiment is what is spared"


@pytest.mark.parametrize("kept", [("music", "sport"), ("music", "town"), ("sport", "town"), ("town",)])
def test_a_test_part_that_lacks_a_class_is_scored(kept: tuple[str, ...], tmp_path: Path) -> None:
    rows = labelled(0, 60) + [{"text": f"street house n{number}", "label": "town"} for number in range(30)]
    write_rows(tmp_path / "train.jsonl", rows)
    test = labelled(60, 24) + [{"text": f"house street n{number}", "label": "town"} for number in range(40, 52)]
    write_rows(tmp_path / "test.jsonl", [row for row in test if row["label"] in kept])
    found = find_task(str(tmp_path))
    outcome = evaluate(found, "words", encode_words)
    assert outcome.items is not None
    assert outcome.main_score == pytest.approx(outcome.items.columns["value"].mean())
    assert outcome.main_score > 0.5


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1), st.sampled_from([int, str]))
def test_accuracy_and_f1_are_those_of_scikit_learn_to_the_bit(pairs: list[tuple[int, int]], kind: type) -> None:
    gold, predicted = [kind(label) for label, _ in pairs], np.array([kind(label) for _, label in pairs])
    expected = {"accuracy": accuracy_score(gold, predicted), "f1": f1_score(gold, predicted, average="macro")}
    assert labels.accuracy_and_f1(gold, predicted) == expected
