"""Jobs: mistakes are found before a model is loaded, and settings of an index stay as they were."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.messages import heard
from tests.search.made import ROWS, indexed, job
from unmask.embedder import Embedder
from unmask.errors import UnmaskError
from unmask.search import job as jobs
from unmask.search.documents import common_type


def test_an_index_has_defaults(tmp_path: Path) -> None:
    planned = job(tmp_path).check()
    assert (planned.store, planned.precision, planned.language, planned.approximate) == ("lance", "float32", "english", False)


def test_an_update_keeps_the_settings(pico: Callable[..., Embedder], tmp_path: Path) -> None:
    given: dict[str, Any] = {"store": "usearch", "precision": "int8", "language": "none", "approximate": True}
    indexed(pico(), tmp_path, **given)
    planned = job(tmp_path).check()
    assert (planned.store, planned.precision, planned.language, planned.approximate) == tuple(given.values())
    others: dict[str, Any] = {"store": "lance", "precision": "float16", "language": "german"}
    for name, other in others.items():
        with pytest.raises(UnmaskError, match=f"was made with {name} {given[name]}, and {other} is given"):
            job(tmp_path, **{name: other}).check()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"store": "lanse"}, "Unknown store 'lanse'. Did you mean 'lance'?"),
        ({"precision": "int9"}, "Unknown precision 'int9'"),
        ({"language": "klingon"}, "Unknown language 'klingon'"),
        ({"store": "lance", "precision": "int8", "approximate": True}, "'lance' has no approximate index of int8 vectors"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(options: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(UnmaskError) as error:
        job(tmp_path, **options).check()
    assert told in str(error.value)
    assert not (tmp_path / "index").exists()


def test_many_documents_need_an_approximate_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "EXACT_UP_TO", len(ROWS) - 1)
    assert job(tmp_path).check().approximate
    with pytest.raises(UnmaskError, match="Use --store usearch"):
        job(tmp_path, precision="int8", store="lance").check()


def test_an_index_that_cannot_grow_names_a_way_that_works(
    pico: Callable[..., Embedder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    indexed(pico(), tmp_path, precision="int8", store="lance")
    monkeypatch.setattr(jobs, "EXACT_UP_TO", len(ROWS) - 1)
    with pytest.raises(UnmaskError, match="Give another folder with --store usearch or another --precision"):
        job(tmp_path).check()
    (tmp_path / "other").mkdir()
    assert job(tmp_path / "other", precision="int8", store="usearch").check().approximate


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "note.txt").write_text("mine")
    with pytest.raises(UnmaskError, match="holds files that are not of an index"):
        job(tmp_path).check()


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unmask.errors._extras", lambda: {"bm25s": "search"})
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "bm25s" else object())
    with pytest.raises(UnmaskError, match=r"needs bm25s, which is not installed: pip install 'unmask\[search\]'"):
        job(tmp_path).check()


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [("integer", "number", "number"), ("text", "text", "text"), ("boolean", "integer", "text"), ("number", "text", "text")],
)
def test_the_type_of_two_columns(one: Any, other: Any, both: str) -> None:
    assert common_type(one, other) == common_type(other, one) == both


@pytest.mark.parametrize("identified", [True, False])
def test_lines_that_stand_for_documents_are_told_with_documents_that_are_kept(
    identified: bool, pico: Callable[..., Embedder], tmp_path: Path
) -> None:
    rows = [{**({"_id": str(number)} if identified else {}), "text": f"text {number}"} for number in range(3)]
    with heard() as messages:
        indexed(pico(), tmp_path, rows)
        job(tmp_path, rows[1:]).check()
        assert not any("--keep-missing" in message for message in messages)
        job(tmp_path, rows[1:], keep_missing=True).check()
    told = [message for message in messages if "--keep-missing" in message]
    assert len(told) == (0 if identified else 1) and all(
        "corpus.jsonl have no id but their line" in message for message in told
    )
