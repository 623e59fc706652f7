"""Run the program in this process, as the shell would."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from unmask.cli import main

HELP: dict[str, Any] = {"help_option_names": ["-h", "--help"]}
"""For a context without the program above it. A command keeps the help option of its first context, for all tests of the process."""


def run_program(
    words: Sequence[str | Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> tuple[int, str, str]:
    """The exit code of `unmask WORDS`, and what it wrote to standard output and standard error."""
    monkeypatch.setattr(sys, "argv", ["unmask", *map(str, words)])
    capfd.readouterr()
    with warnings.catch_warnings():
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
    return code, *capfd.readouterr()
