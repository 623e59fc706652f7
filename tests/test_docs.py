"""Docs cannot drift: README's code is run, its output compared, and every command that a page shows is parsed."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from unmask.cli import app
from unmask.designs.design import parse_designs
from unmask.models.bundled import BUNDLED

ROOT = Path(__file__).parents[1]
GENERATED = {
    ROOT / "docs" / "reference" / f"{name}.md" for name in ("commands", "python", "designs")
}  # by tools/reference_pages.py
PAGES = [ROOT / "README.md", *sorted(set((ROOT / "docs").rglob("*.md")) - GENERATED)]
NUMBER = re.compile(r"-?\d+\.\d*|-?\d+")


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language, in order; fences open and close in turn."""
    parts = re.split(r"^```(.*)\n", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    fenced = zip(parts[1::4], parts[2::4], strict=False)
    return [code for named, code in fenced if named == language]


def shown_commands() -> list[tuple[str, str]]:
    return [
        (page.name, line.partition(" #")[0].strip())
        for page in PAGES
        for block in blocks(page, "")
        for line in block.replace("\\\n", " ").splitlines()
        if line.startswith("unmask ")
    ]


@pytest.mark.real
@pytest.mark.skipif(not BUNDLED["smollm2"].installed, reason=BUNDLED["smollm2"].install_command)
def test_readme_code_prints_what_it_says() -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(blocks(ROOT / "README.md", "python")[0], "README.md", "exec"), {})
    expected = blocks(ROOT / "README.md", "")[1]
    found, said = ([float(number) for number in NUMBER.findall(text)] for text in (printed.getvalue(), expected))
    assert found == pytest.approx(said, abs=0.02)  # bf16 or fp32, whichever the machine is fast at


@pytest.mark.parametrize(("page", "command"), shown_commands())
def test_shown_commands_parse(page: str, command: str) -> None:
    name, *arguments = shlex.split(command)[1:]
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert name in commands, f"{page} shows a command that does not exist: {command}"
    if isinstance(commands[name], TyperGroup):
        commands, (name, *arguments) = commands[name].commands, arguments
        assert name in commands, f"{page} shows a command that does not exist: {command}"
    if not any("FOLDER_OR" in argument or "MODEL" in argument for argument in arguments):
        commands[name].make_context(name, arguments, resilient_parsing=False)
    if "-d" in arguments:
        parse_designs(arguments[arguments.index("-d") + 1])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)?#?([^)]*)\)", page.read_text(encoding="utf-8")):
        file = page.parent / target[0] if target[0] else page
        if file.resolve() in GENERATED:
            continue
        assert file.exists(), f"{page.name} links to {target[0]}"
        if target[1]:
            headings = re.findall(r"^#+ (.*)", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert target[1] in [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
