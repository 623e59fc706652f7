"""The scripts of examples/ run, on a random model of two layers, from any folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
PRINTED = {  # a line that each script prints once it has come to its end
    "compare": "difference",
    "embed": "the same vectors after saving: True",
    "mixture": "moee:",
    "search": "pancakes",
    "train": "causal/eol/last (1,",
}

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_script_runs(script: Path, tmp_path: Path) -> None:
    found = subprocess.run([sys.executable, str(script), "pico"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert PRINTED[script.stem] in found.stdout
    assert not list(tmp_path.iterdir()), "the script left files behind"


def test_list_is_complete() -> None:
    listed = (EXAMPLES[0].parent / "README.md").read_text(encoding="utf-8")
    assert [script.name for script in EXAMPLES if f"({script.name})" not in listed] == []
