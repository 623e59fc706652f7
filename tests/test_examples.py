"""The scripts of examples/ run, on a random model of two layers, from any folder."""

from __future__ import annotations

import contextlib
import io
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.abuse.forking import import_everything, run
from unmask.cli import main

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
PRINTED = {  # a line that each script prints once it has come to its end
    "compare": "difference",
    "embed": "the same vectors after saving: True",
    "langchain_search": "pancakes",
    "llama_index_search": "pancakes",
    "bertopic_topics": "topic 1:",
    "mixture": "moee:",
    "search": "pancakes",
    "train": "causal/eol/last (1,",
}

NEEDS = {"langchain_search": "langchain_core", "llama_index_search": "llama_index", "bertopic_topics": "bertopic"}

PROGRAM = [sys.executable, "-m", "unmask"]

pytestmark = pytest.mark.slow


def ran(command: list[str]) -> SimpleNamespace:
    """What `python -m unmask` prints, without a process of its own, which would import for seconds."""
    printed = io.TextIOWrapper(io.BytesIO(), "utf-8")
    sys.argv = command[2:]
    with contextlib.redirect_stdout(printed):
        try:
            main()
        except SystemExit as ended:
            assert not ended.code, command
    printed.flush()
    return SimpleNamespace(stdout=printed.buffer.getvalue())  # type: ignore[attr-defined]


@pytest.mark.sample(4)
@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_script_runs(script: Path, tmp_path: Path) -> None:
    pytest.importorskip(NEEDS.get(script.stem, "unmask"))

    def work() -> None:
        started = subprocess.run
        vars(subprocess)["run"] = lambda command, **rest: ran(command) if command[:3] == PROGRAM else started(command, **rest)
        sys.argv = [str(script), "pico"]
        runpy.run_path(str(script), run_name="__main__")

    import_everything()
    (here := tmp_path / "here").mkdir()
    done = run(work, here, tmp_path / "notes")
    assert done.code == 0, done.err
    assert PRINTED[script.stem] in done.out
    assert not list(here.iterdir()), "the script left files behind"


def test_list_is_complete() -> None:
    listed = (EXAMPLES[0].parent / "README.md").read_text(encoding="utf-8")
    assert [script.name for script in EXAMPLES if f"({script.name})" not in listed] == []
