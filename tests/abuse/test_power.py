"""Power cuts and kills: a command that was cut at any of its writes and is run again leaves what an undisturbed run leaves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.abuse.examples import EXAMPLES
from tests.abuse.forking import run
from tests.abuse.power import CUT, LOSSES, Disk, Loss
from tests.abuse.recovery import Case, case_of, cuts

WRITERS = [path for path, example in EXAMPLES.items() if example.output]


def after_cut(work: object, folder: Path, cut: int, loss: Loss) -> dict[str, bytes]:
    """What a disk holds after work that was cut."""
    here = folder / "here"
    disk = Disk(here, folder / "notes" / "disk", loss)
    assert run(work, here, folder / "notes", disk, cut).code == CUT  # type: ignore[arg-type]
    return {path.name: path.read_bytes() for path in here.iterdir()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "old").write_bytes(b"old")
    return tmp_path


def test_the_disk_loses_what_was_not_synced(folder: Path) -> None:
    def work() -> None:
        Path("new").write_bytes(b"new content")  # 1
        Path("new").rename("old")  # 2
        Path("end").touch()  # 3

    assert after_cut(work, folder, 3, "names") == {"old": b"old"}
    found = after_cut(work, folder, 3, "content")
    assert found.keys() == {"old"}
    assert {after_cut(work, folder, 3, "killed")["old"]} == {b"new content"}


def test_the_disk_keeps_what_was_synced(folder: Path) -> None:
    def work() -> None:
        with Path("new").open("wb") as stream:  # 1
            stream.write(b"new content")
            stream.flush()
            os.fsync(stream.fileno())  # 2
        Path("new").rename("old")  # 3
        here = os.open(".", os.O_RDONLY)
        os.fsync(here)  # 4
        Path("end").touch()  # 5

    assert after_cut(work, folder, 4, "names") == {"old": b"old"}
    assert after_cut(work, folder, 5, "names") == {"old": b"new content"}
    for loss in LOSSES:
        assert after_cut(work, folder, 5, loss)["old"] == b"new content"


def test_a_careless_writer_does_not_pass(folder: Path) -> None:
    def careless() -> None:
        if Path("out").exists():
            return  # done before
        Path("part").write_bytes(b"whole")
        Path("part").rename("out")
        Path("more").touch()

    case = Case("careless", careless, folder / "here", folder)
    case.start = folder / "start"
    (folder / "here").rename(case.start)
    case.measure()
    assert case.operations == 3
    assert [case.recovers(3, loss) is None for loss in ("killed", "names")] == [False, True]
    assert case.recovers(3, "content") is not None


@pytest.mark.parametrize("path", WRITERS, ids=" ".join)
def test_a_command_recovers_from_a_cut(path: tuple[str, ...], furnished: Path, tmp_path: Path) -> None:
    case = case_of(path, furnished, tmp_path)
    case.measure()
    assert case.operations
    faults = [fault for cut, loss in cuts(case.operations, case.name) if (fault := case.recovers(cut, loss))]
    assert not faults, "\n".join(faults)
