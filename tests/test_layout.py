"""Imports go one way, and importing is free. Lazy imports and imports for types count like any other."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "unmask"
MODULES = {
    ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): file
    for file in sorted(PACKAGE.rglob("*.py"))
}
ROOMS = (
    "__main__", "cli", "ui", "studies", "moe", "reporting", "training", "evaluation", "search", "bulk", "server", "probing",
    "sentence_transformers_module", "embedder_module", "embedder", "saving", "encoding", "tasks", "models", "starter", "statistics",
    "designs", "runs", "io", "errors",
)  # fmt: skip
"""From top to bottom. `unmask/__init__.py`, with the version and the public names, belongs to no room."""
HEAVY = ("torch", "transformers", "mteb", "sklearn", "scipy", "pandas", "lancedb", "pyarrow")


def imports_of(module: str) -> set[str]:
    """The modules of the package that a module imports, wherever in its file."""
    imported = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            imported |= {name if name in MODULES else str(node.module) for name in names}
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
    return imported & MODULES.keys() - {module}


def test_files_import_without_cycles_and_rooms_import_downwards() -> None:
    graph = {module: imports_of(module) for module in MODULES}
    TopologicalSorter(graph).prepare()  # raises CycleError
    assert {module.split(".")[1] for module in MODULES if "." in module} == set(ROOMS)
    rank = {room: number for number, room in enumerate(ROOMS)}
    upward = [
        f"{module} imports {target}"
        for module, targets in graph.items()
        for target in targets
        if "unmask" not in (module, target) and rank[module.split(".")[1]] > rank[target.split(".")[1]]
    ]
    assert not upward, "\n".join(upward)


def test_importing_is_free() -> None:
    modules = ("unmask", "unmask.statistics.paired", "unmask.reporting.tables", "unmask.search", "unmask.cli")
    script = "import sys\n" + "".join(
        f"import {module}\nprint({module!r}, [name for name in {HEAVY!r} if name in sys.modules])\n" for module in modules
    )
    printed = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert printed.splitlines() == [f"{module} []" for module in modules]
