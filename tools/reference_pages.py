"""Write the reference pages of the site from the code: every command, every public object, every design, the glossary."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import unmask
from unmask.cli import app

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"


def write(page: str, lines: list[str]) -> None:
    """Write one page of the site."""
    (REFERENCE / page).write_text("\n".join(lines) + "\n", encoding="utf-8")


def commands(group: Any, above: str) -> Iterator[tuple[str, Any]]:
    """Every command below a group, with its whole name."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{above} {name}")
        else:
            yield f"{above} {name}", command


def row(parameter: Any) -> str:
    """An option or argument as a row of a table."""
    names = (
        ", ".join(f"`{name}`" for name in parameter.opts) if parameter.param_type_name == "option" else f"`{parameter.name}`"
    )
    shown = "required" if parameter.required else "" if parameter.default in (None, False, ()) else f"`{parameter.default}`"
    told = " ".join((getattr(parameter, "help", None) or "").split()).replace("|", "\\|")
    return f"| {names} | {told} | {shown} |"


def command_page() -> list[str]:
    """Help of every command."""
    lines = ["# Commands", "", "Every command prints this text with `--help`.", ""]
    group = typer.main.get_command(app)
    for name, command in commands(group, "unmask"):
        lines += [f"## {name}", "", inspect.cleandoc(command.help or ""), ""]
        if command.epilog:
            lines += ["```", command.epilog.removeprefix("Example: "), "```", ""]
        lines += ["| option | meaning | default |", "|---|---|---|"]
        lines += [row(parameter) for parameter in command.params if parameter.name != "help"]
        lines += [""]
    return lines


def python_page() -> list[str]:
    """Every public object."""
    lines = ["# Python", "", "What `from unmask import ...` gives. `unmask.__version__` is the version.", ""]
    for name in unmask.__all__:
        if isinstance(public := getattr(unmask, name), type):
            lines += [f"::: {public.__module__}.{name}", ""]
    return lines


def design_page() -> list[str]:
    """Named designs, prompts and what a design is made of."""
    from unmask.designs.presets import PRESETS
    from unmask.designs.prompts import PROMPTS

    lines = [
        "# Designs, prompts and poolings",
        "",
        "## Named designs",
        "",
        "| name | design | meaning | source |",
        "|---|---|---|---|",
    ]
    lines += [f"| `{name}` | `{one.design}` | {one.meaning} | {one.source} |" for name, one in PRESETS.items()]
    lines += ["", "## Prompts", "", "| name | template |", "|---|---|"]
    lines += [f"| `{name}` | `{prompt.template!r}` |".replace("\\n", "⏎") for name, prompt in PROMPTS.items()]
    return lines


if __name__ == "__main__":
    write("commands.md", command_page())
    write("python.md", python_page())
    write("designs.md", design_page())
