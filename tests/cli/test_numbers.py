"""Numbers that are none, or that no run can mean: exit code 2, one sentence, and no file, for every option of the commands that learn.

The options are read off the command line itself, so that a new one is held to this by existing.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from tests.cases import cases
from unmask.cli import app
from unmask.errors import UnmaskError

MODEL = ["-m", "pico", "--dtype", "float32"]
COMMANDS = {
    "seeds": ["rows.jsonl", "-o", "out.jsonl"],
    "specialise": ["math", *MODEL, "--seeds", "rows.jsonl", "-o", "out"],
    "expert": ["rows.jsonl", *MODEL, "-o", "out"],
    "mix": ["--joint", "--base", "pico", "--lessons", "a=rows.jsonl", "--lessons", "b=rows.jsonl", "-o", "out"],
    "merge": ["one", "two", "--base", "pico", "--method", "ties", "--density", "0.5", "-o", "out"],
    "upcycle": ["pico", "-o", "out"],
    "mine": ["pairs.jsonl", *MODEL, "-o", "out.jsonl"],
    "evaluate-lm": [*MODEL, "--lessons", "a=rows.jsonl"],
}
NEVER = {"int": ["-1", "1" + "0" * 30, "1.5", "x"], "float": ["nan", "inf", "-inf", "1e300", "-1e300", "x"]}
ZERO = {
    "held_out_number",
    "number",
    "steps",
    "batch",
    "accumulate",
    "max_length",
    "lr",
    "router_lr",
    "r",
    "alpha",
    "density",
    "top_k",
    "router_std",
}


def numbers(command: str) -> list[Any]:
    found = typer.main.get_command(app).commands[command]  # type: ignore[attr-defined]
    return [option for option in found.params if kind_of(found, option)]


hints = cache(get_type_hints)  # of a callback; they are evaluated anew at each call


def kind_of(command: Any, option: Any) -> str:
    """ "int" or "float" for an option that takes numbers, or a list of them; otherwise nothing."""
    said = str(hints(command.callback).get(option.name))
    return next((kind for kind in ("float", "int") if re.search(rf"\b{kind}\b", said)), "")


def wrong() -> list[tuple[str, str, str]]:
    found = []
    for command in COMMANDS:
        for option in numbers(command):
            kind = kind_of(typer.main.get_command(app).commands[command], option)  # type: ignore[attr-defined]
            values = [*NEVER[kind], *(["0"] if option.name in ZERO and (command, option.name) != ("mix", "steps") else [])]
            found += [(command, option.opts[0], value) for value in values]
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [{"instruction": f"Add {one} and one.", "output": f"It is {one + 1}."} for one in range(12)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pairs = [{"anchor": f"Text number {one}.", "positive": f"The text of number {one}."} for one in range(12)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    return tmp_path


def run(*given: str) -> tuple[int, str]:
    """Exit code and what was said, as `unmask` itself would give them."""
    found = CliRunner().invoke(app, list(given))
    if isinstance(found.exception, UnmaskError):
        return 2, str(found.exception)
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found.exit_code, found.output


def test_every_command_has_numbers() -> None:
    assert all(numbers(command) for command in COMMANDS)
    assert len(wrong()) > 200


@cases("command, option, value", wrong())
def test_a_number_that_cannot_be_meant(command: str, option: str, value: str, folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    code, said = run(command, *COMMANDS[command], f"{option}={value}" if option.startswith("--") else f"{option}{value}")
    assert code == 2, said
    assert said.strip() and "Traceback" not in said
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_wrong_rate_does_not_stand_in_the_way_of_the_right_one(folder: Path) -> None:
    given = ["expert", "rows.jsonl", *MODEL, "-o", "out", "--steps", "1", "--batch", "2"]
    code, said = run(*given, "--lr", "0")
    assert (code, said) == (2, "lr should be greater than 0, not 0.0.")
    assert run(*given, "--lr", "1e-3")[0] == 0
