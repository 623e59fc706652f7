"""Results are stored durably, found by their conditions, and damage anywhere counts as missing."""

from __future__ import annotations

import hashlib
import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.proofs import ALL
from unmask.errors import UnmaskError
from unmask.evaluation.results import Conditions, Cost, Failure, Result, ResultStore
from unmask.io.arrays import load_arrays, save_arrays
from unmask.io.seals import Damaged
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
ONE_COLUMN = Items("mean", {"value": np.arange(26.0)})
FLIPS, CUTS = (2000, 100) if ALL else (200, 20)
"""In each file: single bits, and positions to cut at. The files are small, so that the sample still hits each line and array often."""


def result(**changes: Any) -> Result:
    """A result whose conditions are changed."""
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


SECOND = result(task="second")


def failure(task: str) -> Failure:
    values: dict[str, Any] = {"label": "mean", "task": task, "kind": "sts", "error": "no score: nan"}
    return Failure(model="m", design="causal/plain/mean", conditions=result(task=task).conditions, **values)


def cost(prompt: str) -> Cost:
    shared = {name: value for name, value in CONDITIONS.model_dump().items() if name in Cost.model_fields}
    measured: dict[str, Any] = {"texts": 9, "tokens": 90, "seconds": 1.25, "peak_memory": 2**30, "hardware": "cpu"}
    return Cost(attention="causal", prompt=prompt, **shared, **measured)


def fill(store: ResultStore) -> None:
    store.add(result(), ITEMS)
    store.add(SECOND, ONE_COLUMN)
    store.add_failure(failure("third"))
    store.add_failure(failure("fourth"))
    store.add_cost(cost("plain"))
    store.add_cost(cost("echo"))


def content(store: ResultStore) -> dict[str, list[Any]]:
    return {"results.jsonl": store.results, "failures.jsonl": store.failures, "costs.jsonl": store.costs}


def test_what_is_stored_is_read_again(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    fill(store)
    again = ResultStore(tmp_path)
    assert content(again) == content(store)
    items = again.items(result())
    assert items is not None and items.metric == "spearman" and set(items.columns) == {"predicted", "gold"}
    for name, column in ITEMS.columns.items():
        np.testing.assert_array_equal(items.columns[name], column)
    store.add(result(task="none"), None)
    assert again.items(result(task="none")) is None, "a result may have no items"


def test_the_items_are_there_before_the_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    store = ResultStore(tmp_path)
    monkeypatch.setattr(np, "savez_compressed", fail)
    with pytest.raises(OSError, match="disk full"):
        store.add(result(), ITEMS)
    assert not (tmp_path / "results.jsonl").exists()


@pytest.mark.parametrize("field", Conditions.model_fields)
def test_the_key_changes_with_each_field(field: str) -> None:
    value = getattr(CONDITIONS, field)
    other = True if value is None else value + 1 if isinstance(value, int) else value + "x"
    assert CONDITIONS.model_copy(update={field: other}).key != CONDITIONS.key


def test_fields_that_came_later_leave_older_keys_as_they_were() -> None:
    older = (
        '{"model":"m","model_revision":"r","adapter":"a","design":"causal/plain/mean","task":"t","task_revision":"tr",'
        '"max_length":512,"dtype":"float32","reference":"ref"}'
    )
    assert Conditions.model_validate_json(older).key == hashlib.sha256(older.encode()).hexdigest()[:20]


def test_nan_is_not_a_score() -> None:
    for change in ({"main_score": float("nan")}, {"scores": {"ami": float("inf")}}, {"interval": (0.1, float("nan"))}):
        with pytest.raises(ValueError, match="finite number"):
            Result(**{name: getattr(result(), name) for name in Result.model_fields} | change)


# --- damage ----------------------------------------------------------------------------------------------------------


def damaged(file: bytes) -> Iterator[bytes]:
    """The content with one bit flipped, or cut short; empty, and with a block of zeros, as a power cut leaves files."""
    chance = random.Random(0)
    for _ in range(FLIPS):
        flipped = bytearray(file)
        flipped[chance.randrange(len(file))] ^= 1 << chance.randrange(8)
        yield bytes(flipped)
    for cut in range(CUTS):
        yield file[: len(file) * cut // CUTS]
    yield bytes(len(file))
    yield file[: len(file) // 2] + bytes(len(file) - len(file) // 2)


@pytest.mark.parametrize("name", ["results.jsonl", "failures.jsonl", "costs.jsonl"])
def test_a_damaged_line_is_missing_with_a_warning_and_can_be_written_again(name: str, tmp_path: Path) -> None:
    fill(store := ResultStore(tmp_path))
    whole, file = content(store), tmp_path / name
    intact, lost = file.read_bytes(), 0
    for changed in damaged(intact):
        file.write_bytes(changed)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            read = content(ResultStore(tmp_path))
        assert all(line in whole[name] for line in read[name])
        assert {other: read[other] for other in whole if other != name} == {o: whole[o] for o in whole if o != name}
        lost += len(whole[name]) - len(read[name])
        is_whole_lines = not changed or changed in intact  # a file cut between two lines
        assert is_whole_lines or caught or read == whole, "what is lost is reported"
    assert lost > FLIPS // 2, "the damage is real"
    for changed in list(damaged(intact))[-3:]:
        file.write_bytes(changed)
        fill(ResultStore(tmp_path))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            again = content(ResultStore(tmp_path))
        assert all(line in again[name] for line in whole[name])


@pytest.mark.parametrize("items", [ITEMS, ONE_COLUMN], ids=["two columns", "one column"])
def test_damaged_or_lost_items_make_their_result_missing(items: Items, tmp_path: Path) -> None:
    ResultStore(tmp_path).add(result(), items)
    [file] = (tmp_path / "items").iterdir()
    missing = 0
    for changed in damaged(file.read_bytes()):
        file.write_bytes(changed)
        store = ResultStore(tmp_path)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            read = store.get(CONDITIONS)
        if read is None:
            missing += 1
            assert "mean on t counts as missing, and `unmask compare` computes it again" in str(caught[0].message)
            continue
        same = store.items(result())
        assert same is not None and same.metric == items.metric and set(same.columns) == set(items.columns)
        assert all(np.array_equal(same.columns[name], column) for name, column in items.columns.items())
    assert missing > FLIPS // 2
    file.unlink()
    with pytest.warns(UserWarning, match="counts as missing"):
        assert ResultStore(tmp_path).get(CONDITIONS) is None
    store.add(result(), items)
    assert ResultStore(tmp_path).get(CONDITIONS) is not None


def test_a_shape_that_shrank_is_damage(tmp_path: Path) -> None:
    file = tmp_path / "x.npz"
    save_arrays(file, {"value": np.arange(26.0)})
    file.write_bytes(
        file.read_bytes().replace(b"(26,)", b"(22,)")
    )  # one bit: numpy reads 22 numbers, and no checksum is compared
    with pytest.raises(Damaged, match="checksum"):
        load_arrays(file)


@pytest.mark.parametrize("foreign", ["broken\n", "a,b\n1,2\n", '{"model": "gpt", "score": 0.5}\n', "no line end"])
@pytest.mark.parametrize("name", ["results.jsonl", "failures.jsonl", "costs.jsonl"])
def test_a_file_of_another_program_is_refused_and_left_alone(name: str, foreign: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(foreign)
    with pytest.raises(UnmaskError, match=r"was not written by unmask\. Give another folder"):
        ResultStore(tmp_path)
    assert (tmp_path / name).read_text() == foreign
