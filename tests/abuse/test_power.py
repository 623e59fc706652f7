"""Power cuts and kills: a command that was cut at any of its writes and is run again leaves what an undisturbed run leaves."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.abuse.examples import WRITERS
from tests.abuse.forking import run
from tests.abuse.power import LOSSES
from tests.abuse.recovery import Case, case_of, cuts
from tests.proofs import ALL


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "old").write_bytes(b"old")
    return tmp_path


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
    assert [case.recovers(3, loss) is None for loss in LOSSES] == [False, True]


@pytest.mark.sample(2)
@pytest.mark.parametrize("path", WRITERS, ids=" ".join)
def test_a_command_recovers_from_a_cut(path: tuple[str, ...], furnished: Path, tmp_path: Path) -> None:
    require_recovery(case_of(path, furnished, tmp_path))


def require_recovery(case: Case) -> None:
    case.measure()
    assert case.operations
    faults = [fault for cut, loss in cuts(case.operations, case.name) if (fault := case.recovers(cut, loss))]
    assert not faults, "\n".join(faults)


def save() -> None:
    """Save an embedder where another one may be."""
    from unmask.embedder import Embedder

    Embedder.from_pretrained("headed", device="cpu").save_pretrained("saved")


def save_the_other() -> None:
    from unmask.embedder import Embedder

    Embedder.from_pretrained("pico", "mean", device="cpu").save_pretrained("saved")


def convert() -> None:
    """Convert a bundled model into an empty cache."""
    os.environ["UNMASK_CACHE"] = "cache"
    from unmask.models.bundled import resolve

    resolve("pico")


@pytest.mark.parametrize("work", [save, convert], ids=lambda work: work.__name__)
def test_the_library_recovers_from_a_cut(work: Callable[[], None], furnished: Path, tmp_path: Path) -> None:
    case = Case(work.__name__, work, furnished, tmp_path)
    require_recovery(case)
    assert not list(case.here.rglob("*.unmask-part")), "scratch files of a run that was cut"


def test_a_cut_leaves_the_old_embedder_or_the_new_one(furnished: Path, tmp_path: Path) -> None:
    start = tmp_path / "start"
    shutil.copytree(furnished, start)
    notes = tmp_path / "notes"
    assert run(save_the_other, start, notes).code == 0
    case = Case("replace", save, start, tmp_path)
    case.measure()

    def vectors() -> bytes:
        from unmask.embedder import Embedder

        return Embedder.from_pretrained(case.here / "saved", device="cpu").encode(["x"]).tobytes()

    new = vectors()
    case.begin()
    old = vectors()
    assert old != new
    found = set()
    every = [(cut, loss) for cut in range(1, case.operations + 1) for loss in LOSSES]
    for cut, loss in every if ALL else every[::11]:  # so that each loss takes its turn
        case.begin()
        case.run(cut, loss)
        found.add(vectors())
    assert found == {old, new}
