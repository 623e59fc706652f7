"""`unmask probe`, run as a user does."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from unmask.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("COLUMNS", "160")

    def invoke(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["unmask", "probe", *map(str, arguments)])
        capfd.readouterr()
        with warnings.catch_warnings():
            try:
                main()
                code = 0
            except SystemExit as stop:
                code = int(stop.code or 0)
        return code, *capfd.readouterr()

    return invoke
