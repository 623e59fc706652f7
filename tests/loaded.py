"""Which heavy libraries a piece of code loads, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = ("torch", "transformers", "mteb", "sklearn", "matplotlib")


def loaded_by(code: str, *arguments: object) -> set[str]:
    """The heavy libraries that are loaded when this code has run. It finds the arguments as paths in `given`."""
    lines = (
        "import json, sys; from pathlib import Path; given = list(map(Path, sys.argv[1:]))",
        code,
        f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))",
    )
    ran = subprocess.run(
        [sys.executable, "-c", "\n".join(lines), *map(str, arguments)], check=True, capture_output=True, text=True
    )
    return set(json.loads(ran.stdout))
