"""Goals: what was wanted of the best embedder, and the kept result that says how far it came."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tools.results.cells import bold, markdown


def goals(file: Path, results: Path) -> str:
    """The goals of a file, each beside the mean score of its embedder over the tasks of its kept result."""
    rows = [_row(goal, results) for goal in tomllib.loads(file.read_text(encoding="utf-8"))["goals"]]
    note = "Main scores x 100. Bold: the goal is reached."
    return f"{markdown(('what was wanted', 'goal', 'measured', 'embedder', 'reached'), rows)}\n{note}\n"


def _row(goal: Mapping[str, Any], results: Path) -> tuple[str, ...]:
    kept = json.loads((results / f"{goal['result']}.json").read_text(encoding="utf-8"))
    own = [one for one in kept["results"] if one["label"] == goal["label"]]
    scores = [one["main_score"] for one in own if one["kind"] != goal.get("without")]
    if not scores:
        raise SystemExit(
            f"{goal['result']}.json has no embedder '{goal['label']}'. It has: {sorted({one['label'] for one in kept['results']})}."
        )
    score = 100 * float(np.mean(scores))
    reached = score >= goal["goal"]
    what = f"[{goal['what']}](#{goal['section']})"
    return what, f"{goal['goal']:g}", bold(f"{score:.1f}", reached), f"`{goal['label']}`", "yes" if reached else "no"
