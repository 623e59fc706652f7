"""Sources: names, folders and patterns become files of rows, each of them once."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from unmask.errors import UnmaskError
from unmask.io.sources import find_files


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of files of rows and others, which tests run in."""
    monkeypatch.chdir(tmp_path)
    for name in ("b.jsonl", "a.txt", "README.md", ".hidden.jsonl", "below/c.csv.gz", "below/.git/d.jsonl", "below/e.parquet"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x\n")
    return tmp_path


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["b.jsonl"], ["b.jsonl"]),
        (["b.jsonl", "a.txt", "./b.jsonl"], ["a.txt", "b.jsonl"]),
        (["."], ["a.txt", "b.jsonl", "below/c.csv.gz", "below/e.parquet"]),
        (["below", "b*"], ["b.jsonl", "below/c.csv.gz", "below/e.parquet"]),
        (["*.txt", "*.jsonl"], ["a.txt", "b.jsonl"]),
        (["below/[ce].*"], ["below/c.csv.gz", "below/e.parquet"]),
    ],
)
def test_names_folders_and_patterns_become_files(given: list[str], expected: list[str], corpus: Path) -> None:
    assert [str(file) for file in find_files(given)] == expected


def test_links_in_a_folder_are_left_out_and_a_link_that_is_named_is_followed(corpus: Path) -> None:
    (corpus / "below" / "link.jsonl").symlink_to(corpus / "b.jsonl")
    (corpus / "below" / "loop").symlink_to(corpus)
    assert [file.name for file in find_files(["below"])] == ["c.csv.gz", "e.parquet"]
    assert find_files(["below/link.jsonl"]) == [Path("below/link.jsonl")]
    assert find_files(["below/link.jsonl", "b.jsonl"]) == [Path("below/link.jsonl")]  # the same file


def test_the_output_is_left_out(corpus: Path) -> None:
    assert [file.name for file in find_files(["."], corpus / "below")] == ["a.txt", "b.jsonl"]
    assert [file.name for file in find_files(["."], corpus / "b.jsonl")] == ["a.txt", "c.csv.gz", "e.parquet"]
    with pytest.raises(UnmaskError, match="The only files of rows are in the output"):
        find_files(["below"], Path("below"))


def test_a_folder_that_cannot_be_read_is_no_gap(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(place: str = ".") -> None:
        raise PermissionError(errno.EACCES, "Permission denied", place)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(UnmaskError, match=r"'below' cannot be read: Permission denied"):
        find_files(["below"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("nowhere", "There is no file or folder 'nowhere'"),
        ("*.csv", r"No file matches '\*\.csv'"),
        ("README.md", r"'README\.md': files of rows end with \.jsonl, .* not '\.md'"),
        ("empty", "'empty' holds no file of rows"),
    ],
)
def test_what_stands_for_no_file_of_rows_is_refused(given: str, message: str, corpus: Path) -> None:
    (corpus / "empty").mkdir()
    with pytest.raises(UnmaskError, match=message):
        find_files([given])
