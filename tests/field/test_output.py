"""Standard output of any encoding: a C locale, a redirect on Windows, `PYTHONIOENCODING=latin-1`."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiny import write_task
from unmask.cli import main

Run = Callable[..., bytes]
NAME = "größe-日本-🙂"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The bytes that a command writes to a standard output of this encoding."""
    monkeypatch.chdir(tmp_path)

    def written(encoding: str, *words: str) -> bytes:
        output = io.BytesIO()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", io.TextIOWrapper(output, encoding=encoding, write_through=True))
            patch.setattr(sys, "argv", ["unmask", *words])
            try:
                main()
            except SystemExit as stop:
                assert not stop.code, words
            return output.getvalue()

    return written


def test_tables_and_json_are_written_in_any_encoding(run: Run) -> None:
    write_task(Path(NAME), "sts")
    for encoding in ("latin-1", "utf-16", "utf-8"):
        content = json.loads(run(encoding, "tasks", NAME, "--json").decode(encoding))
        assert content["name"] == NAME and content["tasks"][0]["task"] == NAME
        table = run(encoding, "tasks", NAME).decode(encoding)
        assert (NAME if encoding.startswith("utf") else r"-\u65e5\u672c-\U0001f642") in table
    assert "größe" in run("latin-1", "tasks", NAME).decode("latin-1"), "what the encoding has stays"
