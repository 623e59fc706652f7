"""Results survive kills and name what is broken; conditions tell measurements apart."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unmask.errors import UnmaskError
from unmask.evaluation.results import Conditions, Result, ResultStore
from unmask.io.files import atomic, only_run_in, write_json
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


# --- the store -------------------------------------------------------------------------------------------------------


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


def test_what_was_not_measured_is_not_found(tmp_path: Path) -> None:
    store = store_of(tmp_path, result())
    assert store.get(CONDITIONS.model_copy(update={"dtype": "bfloat16"})) is None


def test_a_result_may_have_no_items(tmp_path: Path) -> None:
    ResultStore(tmp_path).add(result(), None)
    store = ResultStore(tmp_path)
    assert store.get(CONDITIONS) == result()
    assert store.items(result()) is None


def test_a_column_may_be_called_metric(tmp_path: Path) -> None:
    items = Items("mean", {"value": np.array([1.0, 2.0]), "metric": np.array([3.0, 4.0])})
    ResultStore(tmp_path).add(result(), items)
    found = ResultStore(tmp_path).items(result())
    assert found is not None and found.metric == "mean"
    assert list(found.columns["metric"]) == [3.0, 4.0]


def test_the_last_line_of_the_same_conditions_counts(tmp_path: Path) -> None:
    store_of(tmp_path, result(), result().model_copy(update={"main_score": 0.5}))
    found = ResultStore(tmp_path).get(CONDITIONS)
    assert found is not None and found.main_score == 0.5


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


def test_a_first_line_that_was_cut_short_leaves_an_empty_store(tmp_path: Path) -> None:
    store_of(tmp_path, result())
    file = tmp_path / "results.jsonl"
    file.write_bytes(file.read_bytes()[:40])
    assert ResultStore(tmp_path).get(CONDITIONS) is None
    assert len(file.read_bytes()) == 40, "to a reader it may be a line that is being written"
    store_of(tmp_path, result())
    assert len(file.read_bytes().splitlines()) == 1 and ResultStore(tmp_path).get(CONDITIONS) is not None


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        ("{", "line 2 is damaged (it is not JSON"),
        ('{"model": "m"}', "line 2 is damaged (design: it is missing)"),
        ('{"surprise": 1, ', "line 2 is damaged (its checksum does not fit its content)"),
    ],
)
def test_a_broken_line_in_the_middle_is_told_by_its_number_and_missing(broken: str, problem: str, tmp_path: Path) -> None:
    store_of(tmp_path, result(), result(task="last"))
    file = tmp_path / "results.jsonl"
    first, last = file.read_text().splitlines()
    middle = broken + last[1:] if broken.endswith(" ") else broken
    file.write_text(f"{first}\n{middle}\n{last}\n")
    with pytest.warns(UserWarning) as said:
        store = ResultStore(tmp_path)
    assert f"{file}, {problem}" in str(said[0].message)
    assert "counts as missing, and `unmask compare` measures it again" in str(said[0].message)
    assert {one.task for one in store.results} == {"t", "last"}


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


def test_a_template_of_several_lines_stays_on_one_line_of_the_file(tmp_path: Path) -> None:
    odd = result(design='causal/"ü\u2028\n {text}"/last')
    store_of(tmp_path, odd, result())
    assert ResultStore(tmp_path).get(odd.conditions) == odd


# --- conditions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", Conditions.model_fields)
def test_the_key_changes_with_each_field(field: str) -> None:
    value = getattr(CONDITIONS, field)
    other = True if value is None else value + 1 if isinstance(value, int) else value + "x"
    assert CONDITIONS.model_copy(update={field: other}).key != CONDITIONS.key


def test_the_key_is_the_same_in_every_process() -> None:
    code = f"from unmask.evaluation.results import Conditions; print(Conditions(**{CONDITIONS.model_dump()!r}).key)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == CONDITIONS.key


def test_unknown_conditions_are_refused() -> None:
    with pytest.raises(ValueError, match="Extra inputs are not permitted"):
        Conditions(**{**CONDITIONS.model_dump(), "speed": "fast"})


# --- files -----------------------------------------------------------------------------------------------------------


def test_two_runs_in_one_folder_are_refused(tmp_path: Path) -> None:
    code = f"from pathlib import Path; from unmask.io.files import only_run_in\nwith only_run_in(Path({str(tmp_path)!r})): pass"
    with only_run_in(tmp_path):
        with pytest.raises(UnmaskError, match=f"Another run is writing to '{tmp_path}'"), only_run_in(tmp_path):
            pass
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "Another run is writing to" in other.stderr
    with only_run_in(tmp_path):
        pass


def test_a_folder_is_free_again_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError), only_run_in(tmp_path / "new"):
        raise KeyError
    with only_run_in(tmp_path / "new"):
        pass


def test_atomic_leaves_nothing_and_changes_nothing_after_an_exception(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "file.txt"
    with pytest.raises(KeyError), atomic(file) as scratch:
        scratch.write_text("half")
        raise KeyError
    assert list(file.parent.iterdir()) == []
    with atomic(file) as scratch:
        scratch.write_text("whole")
        assert not file.exists()
    with pytest.raises(KeyError), atomic(file) as scratch:
        scratch.write_text("half")
        raise KeyError
    assert [(one.name, one.read_text()) for one in file.parent.iterdir()] == [("file.txt", "whole")]
    assert file.stat().st_mode & 0o777 == 0o644


def test_json_is_written_whole_and_in_any_language(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"a": ["ü", 1, None]})
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {"a": ["ü", 1, None]}
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"a": object()})
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {"a": ["ü", 1, None]}


def test_conditions_of_an_older_version_keep_their_key() -> None:
    older = (
        '{"model":"m","model_revision":"r","adapter":"a","design":"causal/plain/mean","task":"t","task_revision":"tr",'
        '"max_length":512,"dtype":"float32","reference":"ref"}'
    )
    assert Conditions.model_validate_json(older).key == hashlib.sha256(older.encode()).hexdigest()[:20]
    later = older.removesuffix("}") + ',"attn_implementation":"eager"}'
    assert Conditions.model_validate_json(later).key == hashlib.sha256(later.encode()).hexdigest()[:20]
