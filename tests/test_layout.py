"""The layout tells the story only while imports go one way, files stay small and importing is free."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "unmask"
FILES = sorted(PACKAGE.rglob("*.py"))
# who may import whom: a module imports only from its own rank or below
RANKS: list[set[str]] = [
    {"errors", "files", "seals", "arrays", "rows", "progress", "starter", "terminal", "threads"},
    {"prompts", "design", "presets", "models", "pico", "hub", "source", "digests"},
    {"attention", "pooling", "heads", "routing", "routers", "features", "tokens", "identity", "loading", "decoder", "mixture"},
    {"backbone", "batching", "encoding"},
    {"embedder", "persistence", "st_module"},
    {"training", "upcycling"},
    {"evaluation", "bulk", "probing", "experts"},
    {"reporting", "studies"},
    {"cli", "__main__", "__init__"},
]

# names of other libraries that docstrings speak of
OF_OTHERS = {"q_proj", "gate_proj", "max_over_subqueries_", "max_ap", "MoEE"}


def rank(module: str) -> int:
    return next(place for place, names in enumerate(RANKS) if module in names)


def home(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("unmask"):
            parts = (node.module or "").split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
    return found


@pytest.mark.parametrize(
    "file", [file for file in FILES if file != PACKAGE / "__init__.py"], ids=lambda file: str(file.relative_to(PACKAGE))
)
def test_imports_go_downwards(file: Path) -> None:
    upwards = {name for name in imported(file) if rank(name) > rank(home(file))}
    assert not upwards, f"{file.relative_to(PACKAGE)} imports from above: {upwards}"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_files_and_functions_are_small(file: Path) -> None:
    source = file.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 450
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            assert (node.end_lineno or 0) - node.lineno < 80, f"{node.name} is too long"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_docstrings_name_only_what_exists(file: Path) -> None:
    """A name in backticks that is written like one of our functions or classes is defined or used somewhere."""
    documented = {
        name
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        for name in re.findall(r"`([a-z]+_[a-z_]+|[A-Z][a-z]+[A-Z][A-Za-z]+)`", ast.get_docstring(node) or "")
    }
    assert documented - OF_OTHERS <= _known()


@cache
def _known() -> set[str]:
    """Every name that the code defines or uses."""
    known: set[str] = set()
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            known |= {str(getattr(node, field)) for field in ("id", "attr", "name", "arg") if hasattr(node, field)}
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                known.add(node.value)
    return known


@pytest.mark.parametrize(
    "statement", ["import unmask", "import unmask.cli", "import unmask.evaluation.statistics", "import unmask.reporting.tables"]
)
def test_importing_is_free(statement: str) -> None:
    check = f"{statement}; import sys; print([m for m in ('torch', 'transformers', 'mteb', 'sklearn', 'scipy') if m in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", check], check=True, capture_output=True, text=True).stdout
    assert printed.strip() == "[]"
