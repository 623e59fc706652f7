"""What was written is read back; a single changed bit is noticed; what older versions wrote is read as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from unmask.io.seals import (
    Damaged,
    check_seal,
    load_tensors,
    open_line,
    read_record,
    save_tensors,
    seal,
    seal_line,
    write_record,
)

RECORD = {"seed": 3, "rate": 0.1, "name": "émile", "nested": {"list": [1, 2.5, None, True]}}
TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(3, dtype=torch.bfloat16), "c": torch.tensor(4)}


def flips(content: bytes) -> list[bytes]:
    """The content with one flipped bit in each byte."""
    return [content[:at] + bytes([content[at] ^ (1 << at % 8)]) + content[at + 1 :] for at in range(len(content))]


def test_a_flipped_bit_of_a_line_is_noticed() -> None:
    line = seal_line(RECORD).encode()
    assert open_line(line) == RECORD
    for flipped in flips(line):
        with pytest.raises(Damaged):
            open_line(flipped)


@pytest.mark.filterwarnings("ignore:.*is damaged")
def test_a_damaged_record_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    assert read_record(file) is None
    write_record(file, RECORD)
    assert read_record(file) == RECORD
    whole = file.read_bytes()
    for damaged in [whole[:cut] for cut in range(len(whole) - 1)]:
        file.write_bytes(damaged)
        assert read_record(file) is None
    for damaged in flips(whole):
        file.write_bytes(damaged)
        assert read_record(file) in (None, RECORD)  # a flip in the layout changes nothing


class TestFolders:
    def make(self, folder: Path) -> Path:
        (folder / "sub").mkdir(parents=True)
        (folder / "sub" / "weights.bin").write_bytes(b"weights")
        (folder / "config.json").write_text("{}")
        (folder / "README.md").write_text("card")
        return folder

    def test_changes_are_noticed(self, tmp_path: Path) -> None:
        folder = self.make(tmp_path / "a")
        check_seal(folder)
        seal(folder)
        check_seal(folder)
        (folder / "README.md").write_text("edited by hand")
        (folder / "new.txt").touch()
        check_seal(folder)
        (folder / "sub" / "weights.bin").write_bytes(b"weightt")
        with pytest.raises(Damaged, match=r"weights\.bin' was changed or damaged"):
            check_seal(folder)
        (folder / "sub" / "weights.bin").unlink()
        with pytest.raises(Damaged, match=r"weights\.bin' is missing"):
            check_seal(folder)


def test_a_flipped_bit_of_tensors_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    save_tensors(file, TENSORS)
    loaded = load_tensors(file)
    assert loaded.keys() == TENSORS.keys() and all(torch.equal(loaded[name], TENSORS[name]) for name in TENSORS)
    same = 0
    for flipped in flips(file.read_bytes()):
        file.write_bytes(flipped)
        try:
            loaded = load_tensors(file)
        except Damaged:
            continue
        assert loaded.keys() == TENSORS.keys() and all(torch.equal(loaded[name], TENSORS[name]) for name in TENSORS)
        same += 1
    assert same < 15  # flips in the name of the format and in the padding of the header


def test_equal_tensors_are_equal_bytes(tmp_path: Path) -> None:
    tensors = {"b": torch.arange(3.0), "a é": torch.ones(2, 2)}
    for place in range(8):  # a random order would not be the same eight times
        save_tensors(tmp_path / str(place), tensors, {"one": "1", "two": "2", "three": "3"})
    assert len({(tmp_path / str(place)).read_bytes() for place in range(8)}) == 1
    assert load_tensors(tmp_path / "0").keys() == tensors.keys()


def test_the_seal_and_the_card_of_a_folder_below_are_content(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "README.md").write_text("A card.")
    seal(tmp_path / "below")
    (tmp_path / "README.md").write_text("A card.")
    seal(tmp_path)
    (tmp_path / "README.md").write_text("Edited.")
    check_seal(tmp_path)
    for file in ("README.md", "checksums.json"):
        before = (tmp_path / "below" / file).read_text()
        (tmp_path / "below" / file).write_text(before + " ")
        with pytest.raises(Damaged, match=file):
            check_seal(tmp_path)
        (tmp_path / "below" / file).write_text(before)
