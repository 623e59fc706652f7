"""Modes: what commands write has the permissions that the umask gives, whoever wrote it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from unmask.cli import app
from unmask.starter import starter_folders, starter_lessons

PACKAGE = Path(__file__).parents[1] / "unmask"


@pytest.fixture
def shared() -> Iterator[None]:
    """A umask of people who share files with their group, and with nobody else."""
    before = os.umask(0o007)
    yield
    os.umask(before)


@pytest.mark.usefixtures("shared")
def test_what_commands_write_follows_the_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "cache"))
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"text": "One."}\n{"text": "Two."}\n')
    learning = ["--steps", "1", "--batch", "2"]
    base, lessons = ["-m", "pico", "--dtype", "float32"], str(starter_lessons("math"))
    task = next(str(folder) for folder in starter_folders() if (folder / "train.jsonl").is_file())
    for command in (
        ["embed", str(texts), *base, "-o", str(tmp_path / "vectors.parquet")],
        ["expert", lessons, *base, "-o", str(tmp_path / "math"), *learning],
        ["expert", lessons, *base, "-o", str(tmp_path / "more"), *learning],
        ["mix", str(tmp_path / "math"), str(tmp_path / "more"), "-o", str(tmp_path / "mixture"), "--lessons", f"math={lessons}",
         "--lessons", f"more={lessons}", *learning],
        ["merge", str(tmp_path / "math"), str(tmp_path / "more"), "-o", str(tmp_path / "merged")],
        ["upcycle", "pico", "-o", str(tmp_path / "upcycled"), "--experts", "2"],
        ["compare", *base, "-t", task, "-d", "causal/plain/mean", "-o", str(tmp_path / "report")],
    ):  # fmt: skip
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, f"{command[0]}: {done.output}"
    modes = {str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert {name.split("/")[0] for name in modes} >= {
        "cache",
        "vectors.parquet",
        "math",
        "mixture",
        "merged",
        "upcycled",
        "report",
    }
    wrong = {name: oct(mode) for name, mode in modes.items() if mode != (0o770 if (tmp_path / name).is_dir() else 0o660)}
    assert not wrong


def test_no_mode_is_written_down() -> None:
    """A mode of our own would open what the umask closes, or close what it opens."""
    written = re.compile(r"chmod\([^)]*0o")
    assert written.search("path.chmod(0o644)") and written.search("os.chmod(path, 0o600)")
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 100
    assert [file for file in files if written.search(file.read_text(encoding="utf-8"))] == []
