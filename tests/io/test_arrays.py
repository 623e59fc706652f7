"""Arrays come back to the last bit; a missing file and any damage are told apart from content."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from unmask.io.arrays import load_arrays, save_arrays
from unmask.io.seals import Damaged


@pytest.mark.parametrize("compressed", [False, True])
def test_arrays_come_back(compressed: bool, tmp_path: Path) -> None:
    arrays = {"vectors": np.array([[1.5, -0.0, np.nan]], np.float32), "names": np.array(["ä", "b"]), "none": np.zeros((0, 3))}
    save_arrays(tmp_path / "a.npz", arrays, compressed=compressed)
    back = load_arrays(tmp_path / "a.npz")
    assert back.keys() == arrays.keys()
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype and back[name].tobytes() == array.tobytes()


def test_any_flipped_byte_is_damage_or_changes_nothing(tmp_path: Path) -> None:
    file, array = tmp_path / "a.npz", np.arange(20)
    save_arrays(file, {"values": array})
    content, noticed = file.read_bytes(), 0
    for place in range(0, len(content), 7):
        file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        try:
            back = load_arrays(file)
        except Damaged:
            noticed += 1
        else:  # dates and attributes of a zip file are no content
            assert all(np.array_equal(values, array) for values in back.values())
    assert noticed > len(content) // 14


def test_what_would_run_code_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", values=np.array([{"a": 1}], dtype=object))
    with pytest.raises(Damaged, match="ValueError"):
        load_arrays(tmp_path / "a.npz")
