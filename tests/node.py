"""Scripts of our pages in the Node that comes with playwright, for what needs no browser."""

from __future__ import annotations

import json
import subprocess
from importlib.resources import files
from typing import Any

from playwright._impl._driver import compute_driver_executable


def module(name: str) -> str:
    """The address of a module of the interface, to import from."""
    return json.dumps((files("unmask.ui") / "page" / name).as_uri())  # type: ignore[attr-defined]


def value_of(script: str) -> Any:
    """What `result` is after a script, which may use `import` and `await`. The script fails the test if it throws."""
    node = compute_driver_executable()[0]
    done = subprocess.run(
        [node, "--input-type=module"],
        input=f"{script}\nconsole.log(JSON.stringify(result));",
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
