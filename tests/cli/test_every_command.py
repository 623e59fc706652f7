"""What every command offers: --quiet, --json, the model as an argument or an option, tab completion, and a silent Ctrl-C."""

from __future__ import annotations

import inspect
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.cli.test_cli import Ran, run, texts  # noqa: F401 (fixtures)
from tests.cli.test_outputs import COMMANDS
from tests.in_process import HELP
from unmask.cli import app
from unmask.cli.outputs import Command

Run = Callable[..., Ran]
WITHOUT_ARGUMENTS = [path for path, command in COMMANDS.items() if any(one.name == "model_argument" for one in command.params)]


@pytest.fixture(scope="module")
def model(pico_folder: Callable[[str], Path]) -> Path:
    return pico_folder("llama")


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_quiet_and_json_and_tells_a_result(path: tuple[str, ...]) -> None:
    command = COMMANDS[path]
    options = {option for one in command.params for option in one.opts}
    assert {"--quiet", "--json"} <= options
    if "as_json" not in inspect.signature(command.callback).parameters:
        assert "tell_result" in inspect.getsource(sys.modules[inspect.unwrap(command.callback).__module__])


def test_only_commands_that_take_something_else_have_the_model_as_an_option_alone() -> None:
    with_model = {path for path, command in COMMANDS.items() if any("--model" in one.opts for one in command.params)}
    alone = {" ".join(path) for path in with_model.difference(WITHOUT_ARGUMENTS)}
    expected = "embed, index, ui, mine, specialise, expert, probe clusters, probe prompts, probe pairs"
    assert alone == set(expected.split(", ")) and len(WITHOUT_ARGUMENTS) > 12


@pytest.mark.parametrize("path", WITHOUT_ARGUMENTS, ids=" ".join)
def test_a_model_is_an_argument_or_an_option(path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    command: Any = COMMANDS[path]
    monkeypatch.setattr(command, "requires_model", False)
    for parameter in command.params:
        monkeypatch.setattr(parameter, "required", False)

    def models(*words: str) -> Any:
        given = command.make_context(path[-1], list(words), **HELP).params["model"]
        return list(given) if isinstance(given, tuple) else given

    several = next(one for one in command.params if one.name == "model").multiple
    assert models("m") == models("-m", "m") == models("--model=m") == (["m"] if several else "m")
    assert not models()
    with pytest.raises(Exception, match="Give the model once"):
        models("m", "-m", "m")


def test_no_model_is_a_mistake_in_the_usage(run: Run) -> None:  # noqa: F811
    for words in (["serve"], ["compare", "-t", "starter"], ["export", "--to", "onnx", "-o", "x"], ["upcycle", "-o", "x"]):
        stopped = run(*words)
        assert stopped.code == 2 and "'--model' / '-m'" in stopped.err, words


def test_embed_says_loading_first_and_nothing_when_quiet(run: Run, model: Path, texts: Path) -> None:  # noqa: F811
    words = ["embed", texts, "-m", model, "-d", "mean"]
    spoken = run(*words, "-o", "a.npy")
    assert spoken.out == "" and spoken.err.startswith(f"unmask: loading {model} ...\n")
    assert run(*words, "-o", "b.npy", "--quiet") == Ran(0, "", "")
    told = run(*words, "-o", "c.npy", "--json", "-q")
    assert told.err == "" and json.loads(told.out)["output"] == "c.npy"
    told = run(*words, "-o", "folder", "--json")
    assert json.loads(told.out)["complete"] and "loading" in told.err
    missing = run("embed", "absent.txt", "-m", model, "-o", "d.npy", "--quiet")
    assert missing.code == 2 and "absent.txt" in missing.err  # a mistake is never hidden


def test_json_of_commands_that_print_for_people(run: Run, tmp_path: Path) -> None:  # noqa: F811
    listed = json.loads(run("recipes", "list", "--json").out)
    assert {"recipe", "scales"} == set(listed[0])
    assert "stages" in json.loads(run("recipes", "show", listed[0]["recipe"], "--json").out)
    copied = run("recipes", "copy", listed[0]["recipe"], tmp_path / "mine.toml", "--json")
    assert json.loads(copied.out) == {"file": str(tmp_path / "mine.toml")}
    plan = run("reproduce", "moee", "--scale", "smoke", "--plan", "--json")
    assert "models" in json.loads(plan.out) and plan.code == 0


def test_tab_completes_commands_options_models_and_designs() -> None:
    for words, expected in (
        ("unmask emb", ["embed"]),
        ("unmask embed --prec", ["--precision"]),
        ("unmask serve smol", ["smollm2"]),
        ("unmask embed x -m smol", ["smollm2"]),
        ("unmask compare -d mean,prompteol-", ["mean,prompteol-z"]),
    ):
        variables = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1), "_UNMASK_COMPLETE": "complete_bash"}
        assert CliRunner().invoke(app, [], prog_name="unmask", env=variables).output.split() == expected


def test_ctrl_c_while_the_program_starts_leaves_no_traceback() -> None:
    """Python itself is up when it has imported the package; the imports of the command line are still going on."""
    slow = """
import builtins, time
real = builtins.__import__
def wait(name, *rest):
    if name == "unmask.cli":
        print("here", flush=True)
        time.sleep(60)
    return real(name, *rest)
builtins.__import__ = wait
import unmask.__main__
"""
    with subprocess.Popen([sys.executable, "-c", slow], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "here\n"
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == "" and process.wait() == -signal.SIGINT


def test_every_command_is_of_the_common_class() -> None:
    assert all(isinstance(command, Command) for command in COMMANDS.values())
