"""Folders of data: damage is told, and only folders that this program made are removed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.search.made import ROWS, indexed, opened
from unmask.embedder import Embedder
from unmask.io.files import remove
from unmask.io.seals import Damaged


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
