"""What every command has in common: help, --quiet, --json, the model, refused values, and outputs that are not inputs.

The cases come from the tree of commands, so new commands and options are included.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tests.in_process import HELP
from unmask.cli import app
from unmask.cli.command import Command
from unmask.cli.options import ADVANCED, Writes
from unmask.errors import UnmaskError

GROUP: Any = typer.main.get_command(app)


def leaves(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, (*path, name))
        else:
            yield (*path, name), command


COMMANDS = dict(leaves(GROUP))
every_command = pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
RESUMABLE = {
    *("compare", "recommend", "embed", "index", "train", "specialise", "expert", "mix", "probe routing", "probe experts"),
    *(f"reproduce {study}" for study in ("self-moe", "routers", "llm2vec", "moee", "pooling-and-attention")),
}


def arguments(command: Any, values: dict[str, str]) -> list[str]:
    """A command line with these values, and any value for what else is required."""
    options, positional = [], []
    for parameter in command.params:
        is_required = parameter.required or (parameter.name == "model" and command.requires_model)
        value = values.get(parameter.name) or (f"nowhere-{parameter.name}" if is_required else None)
        if value is not None and parameter.param_type_name == "argument":
            positional.append(value)
        elif value is not None:
            options += [parameter.opts[0], value]
    return [*options, "--", *positional]


def refusal(path: tuple[str, ...], values: dict[str, str]) -> str:
    """The message with which a command refuses values."""
    with pytest.raises(UnmaskError) as error:
        GROUP.main([*path, *arguments(COMMANDS[path], values)], standalone_mode=False)
    assert "\n" not in str(error.value)
    return str(error.value)


@every_command
def test_help(path: tuple[str, ...]) -> None:
    """An example that parses, a sentence for every option, plain names of values, rare options last."""
    command = COMMANDS[path]
    program, *words = shlex.split((command.epilog or "").removeprefix("Example: "))
    assert isinstance(command, Command) and (program, tuple(words[: len(path)])) == ("unmask", path)
    command.make_context(path[-1], words[len(path) :], **HELP)
    context = command.make_context(path[-1], [], **HELP, resilient_parsing=True)
    assert re.fullmatch(r"\[OPTIONS\]( \[?[A-Z]+\]?(\.\.\.)?)*", " ".join(command.collect_usage_pieces(context)))
    for parameter in command.get_params(context):
        assert re.fullmatch(r"[A-Z|=]+|[a-z0-9|-]+|", parameter.metavar), parameter.name
        assert parameter.help.endswith((".", '".')), parameter.name
    assert (command.help or "").endswith(".")
    output = CliRunner().invoke(app, [*path, "-h"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).output
    assert "<str>" not in output and "Example: unmask" in output
    assert ADVANCED not in output or output.index("Options") < output.index(ADVANCED)


@every_command
def test_quiet_json_and_the_model(path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    command = COMMANDS[path]
    assert {"--quiet", "--json"} <= {option for parameter in command.params for option in parameter.opts}
    assert command.is_resumable(dict.fromkeys(command.outputs, Path("folder"))) == (" ".join(path) in RESUMABLE)
    if not any(parameter.name == "model_argument" for parameter in command.params):
        return
    monkeypatch.setattr(command, "requires_model", False)
    for parameter in command.params:
        monkeypatch.setattr(parameter, "required", False)

    def model(*words: str) -> Any:
        value = command.make_context(path[-1], list(words), **HELP).params["model"]
        return list(value) if isinstance(value, tuple) else value

    is_list = next(parameter for parameter in command.params if parameter.name == "model").multiple
    assert model("m") == model("-m", "m") == model("--model=m") == (["m"] if is_list else "m")
    with pytest.raises(Exception, match="Give the model once"):
        model("m", "-m", "m")


@every_command
def test_values_that_no_command_accepts(path: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second value of an option; numbers of the wrong kind, not finite or too large. Nothing is written."""
    monkeypatch.chdir(tmp_path)
    command = COMMANDS[path]
    for option in command.params:
        if option.param_type_name == "argument" or option.is_flag:
            continue
        name = option.opts[0]
        if not option.multiple:
            with pytest.raises(UnmaskError, match=f"^{name} takes one value, but was given 2 times"):
                GROUP.main([*path, name, "1", name, "1"], standalone_mode=False)
        kind = str(option.display_type(None)).lower()
        values = ("1.5", "x", "1" + "0" * 30) if "int" in kind else ("x", "nan", "inf", "-inf") if "float" in kind else ()
        for value in values:
            done = CliRunner().invoke(app, [*path, *arguments(command, {option.name: value})])
            assert done.exit_code == 2 and "Traceback" not in done.output, (name, value, done.exception)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("path", "output"),
    [(path, output) for path, command in COMMANDS.items() for output in command.outputs],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_outputs(path: tuple[str, ...], output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused before anything is done: an output that is an input, inside a model, or cannot be written."""
    monkeypatch.chdir(tmp_path)
    command = COMMANDS[path]
    kind: Writes = command.outputs[output]
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "test.jsonl").write_text('{"text": "mine"}\n')
    Path("link").symlink_to("folder")
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    assert "is a file, not a folder" in refusal(path, {output: "file/a/b.jsonl"})
    assert "the output is a" in refusal(path, {output: "file" if kind.is_folder(Path("x")) else "folder"})
    for name, reads in command.inputs.items():
        suffix = reads.suffix or ("" if kind.is_folder(Path("x")) else ".jsonl")
        source = Path(f"input{suffix}")
        source.touch() if suffix else source.mkdir(exist_ok=True)
        forms = ["{}", "./folder/../{}"]
        if name in ("lessons", "branch", "ability") and path[-1] in ("mix", "upcycle", "evaluate-lm"):
            forms = ["NAME={}"]
        elif reads.is_task:
            forms += ["{}:sts", "{}#20", "{}:sts#20"]
        for form in forms:
            assert "is an input" in refusal(path, {output: f"input{suffix}", name: form.format(source)}), name
        source.unlink() if suffix else source.rmdir()
        if reads.is_model and name != "branch":
            for model in ("folder", "link"):
                message = refusal(path, {output: "folder/new/out.jsonl", name: model})
                assert "lies inside the model folder" in message
        if kind.folder is False and not reads.suffix and "{}" in forms:
            assert "is a file of the input" in refusal(path, {output: "folder/test.jsonl", name: "folder"})
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


def test_two_outputs_are_two_files(tmp_path: Path) -> None:
    for other in ("one.jsonl", f"../{tmp_path.name}/one.jsonl"):
        values = {"output": str(tmp_path / "one.jsonl"), "held_out": str(tmp_path / other)}
        assert "is given for two outputs" in refusal(("seeds",), values)


@pytest.mark.parametrize(
    ("path", "values"),
    [
        (("upcycle",), {"model": "smollm2", "output": "smollm2"}),
        (("train",), {"recipe": "llm2vec", "output": "llm2vec"}),
        (("specialise",), {"domain": "math", "output": "math"}),
        (("compare",), {"task": ["starter"], "output": "starter", "model": ["pico"]}),
        (("compare",), {"designs": ["mean"], "output": "mean", "task": ["starter"]}),
        (("compare",), {"task": ["a\0b", "x" * 5000, "~nobody/x", "[a]", ""], "output": "report"}),
        (("probe", "prefix"), {"model": ["pico:causal"], "output": "pico"}),
    ],
    ids=str,
)
def test_names_are_not_paths(
    path: tuple[str, ...], values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(values["output"]).mkdir()
    COMMANDS[path].check_outputs({**values, "output": Path(values["output"])})
    Path("smollm2").mkdir(exist_ok=True)
    with pytest.raises(UnmaskError, match="is an input"):
        COMMANDS["upcycle",].check_outputs({"model": "./smollm2", "output": Path("smollm2")})


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell leaves it in `--output=~/x`."""
    (tmp_path / "here").mkdir()
    (tmp_path / "texts.txt").write_text("a song\na market\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path / "here")
    for words in (
        ["index", "~/texts.txt", "-m", "pico", "-d", "mean", "--output=~/index", "--device", "cpu"],
        ["search", "~/index", "--mode", "bm25", "--queries=~/texts.txt"],
    ):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.exception
    assert done.stdout.count('"hits"') == 2 and not list(Path.cwd().iterdir())
