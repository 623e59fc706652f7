"""Write the reference pages of the site from the code: every command, every public class, every design and prompt."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import unmask
from unmask.cli import app
from unmask.designs.presets import PRESETS
from unmask.designs.prompts import PROMPTS

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"


def commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every command of a group and its subgroups, with its full name."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def row(parameter: Any) -> str:
    """An option or argument as a row of a table."""
    is_option = parameter.param_type_name == "option"
    names = ", ".join(f"`{name}`" for name in (parameter.opts if is_option else [parameter.name]))
    default = "required" if parameter.required else "" if parameter.default in (None, False, ()) else f"`{parameter.default}`"
    meaning = " ".join((getattr(parameter, "help", None) or "").split()).replace("|", "\\|")
    return f"| {names} | {meaning} | {default} |"


def command_page() -> Iterator[str]:
    """The help of every command."""
    yield "# Commands\n\nEvery command prints this text with `--help`.\n"
    for name, command in commands(typer.main.get_command(app), "unmask"):
        yield f"## {name}\n\n{inspect.cleandoc(command.help or '')}\n"
        if command.epilog:
            yield f"```\n{command.epilog.removeprefix('Example: ')}\n```\n"
        yield "| option | meaning | default |\n|---|---|---|"
        yield from (row(parameter) for parameter in command.params if parameter.name != "help")
        yield ""


def python_page() -> Iterator[str]:
    """Every public class."""
    yield "# Python\n\nWhat `from unmask import ...` gives. `unmask.__version__` is the version.\n"
    for name in unmask.__all__:
        if isinstance(public := getattr(unmask, name), type):
            yield f"::: {public.__module__}.{name}\n"


def design_page() -> Iterator[str]:
    """Named designs and prompts."""
    yield "# Designs, prompts and poolings\n\n## Named designs\n\n| name | design | meaning | source |\n|---|---|---|---|"
    for name, preset in PRESETS.items():
        yield f"| `{name}` | `{preset.design}` | {preset.meaning} | {preset.source} |"
    yield "\n## Prompts\n\n| name | template |\n|---|---|"
    for name, prompt in PROMPTS.items():
        yield f"| `{name}` | `{prompt.template!r}` |".replace("\\n", "⏎")


if __name__ == "__main__":
    for page, lines in (("commands", command_page()), ("python", python_page()), ("designs", design_page())):
        (REFERENCE / f"{page}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
