"""The layout tells the story only while imports run one way and importing is free.

Everything here is computed from the code: lazy imports and imports for types count like any other.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "unmask"
FILES = sorted(PACKAGE.rglob("*.py"))
FACE = {"__init__", "__main__", "embedder", "errors", "sentence_transformers_module"}
# names of other libraries that docstrings speak of
OF_OTHERS = {"q_proj", "gate_proj", "max_over_subqueries_", "max_ap", "MoEE"}


def module_of(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(file): file for file in FILES}


@cache
def parsed(file: Path) -> ast.Module:
    """What a file says, parsed once for all tests."""
    return ast.parse(file.read_text(encoding="utf-8"))


def imported(tree: ast.Module, importer: str, modules: Iterable[str]) -> set[str]:
    """The modules of the package that a file imports, wherever in the file."""
    known, found = set(modules), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "unmask":
            targets = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {target if target in known else str(node.module) for target in targets}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in known}
    return (found & known) - {importer}


def file_graph() -> dict[str, set[str]]:
    return {name: imported(parsed(file), name, MODULES) for name, file in MODULES.items()}


def room_of(module: str) -> str:
    """The folder below the package that a module lies in; a file at the root is a room of its own."""
    return module.split(".")[1] if "." in module else module


def room_graph() -> dict[str, set[str]]:
    graph: dict[str, set[str]] = {}
    for module, targets in file_graph().items():
        if module != "unmask":  # the public face: it names what lies below, and nothing imports it
            graph.setdefault(room_of(module), set()).update(
                {room_of(target) for target in targets} - {room_of(module), "unmask"}
            )
    return graph


def ring(graph: Mapping[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_ring_between_files() -> None:
    assert ring(file_graph()) == []


def test_no_ring_between_rooms() -> None:
    assert ring(room_graph()) == []


def test_a_ring_is_seen() -> None:
    assert ring({"a": {"b"}, "b": {"c"}, "c": {"a"}}) and not ring({"a": {"b"}, "b": {"c"}, "c": set()})
    lazy = "def f():\n    from unmask.io.files import atomic\n"
    assert imported(ast.parse(lazy), "unmask.x", MODULES) == {"unmask.io.files"}


def test_the_root_is_the_public_face() -> None:
    assert {file.stem for file in PACKAGE.glob("*.py")} == FACE


def test_docstrings_name_only_what_exists() -> None:
    """A name in backticks that is written like one of our functions or classes is defined or used somewhere."""
    documented = {
        (module, name)
        for module, file in MODULES.items()
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        for name in re.findall(r"`([a-z]+_[a-z_]+|[A-Z][a-z]+[A-Z][A-Za-z]+)`", ast.get_docstring(node) or "")
    }
    known = _known() | OF_OTHERS
    unknown = sorted(f"{module}: {name}" for module, name in documented if name not in known)
    assert documented and not unknown, "\n".join(unknown)


def _known() -> set[str]:
    """Every name that the code defines or uses."""
    known: set[str] = set()
    for file in FILES:
        for node in ast.walk(parsed(file)):
            known |= {str(getattr(node, field)) for field in ("id", "attr", "name", "arg") if hasattr(node, field)}
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                known.add(node.value)
    return known


HEAVY = ("torch", "transformers", "mteb", "sklearn", "scipy", "pandas", "lancedb", "usearch", "bm25s", "pyarrow")


def test_importing_is_free() -> None:
    """One interpreter imports one after the other, and says after each what heavy library it has loaded."""
    statements = (
        "import unmask",
        "import unmask.statistics.paired",
        "import unmask.reporting.tables",
        "from unmask.search import Index",
        "import unmask.cli",
    )
    check = "import sys\n" + "".join(
        f"{one}\nprint({one!r}, [m for m in {HEAVY!r} if m in sys.modules])\n" for one in statements
    )
    printed = subprocess.run([sys.executable, "-c", check], check=True, capture_output=True, text=True).stdout
    assert printed.splitlines() == [f"{one} []" for one in statements]
