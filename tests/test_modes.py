"""Whatever commands write has the permissions that the umask gives."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from unmask.cli import app
from unmask.starter import starter_folders, starter_lessons


def test_what_commands_write_follows_the_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNMASK_CACHE", "cache")
    lessons = starter_lessons("math")
    task = next(folder for folder in starter_folders() if (folder / "train.jsonl").is_file())
    commands = f"""
        embed {lessons} --column output -m pico -o vectors.parquet
        expert {lessons} -m pico -o math --steps 1 --batch 2
        upcycle pico -o upcycled --experts 2
        compare -m pico -t {task} -d mean -o report"""
    umask = os.umask(0o007)
    try:
        for command in commands.strip().splitlines():
            done = CliRunner().invoke(app, command.split())
            assert done.exit_code == 0, f"{command}: {done.output}"
    finally:
        os.umask(umask)
    wrong = [path for path in tmp_path.rglob("*") if path.stat().st_mode & 0o777 != (0o770 if path.is_dir() else 0o660)]
    assert not wrong and {path.name for path in tmp_path.iterdir()} >= {
        "cache",
        "vectors.parquet",
        "math",
        "upcycled",
        "report",
    }
