"""Folders of data: damage is told, and only folders that this program made are removed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.search.made import ROWS, indexed, opened
from unmask.embedder import Embedder
from unmask.errors import UnmaskError
from unmask.io.files import remove
from unmask.io.seals import Damaged
from unmask.search.record import IndexRecord, read_index


@pytest.fixture(scope="module")
def embedder(pico: Callable[..., Embedder]) -> Embedder:
    return pico()


@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_damaged_data_are_told_alike_by_an_update_and_a_search(damage: str, embedder: Embedder, tmp_path: Path) -> None:
    indexed(embedder, tmp_path, store="usearch")
    data = tmp_path / "index" / "data-1"
    if damage == "missing":
        remove(data)
    else:
        (data / "store" / "documents.parquet").write_bytes(b"")
    messages = []
    for use in (lambda: indexed(embedder, tmp_path, ROWS[:2]), lambda: opened(embedder, tmp_path)):
        with pytest.raises(Damaged) as error:
            use()
        messages.append(str(error.value))
    assert messages[0] == messages[1] and "data-1" in messages[0]
    assert messages[0].endswith(f"Make the index again in another folder, or remove '{tmp_path / 'index'}' first.")


def kept(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def test_folders_of_somebody_else_stay(embedder: Embedder, tmp_path: Path) -> None:
    indexed(embedder, tmp_path)
    notes = [
        tmp_path / "index" / name for name in ("data-2024/note.txt", "data-2/note.txt", "data-notes/note.txt", "data-1.txt")
    ]
    for note in notes:
        note.parent.mkdir(exist_ok=True)
        note.write_text("mine")
    (tmp_path / "index" / "data-7").mkdir()
    indexed(embedder, tmp_path, ROWS[:2])
    assert all(note.read_text() == "mine" for note in notes)
    assert kept(tmp_path / "index") == ["data-1.txt", "data-2", "data-2024", "data-3", "data-7", "data-notes", "index.json"]
    assert len(opened(embedder, tmp_path)) == 2


def test_data_that_a_killed_run_left_are_removed(embedder: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(IndexRecord, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            indexed(embedder, tmp_path)
    assert kept(tmp_path / "index") == ["data-1"]
    (tmp_path / "index" / "data-1").rename(tmp_path / "index" / "data-5")
    indexed(embedder, tmp_path)
    assert kept(tmp_path / "index") == ["data-1", "index.json"]


def killed(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["../elsewhere", "data-1/../../elsewhere", "/elsewhere", "data-", "data-0", "data-x", ""])
def test_a_record_names_no_folder_but_one_of_data(name: str, embedder: Embedder, tmp_path: Path) -> None:
    indexed(embedder, tmp_path)
    (tmp_path / "elsewhere").mkdir()
    record = read_index(tmp_path / "index").model_copy(update={"data": name})
    record.write(tmp_path / "index" / "index.json")
    for use in (lambda: opened(embedder, tmp_path), lambda: indexed(embedder, tmp_path, ROWS[:2])):
        with pytest.raises(UnmaskError, match=r"index\.json' is not what this version of unmask wrote: data"):
            use()
    assert (tmp_path / "elsewhere").is_dir()
