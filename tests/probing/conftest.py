"""`unmask probe`, run as a user does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.in_process import run_program

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("COLUMNS", "160")

    def invoke(*arguments: str | Path) -> tuple[int, str, str]:
        return run_program(["probe", *arguments], monkeypatch, capfd)

    return invoke
