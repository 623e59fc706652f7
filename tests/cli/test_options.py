"""The options of a model: declared once, offered as far as a command names them, and given to it as one value."""

from __future__ import annotations

import inspect
from dataclasses import asdict
from typing import Annotated

import typer
from typer.testing import CliRunner

from unmask.cli.options import ModelOptions, with_model_options
from unmask.embedder import Embedder
from unmask.models.source import Source


def test_a_command_takes_the_options_that_it_names_as_one_value() -> None:
    seen = []

    def command(name: str, *, options: Annotated[ModelOptions, "revision", "device"], quiet: bool = False) -> None:
        seen.append((name, options, quiet))

    app = typer.Typer()
    app.command()(with_model_options(command))
    assert CliRunner().invoke(app, ["x", "--device", "cpu", "--revision", "main", "--quiet"]).exit_code == 0
    assert CliRunner().invoke(app, ["y"]).exit_code == 0
    assert seen == [("x", ModelOptions(revision="main", device="cpu"), True), ("y", ModelOptions(), False)]
    assert CliRunner().invoke(app, ["x", "--dtype", "float32"]).exit_code == 2


def test_a_command_without_such_options_stays_as_it_is() -> None:
    def command(name: str) -> None: ...

    assert with_model_options(command) is command


def test_the_options_are_those_of_an_embedder_and_of_a_source() -> None:
    assert (
        asdict(ModelOptions()).items()
        <= {
            name: parameter.default for name, parameter in inspect.signature(Embedder.from_pretrained).parameters.items()
        }.items()
    )
    options = ModelOptions(8, 16, ["lower", "upper"], "main", "float32", "cpu", "eager", trust_remote_code=True)
    source = Source(
        "m",
        "main",
        ("lower", "upper"),
        dtype="float32",
        device="cpu",
        attn_implementation="eager",
        trust_remote_code=True,
    )
    assert options.source("m") == source
