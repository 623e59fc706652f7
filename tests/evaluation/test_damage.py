"""Every file of a comparison, cut short anywhere and with any bit flipped: as before, or missing and said; never another content."""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.evaluation.test_results import ITEMS, result
from tests.proofs import ALL
from unmask.encoding.vector_store import LostRows, StoredRows, VectorStore, key_of
from unmask.errors import UnmaskError
from unmask.evaluation.results import Conditions, Cost, Failure, Result, ResultStore
from unmask.io.arrays import load_arrays, save_arrays
from unmask.io.seals import Damaged
from unmask.statistics.bootstrap import Items

FLIPS, CUTS = (2000, 100) if ALL else (200, 20)
"""In each file: single bits, and places to cut at. The files are small, so that the sample still hits each line and each array often."""
OTHER = result(task="other")
ONE_COLUMN = Items("mean", {"value": np.arange(26.0)})
KEYS = [key_of(text, None) for text in "abcdef"]
ROWS = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)


def damaged(content: bytes) -> Iterator[bytes]:
    """The content with one bit flipped, or cut short; empty, and with a block of zeros, as a power cut leaves files."""
    chance = random.Random(0)
    for _ in range(FLIPS):
        flipped = bytearray(content)
        flipped[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        yield bytes(flipped)
    for cut in range(CUTS):
        yield content[: len(content) * cut // CUTS]
    yield bytes(len(content))
    yield content[: len(content) // 2] + bytes(len(content) - len(content) // 2)


def cost(**changes: Any) -> Cost:
    given: dict[str, Any] = {"model": "m", "model_revision": "r", "attention": "causal", "prompt": "plain", "task": "t"}
    return Cost(**given | {"texts": 9, "tokens": 90, "seconds": 1.25, "peak_memory": 2**30, "hardware": "cpu"} | changes)


def failure(task: str) -> Failure:
    conditions = result(task=task).conditions
    given: dict[str, Any] = {"label": "mean", "task": task, "kind": "sts", "error": "no score: nan", "conditions": conditions}
    return Failure(model="m", design="causal/plain/mean", **given)


def filled(folder: Path) -> ResultStore:
    store = ResultStore(folder)
    store.add(result(), ITEMS)
    store.add(OTHER, ONE_COLUMN)
    store.fail(failure("third"))
    store.fail(failure("fourth"))
    store.spend(cost())
    store.spend(cost(prompt="echo"))
    return store


def held(store: ResultStore) -> dict[str, list[str]]:
    return {
        "results.jsonl": [one.model_dump_json() for one in store.results],
        "failures.jsonl": [one.model_dump_json() for one in store.failures],
        "costs.jsonl": [one.model_dump_json() for one in store.costs],
    }


@pytest.mark.parametrize("name", ["results.jsonl", "failures.jsonl", "costs.jsonl"])
def test_a_damaged_line_is_missing_and_said_and_its_folder_goes_on(name: str, tmp_path: Path) -> None:
    whole = held(filled(tmp_path))
    file = tmp_path / name
    content = file.read_bytes()
    lost = 0
    for changed in damaged(content):
        file.write_bytes(changed)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            store = ResultStore(tmp_path)
        found = held(store)
        assert set(found[name]) <= set(whole[name])
        assert {other: found[other] for other in whole if other != name} == {o: whole[o] for o in whole if o != name}
        lost += len(whole[name]) - len(found[name])
        silent = not changed or changed in content  # a file cut between two lines is whole lines
        assert silent or said or found == whole, "what is lost is said"
    assert lost > FLIPS // 2, "the damage is real"
    for changed in list(damaged(content))[-3:]:
        file.write_bytes(changed)
        store = ResultStore(tmp_path)
        store.add(result(), ITEMS)
        store.add(OTHER, ONE_COLUMN)
        store.fail(failure("third"))
        store.spend(cost())
        assert {one.task for one in ResultStore(tmp_path).results} == {"t", "other"}
        assert "third" in {one.task for one in ResultStore(tmp_path).failures} and cost() in ResultStore(tmp_path).costs


@pytest.mark.parametrize("items", [ITEMS, ONE_COLUMN], ids=["two columns", "one column"])
def test_damaged_items_make_their_result_missing(items: Items, tmp_path: Path) -> None:
    ResultStore(tmp_path).add(result(), items)
    [file] = (tmp_path / "items").iterdir()
    missing = 0
    for changed in damaged(file.read_bytes()):
        file.write_bytes(changed)
        store = ResultStore(tmp_path)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = store.get(result().conditions)
        if found is None:
            missing += 1
            assert "mean on t counts as missing, and `unmask compare` measures it again" in str(said[0].message)
            continue
        same = store.items(result())
        assert same is not None and same.metric == items.metric and set(same.columns) == set(items.columns)
        assert all(np.array_equal(same.columns[name], column) for name, column in items.columns.items())
    assert missing > FLIPS // 2
    store.add(result(), items)
    assert ResultStore(tmp_path).get(result().conditions) is not None


def test_damaged_vectors_are_gone_whenever_the_damage_is_done(tmp_path: Path) -> None:
    shelf = StoredRows(tmp_path)
    shelf.add(KEYS[:2], ROWS[:2])
    shelf.add(KEYS[2:], ROWS[2:])
    file = sorted(tmp_path.glob("*.npz"))[1]
    content = file.read_bytes()
    gone = 0
    for number, changed in enumerate(damaged(content)):
        file.write_bytes(content)
        before = StoredRows(tmp_path) if number % 20 == 0 else None
        file.write_bytes(changed)
        after = StoredRows(tmp_path)
        if KEYS[2] in after:
            np.testing.assert_array_equal(after.get(KEYS), ROWS)
            continue
        gone += 1
        assert (after.damaged, [key in after for key in KEYS]) == (1, [True] * 2 + [False] * 4)
        if before is not None:
            file.write_bytes(changed)
            _damaged_while_open(before)
            file.with_name("00000002.npz").unlink()
    assert gone > FLIPS // 2


def test_a_shape_that_shrank_is_damage(tmp_path: Path) -> None:
    file = tmp_path / "x.npz"
    save_arrays(file, {"value": np.arange(26.0)})
    content = file.read_bytes()
    assert content.count(b"(26,)") == 1
    file.write_bytes(content.replace(b"(26,)", b"(22,)"))  # one bit: numpy reads 22 numbers, and no checksum is compared
    with pytest.raises(Damaged, match="checksum"):
        load_arrays(file)


def _damaged_while_open(shelf: StoredRows) -> None:
    with pytest.raises(LostRows):
        shelf.get(KEYS)
    assert [key in shelf for key in KEYS] == [True] * 2 + [False] * 4
    shelf.add(KEYS[2:], ROWS[2:])
    np.testing.assert_array_equal(shelf.get(KEYS), ROWS)


def test_a_block_that_holds_other_rows_is_damaged_too(tmp_path: Path) -> None:
    shelf = StoredRows(tmp_path)
    shelf.add(KEYS[:3], ROWS[:3])
    shelf.add(KEYS[3:], ROWS[3:])
    one, other = sorted(tmp_path.glob("*.npz"))
    one.write_bytes(other.read_bytes())
    with pytest.raises(LostRows):
        shelf.get(KEYS)


# --- other people's files, older and newer ones ----------------------------------------------------------------------


@pytest.mark.parametrize("content", ["broken\n", "a,b\n1,2\n", '{"model": "gpt", "score": 0.5}\n', "no line end", "{}"])
@pytest.mark.parametrize("name", ["results.jsonl", "failures.jsonl", "costs.jsonl"])
def test_a_file_of_somebody_else_is_refused_and_left_alone(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UnmaskError, match=r"was not written by unmask\. Give another folder"):
        ResultStore(tmp_path)
    assert (tmp_path / name).read_text() == content


def test_a_folder_of_an_older_version_is_read_as_it_is(tmp_path: Path) -> None:
    filled(tmp_path)
    for name, lines in held(ResultStore(tmp_path)).items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))  # as they were written: without checksums
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store = ResultStore(tmp_path)
        assert store.get(result().conditions) == result() and len(store.failures) == len(store.costs) == 2
    store.add(result(task="new"), ITEMS)
    assert len(ResultStore(tmp_path).results) == 3


@pytest.mark.parametrize("field", ["main_score", "scores"])
def test_a_score_that_an_older_version_wrote_as_null_is_missing(field: str, tmp_path: Path) -> None:
    filled(tmp_path)
    content = json.loads(OTHER.model_dump_json())
    content[field] = {"ami": None} if field == "scores" else None
    lines = [result().model_dump_json(), json.dumps(content)]
    (tmp_path / "results.jsonl").write_text("".join(f"{line}\n" for line in lines))
    with pytest.warns(UserWarning, match=rf"results\.jsonl, line 2 is damaged \({field}.*valid number\)"):
        store = ResultStore(tmp_path)
    assert store.get(result().conditions) == result() and store.get(OTHER.conditions) is None
    store.add(OTHER, ONE_COLUMN)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(ResultStore(tmp_path).results) == 2, "the damaged line is gone"


def test_a_line_of_a_newer_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Newer(Result):
        surprise: int = 1

    filled(tmp_path)
    fields = {name: getattr(result(), name) for name in Result.model_fields}
    ResultStore(tmp_path).add(Newer(**fields | {"conditions": Conditions(**result(task="n").conditions.model_dump())}), ITEMS)
    with pytest.raises(
        UnmaskError, match=r"line 3 was written by a newer version of unmask \(surprise: this name is unknown\)"
    ):
        ResultStore(tmp_path)


def test_nan_is_no_result(tmp_path: Path) -> None:
    for change in ({"main_score": float("nan")}, {"scores": {"ami": float("inf")}}, {"interval": (0.1, float("nan"))}):
        with pytest.raises(ValueError, match="finite number"):
            Result(**{name: getattr(result(), name) for name in Result.model_fields} | change)


def test_vectors_lie_in_a_private_folder_and_nothing_else_is_removed(tmp_path: Path) -> None:
    (tmp_path / "vectors").mkdir()
    (tmp_path / "vectors" / "mine.npy").write_text("mine")
    cache = VectorStore.beside(tmp_path)
    cache.stored("one").add(KEYS, ROWS)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".unmask-vectors", "vectors"]
    cache.forget()
    assert [path.name for path in tmp_path.rglob("*")] == ["vectors", "mine.npy"]


def test_a_folder_of_vectors_with_other_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".unmask-vectors").mkdir()
    (tmp_path / ".unmask-vectors" / "mine").write_text("mine")
    with pytest.raises(UnmaskError, match="the folder holds other files"):
        VectorStore.beside(tmp_path)
    assert (tmp_path / ".unmask-vectors" / "mine").read_text() == "mine"
