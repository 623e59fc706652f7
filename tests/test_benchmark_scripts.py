"""Every script in benchmarks/ still runs. A new one is tested by existing; it needs a `main(arguments)` that knows `--smoke`."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = sorted(file.stem for file in FOLDER.glob("*.py") if not file.stem.startswith("_"))


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_benchmark_runs_at_smoke_size(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    importlib.import_module(f"benchmarks.{name}").main(["--smoke"])
    assert capfd.readouterr().out.strip()


def test_there_are_benchmarks() -> None:
    assert {"encode", "train", "mixture"} <= set(SCRIPTS)
