"""`unmask reproduce STUDY --plan` shows what a study would measure, and its help of --set says what works."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tests.in_process import run_program
from unmask.cli import app
from unmask.cli.reproduce import _run_on_models
from unmask.errors import UnmaskError
from unmask.models.source import Source

GROUP: Any = typer.main.get_command(app)
STUDIES = GROUP.commands["reproduce"].commands
NAMES = {"self-moe": "ablations", "routers": "configurations"}
Shown = Callable[..., dict[str, Any]]


def words(study: str, scale: str, *more: str) -> list[str]:
    return ["reproduce", study, "--scale", scale, "--plan", *more]


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shown:
    """What --plan prints in an empty folder, where there is neither data nor a model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNMASK_DATA", str(tmp_path / "nowhere"))
    for part in ("__post_init__", "__init__"):
        monkeypatch.setattr(Source, part, lambda *_, **__: pytest.fail("a model is looked for"), raising=False)

    def run(*given: str) -> dict[str, Any]:
        done = CliRunner().invoke(app, words(*given), catch_exceptions=False)
        assert (done.exit_code, done.stderr, list(tmp_path.iterdir())) == (0, "", [])
        return dict(json.loads(done.stdout))

    return run


def example_of(study: str) -> str:
    """The setting that the help of --set names."""
    [option] = (option for option in STUDIES[study].params if option.name == "settings")
    [example] = re.findall(r"such as '(.*)'", option.help)
    return str(example)


@pytest.mark.parametrize("study", STUDIES)
def test_the_setting_that_the_help_names_works_and_is_shown(study: str, shown: Shown) -> None:
    example = example_of(study)
    [(key, value)] = tomllib.loads(example).items()
    before, after = shown(study, "paper"), shown(study, "paper", "--set", example)
    assert after == before | {key: value} and before[key] != value


@pytest.mark.parametrize("study", STUDIES)
def test_the_names_that_are_shown_are_those_that_a_setting_may_hold(
    study: str, shown: Shown, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    [(key, names)] = shown(study, "smoke")["allowed"].items()
    assert key == NAMES.get(study, "only")
    assert shown(study, "smoke", "--set", f"{key}={json.dumps(names)}")[key] == names
    wrong = json.dumps([*names, f"{names[-1]}x"])
    code, out, error = run_program(words(study, "smoke", "--set", f"{key}={wrong}"), monkeypatch, capfd)
    assert (code, out) == (2, "") and f"'{names[-1]}x'. Did you mean '{names[-1]}'?" in error


@pytest.mark.parametrize("study", STUDIES)
def test_a_plan_names_the_base_models_that_would_be_used(study: str, shown: Shown) -> None:
    plan = shown(study, "paper")
    assert plan["models"] and plan["max_length"] >= 128 and "claims" not in plan
    assert shown(study, "paper", "-m", "one", "-m", "two") == plan | {"models": ["one", "two"]}


@pytest.mark.parametrize("name", ["report.md", "results.json", "study.json"])
def test_a_file_of_somebody_else_is_not_replaced(name: str, tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / name).write_text("my notes")
    with pytest.raises(UnmaskError, match=f"{name}' was not written by unmask"):
        _run_on_models(["one", "two"], tmp_path, lambda *_: pytest.fail("the first study begins"))
