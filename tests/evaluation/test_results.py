"""Results are kept durably, found by their conditions, and damage counts as missing."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unmask.evaluation.results import Conditions, Result, ResultStore
from unmask.statistics.bootstrap import Items

CONDITIONS = Conditions(
    model="m",
    model_revision="r",
    adapter="a",
    design="causal/plain/mean",
    task="t",
    task_revision="tr",
    max_length=512,
    dtype="float32",
    reference="ref",
    attn_implementation="eager",
)

ITEMS = Items("spearman", {"predicted": np.array([0.1, 0.7, 0.3]), "gold": np.array([1.0, 3.0, 2.0])})


def result(**changes: Any) -> Result:
    """A result whose conditions differ where they are told to."""
    conditions = CONDITIONS.model_copy(update=changes)
    return Result(
        model=conditions.model,
        design=conditions.design,
        label="mean",
        task=conditions.task,
        kind="sts",
        metric="cosine_spearman",
        main_score=1 / 3,
        interval=(0.1, 0.6),
        n=3,
        scores={"cosine_pearson": 0.1},
        dim=64,
        texts=6,
        tokens=60,
        truncated=1,
        conditions=conditions,
        provenance={"attention": "causal", "versions": {"unmask": "0.1.0"}},
    )


def store_of(folder: Path, *results: Result) -> ResultStore:
    store = ResultStore(folder)
    for one in results:
        store.add(one, ITEMS)
    return store


def test_what_is_kept_is_what_is_found_again(tmp_path: Path) -> None:
    first, second = result(), result(task="other")
    store_of(tmp_path, first, second)
    again = ResultStore(tmp_path)
    assert [again.get(one.conditions) for one in (first, second)] == [first, second]
    items = again.items(first)
    assert items is not None and items.metric == "spearman"
    assert set(items.columns) == {"predicted", "gold"}
    for name, column in ITEMS.columns.items():
        np.testing.assert_array_equal(items.columns[name], column)


def test_a_result_may_have_no_items(tmp_path: Path) -> None:
    ResultStore(tmp_path).add(result(), None)
    store = ResultStore(tmp_path)
    assert store.get(CONDITIONS) == result()
    assert store.items(result()) is None


@pytest.mark.parametrize("cut", [1, 30, 200])
def test_a_line_that_a_kill_cut_short_is_dropped_and_can_be_written_again(cut: int, tmp_path: Path) -> None:
    store_of(tmp_path, result(), result(task="last"))
    file = tmp_path / "results.jsonl"
    file.write_bytes(file.read_bytes()[:-cut])
    store = ResultStore(tmp_path)
    assert store.get(CONDITIONS) == result()
    assert store.get(result(task="last").conditions) is None
    store.add(result(task="last"), ITEMS)
    assert ResultStore(tmp_path).get(result(task="last").conditions) == result(task="last")
    assert len(file.read_text().splitlines()) == 2


def test_a_result_whose_items_are_missing_has_to_be_measured_again(tmp_path: Path) -> None:
    store_of(tmp_path, result(), result(task="other"))
    (tmp_path / "items" / f"{CONDITIONS.key}.npz").unlink()
    store = ResultStore(tmp_path)
    assert store.get(CONDITIONS) is None
    assert store.get(result(task="other").conditions) is not None


def test_the_items_are_there_before_the_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    store = ResultStore(tmp_path)
    monkeypatch.setattr(np, "savez_compressed", fail)
    with pytest.raises(OSError, match="disk full"):
        store.add(result(), ITEMS)
    assert not (tmp_path / "results.jsonl").exists()
    assert list((tmp_path / "items").iterdir()) == []


@pytest.mark.parametrize("field", Conditions.model_fields)
def test_the_key_changes_with_each_field(field: str) -> None:
    value = getattr(CONDITIONS, field)
    other = True if value is None else value + 1 if isinstance(value, int) else value + "x"
    assert CONDITIONS.model_copy(update={field: other}).key != CONDITIONS.key


def test_conditions_of_an_older_version_keep_their_key() -> None:
    older = (
        '{"model":"m","model_revision":"r","adapter":"a","design":"causal/plain/mean","task":"t","task_revision":"tr",'
        '"max_length":512,"dtype":"float32","reference":"ref"}'
    )
    assert Conditions.model_validate_json(older).key == hashlib.sha256(older.encode()).hexdigest()[:20]
    later = older.removesuffix("}") + ',"attn_implementation":"eager"}'
    assert Conditions.model_validate_json(later).key == hashlib.sha256(later.encode()).hexdigest()[:20]
