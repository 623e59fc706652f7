"""Benchmarks still run."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

SCRIPTS = sorted(file.stem for file in (Path(__file__).parents[1] / "benchmarks").glob("[!_]*.py"))


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_benchmark_runs_at_smoke_size(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    importlib.import_module(f"benchmarks.{name}").main(["--smoke"])
    assert f"python -m benchmarks.{name} --smoke" in capsys.readouterr().out
