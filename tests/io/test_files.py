"""Files appear whole or not at all, follow the umask, are held by one run, and never overwrite an input."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from unmask.errors import UnmaskError
from unmask.io import files
from unmask.io.files import (
    append_line,
    atomic,
    atomic_folder,
    check_output,
    inside,
    make_own,
    only_run_in,
    only_writer_of,
    remove,
    remove_own,
)


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


class TestAtomic:
    def test_a_failed_write_leaves_the_old_file_and_nothing_else(self, tmp_path: Path) -> None:
        file = tmp_path / "a.txt"
        file.write_text("old")
        with pytest.raises(KeyError), atomic(file) as scratch:
            scratch.write_text("new")
            raise KeyError
        assert file.read_text() == "old" and names(tmp_path) == ["a.txt"]

    @pytest.mark.parametrize("mask", [0o022, 0o077])
    def test_the_umask_decides_who_may_read(self, tmp_path: Path, mask: int) -> None:
        with umask(mask):
            with atomic(tmp_path / "a.txt") as scratch:
                scratch.unlink()  # as a writer does that makes a private file of its own and renames it
                os.close(os.open(scratch, os.O_CREAT | os.O_WRONLY, 0o600))
            with atomic_folder(tmp_path / "b") as folder:
                (folder / "c").mkdir(0o700)
                (folder / "c" / "d.txt").touch(0o600)
        assert mode(tmp_path / "a.txt") == mode(tmp_path / "b" / "c" / "d.txt") == 0o666 & ~mask
        assert mode(tmp_path / "b") == mode(tmp_path / "b" / "c") == 0o777 & ~mask


class TestAtomicFolder:
    def test_a_folder_in_the_way_is_kept(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "mine.txt").write_text("mine")
        with pytest.raises(UnmaskError, match="exists"), atomic_folder(tmp_path / "a"):
            raise AssertionError("the block must not run")
        assert names(tmp_path / "a") == ["mine.txt"] and names(tmp_path) == ["a"]

    @pytest.mark.parametrize("exchanges", [True, False])
    def test_what_may_be_replaced_is_replaced(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanges: bool) -> None:
        if not exchanges:
            monkeypatch.setattr(files, "_exchange", lambda *_: False)
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "old.txt").write_text("old")
        with atomic_folder(tmp_path / "a", replaces=lambda folder: (folder / "old.txt").is_file()) as scratch:
            (scratch / "new.txt").write_text("new")
        assert names(tmp_path / "a") == ["new.txt"] and names(tmp_path) == ["a"]

    def test_a_failure_leaves_the_old_folder(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "old.txt").write_text("old")
        with pytest.raises(KeyError), atomic_folder(tmp_path / "a", replaces=lambda _: True) as scratch:
            (scratch / "new.txt").write_text("new")
            raise KeyError
        assert names(tmp_path / "a") == ["old.txt"] and names(tmp_path) == ["a"]


class TestCheckOutput:
    def test_an_input_is_refused_by_any_of_its_names(self, tmp_path: Path) -> None:
        (tmp_path / "in.txt").write_text("text")
        (tmp_path / "sub").mkdir()
        (tmp_path / "link.txt").symlink_to(tmp_path / "in.txt")
        os.link(tmp_path / "in.txt", tmp_path / "hard.txt")
        for name in ("in.txt", "sub/../in.txt", "link.txt", "hard.txt"):
            with pytest.raises(UnmaskError, match="is an input"):
                check_output(tmp_path / name, [None, "smollm2", tmp_path / "in.txt"])

    @pytest.mark.parametrize(
        "output, folder, problem",
        [("file/out.txt", False, "is a file, not a folder"), ("file/a/b", True, "is a file, not a folder"), ("", False, "is a folder"),
         ("file", True, "is a file")],
    )  # fmt: skip
    def test_what_is_in_the_way_is_named(self, tmp_path: Path, output: str, folder: bool, problem: str) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(UnmaskError, match=problem):
            check_output(Path(f"{tmp_path}/{output}"), folder=folder)


class TestLocks:
    def test_one_writer_at_a_time(self, tmp_path: Path) -> None:
        with (
            only_writer_of(tmp_path / "a"),
            pytest.raises(UnmaskError, match="Another run is writing"),
            only_writer_of(tmp_path / "a"),
        ):
            pass  # fmt: skip
        with only_writer_of(tmp_path / "a"), only_writer_of(tmp_path / "b"):
            pass

    def test_scratch_of_killed_runs_goes_and_nothing_else(self, tmp_path: Path) -> None:
        for name in (".a.1234abcd.unmask-part", ".b.1234abcd.unmask-part", ".a.part"):
            (tmp_path / name).touch()
        (tmp_path / "items").mkdir()
        (tmp_path / "items" / ".c.1234abcd.unmask-part").touch()
        with only_writer_of(tmp_path / "a"):
            assert {".b.1234abcd.unmask-part", ".a.part"} <= set(names(tmp_path)) and ".a.1234abcd.unmask-part" not in names(
                tmp_path
            )
        with only_run_in(tmp_path):
            assert ".a.part" in names(tmp_path) and names(tmp_path / "items") == []

    def test_scratch_of_a_run_that_goes_on_stays(self, tmp_path: Path) -> None:
        """Whoever starts in the folder above leaves it alone, also where a writer has put another file in its place."""
        with atomic(tmp_path / "items" / "a.txt") as file, atomic_folder(tmp_path / "b") as folder:
            file.unlink()
            file.write_text("whole")
            (folder / "c.txt").write_text("whole")
            with only_run_in(tmp_path), only_writer_of(tmp_path / "b"):
                assert file.is_file() and (folder / "c.txt").is_file()
        assert names(tmp_path) == [".b.lock", ".lock", "b", "items"]
        assert names(tmp_path / "items") == ["a.txt"] and names(tmp_path / "b") == ["c.txt"]


class TestARunThatFails:
    def test_it_leaves_no_folder_that_was_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(RuntimeError), only_run_in(tmp_path / "new" / "deep"):
            make_own(tmp_path / "new" / "deep")
            raise RuntimeError
        assert names(tmp_path) == []

    def test_it_leaves_what_it_has_written(self, tmp_path: Path) -> None:
        with pytest.raises(RuntimeError), only_run_in(tmp_path / "new"):
            make_own(tmp_path / "new")
            (tmp_path / "new" / "x").touch()
            raise RuntimeError
        assert set(names(tmp_path / "new")) == {".lock", ".unmask-made", "x"}


def test_only_an_own_folder_is_removed(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    make_own(tmp_path / "ours")
    (tmp_path / "ours" / "x").touch()
    for folder in ("theirs", "ours", "absent"):
        remove_own(tmp_path / folder)
    assert names(tmp_path) == ["theirs"]
    remove(tmp_path / "theirs")
    remove(tmp_path / "theirs")
    assert names(tmp_path) == []


@pytest.mark.parametrize("name", ["../x", "a\\b", "..", ""])
def test_a_name_never_leaves_its_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnmaskError, match="not a plain file name"):
        inside(tmp_path, name)


def test_a_torn_line_is_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    append_line(file, "one")
    with file.open("a") as lines:
        lines.write("tor")
    append_line(file, "two")
    assert file.read_text() == "one\ntwo\n"
