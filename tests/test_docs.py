"""Docs cannot drift: README's code is run, its output compared, and every command that a page shows is parsed."""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

import unmask
from tests.cases import cases
from tests.in_process import HELP
from tools.reference_pages import command_page, commands, design_page, python_page
from unmask.cli import app
from unmask.designs.design import parse_designs
from unmask.designs.presets import PRESETS
from unmask.models.bundled import BUNDLED
from unmask.tasks.kinds import KINDS
from unmask.training.data import PARTNERS
from unmask.training.recipe import load_recipe

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GENERATED = {DOCS / "reference" / f"{name}.md" for name in ("commands", "python", "designs")}  # by tools/reference_pages.py
PAGES = [ROOT / "README.md", *sorted(set(DOCS.rglob("*.md")) - GENERATED)]
LINKING = [
    *PAGES,
    *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *sorted((ROOT / "examples").glob("*.md")),
]
NUMBER = re.compile(r"-?\d+\.\d*|-?\d+")


def fenced(page: Path) -> list[tuple[str, str]]:
    """The fenced blocks of a page with their languages, in order; fences open and close in turn."""
    parts = re.split(r"^```(.*)\n", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return list(zip(parts[1::4], parts[2::4], strict=False))


def blocks(page: Path, language: str) -> list[str]:
    """The blocks of one language."""
    return [code for named, code in fenced(page) if named == language]


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
    expected = next(block for block in blocks(ROOT / "README.md", "") if block.startswith("(3, 576)"))
    found, said = ([float(number) for number in NUMBER.findall(text)] for text in (printed.getvalue(), expected))
    assert found == pytest.approx(said, abs=0.02)  # bf16 or fp32, whichever the machine is fast at


def parse(words: Sequence[str]) -> None:
    """Raise for a command that does not exist, an option that it does not have, a value that cannot be, a design that does not parse."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    name, *arguments = words
    if isinstance(commands[name], TyperGroup):
        commands, (name, *arguments) = commands[name].commands, arguments
    commands[name].make_context(name, list(arguments), **HELP)
    for option, value in itertools.pairwise(arguments):
        if option == "-d":
            parse_designs(value)


@cases("page, command", shown_commands())
def test_shown_commands_parse(page: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks(ROOT / "docs" / "how-to.md", "toml"):
        if "template =" in block:
            Path("my-prompts.toml").write_text(block, "utf-8")
    parse(shlex.split(command)[1:])


def targets(text: str) -> list[str]:
    """What a page links to or shows: Markdown's links, and the attributes of HTML."""
    prose = re.sub(r"^```.*?^```|`[^`\n]+`", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"\]\(([^)\s]+)\)", prose) + re.findall(r'(?:src|srcset|href)="([^"]+)"', prose)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.*)", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKING, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for target in targets(page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        if target.startswith(("http://", "https://")):
            continue
        file = (page.parent / path).resolve() if path else page
        assert file.exists() or file in GENERATED, f"{page.name} links to {path}"
        assert DOCS not in page.parents or file.is_relative_to(DOCS), f"{path} is no page of the site"
        if anchor and file not in GENERATED:
            assert anchor in anchors(file), f"{page.name} links to {target}"


def test_a_dead_link_is_seen() -> None:
    text = '[a](nowhere.md) ![b](c.svg) <img src="d.webp"> `[no](link.md)`\n```\n[no](link.md)\n```\n'
    assert targets(text) == ["nowhere.md", "c.svg", "d.webp"]


def test_every_page_is_in_the_menu() -> None:
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    listed = re.findall(r": (\S+\.md)$", menu, flags=re.MULTILINE)
    assert sorted(listed) == sorted({page.relative_to(DOCS).as_posix() for page in {*DOCS.rglob("*.md"), *GENERATED}})


def test_generated_pages_have_everything() -> None:
    made = "\n".join(command_page())
    examples = re.findall(r"^unmask .*", made, flags=re.MULTILINE)
    assert len(examples) >= 20
    for words in examples:
        parse(shlex.split(words)[1:])
    assert {f"## {name}" for name, _ in commands(typer.main.get_command(app), "unmask")} <= set(made.splitlines())
    assert [name for name in unmask.__all__ if name not in "\n".join(python_page())] == []
    assert [name for name in PRESETS if f"`{name}`" not in "\n".join(design_page())] == []


def test_the_page_on_tasks_has_a_row_for_every_kind() -> None:
    page = (DOCS / "tasks.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z-]+)` \| (.*) \| (.*) \|$", page.partition("## Task sets")[0], flags=re.MULTILINE)
    assert rows == [(kind.name, kind.layout, kind.metric) for kind in KINDS.values()]


def test_the_recipe_of_the_page_on_training_is_complete(tmp_path: Path) -> None:
    (code,) = (code for code in blocks(DOCS / "training.md", "toml") if "stages =" in code)
    (tmp_path / "mine.toml").write_text(code, encoding="utf-8")
    recipe = load_recipe(str(tmp_path / "mine.toml"))
    assert (recipe.name, recipe.stages, recipe.about) == ("mine", ("contrastive",), "")


def test_the_page_on_training_names_the_columns_of_pairs() -> None:
    page = (DOCS / "training.md").read_text(encoding="utf-8")
    for anchor, partners in PARTNERS.items():
        names = ", ".join(f"`{partner}`" for partner in partners)
        assert f"`{anchor}` and {'one of ' * (len(partners) > 1)}{names}" in page


@pytest.mark.parametrize("page", ["statistics", "report"])
def test_functions_that_pages_name_exist(page: str) -> None:
    named = re.findall(r"`((?:statistics|evaluation)\.[\w.]+)", (DOCS / f"{page}.md").read_text(encoding="utf-8"))
    for module, _, function in (name.rpartition(".") for name in named):
        assert hasattr(importlib.import_module(f"unmask.{module}"), function), f"{module}.{function}"
    assert named
