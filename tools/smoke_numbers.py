"""What the studies give at the smoke scale: numbers that show whether code still does what it did when claims were measured.

    python -m tools.smoke_numbers            # or some studies: python -m tools.smoke_numbers self-moe routers

It runs each study at the smoke scale, once with all instructions of this processor and once with those of an old one, since rounding
changes a few scores of tiny tasks. It keeps scores and losses in tests/studies/smoke_numbers.json. Tests run the studies and compare. If
the numbers differ, the code does something else than the code that docs/claims.md rests on: measure the claims again, and then run this.
If the change cannot matter for a claim, say why in docs/log.md, and run this.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tools.claims import PAPERS
from unmask.studies.embedders.plan import STUDIES

FILE: Final = Path(__file__).parent.parent / "tests" / "studies" / "smoke_numbers.json"
LITTLE: Final = ("number=5", "held_out=4", "sizes=[2]", "router.steps=2", "expert.steps=2")
"""Settings of the study of Self-MoE, which make it shorter still."""
SETTINGS: Final = {"self-moe": (*LITTLE, 'ablations=["layer routers", "shared expert", "joint top-2"]')}
SCORE: Final = 0.002
"""How far a score may lie outside the two kept ones."""
LOSS: Final = 0.003
"""The same for a loss, as a share of it."""
OLD: Final = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"}
"""The environment in which torch computes as on an old processor."""
OTHERWISE: Final = (
    "the numbers differ from those of the code that claims were measured with. "
    "The docstring of tools/smoke_numbers.py says what to do."
)


def command(study: str, folder: Path) -> list[str]:
    """The arguments of `unmask` for a study at the smoke scale."""
    words = ["reproduce", study, "--scale", "smoke", "-o", str(folder), "--dtype", "float32"]
    return words + [word for setting in SETTINGS.get(study, ()) for word in ("--set", setting)]


def numbers(folder: Path) -> dict[str, float]:
    """Scores and losses of a run, by what they are of. folder: of the model."""
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return {name: value for name, value in (*_scores(results), *_losses(folder)) if value is not None}


def _scores(results: dict[str, Any]) -> Iterator[tuple[str, float | None]]:
    for embedder, tasks in results.get("scores", {}).items():
        yield from ((f"{embedder} on {task}", values[0]) for task, values in tasks.items())
    for row in results.get("configurations", ()):
        yield f"I(D;E) of {row['name']}", row["information"]
        yield f"loss gained by {row['name']}", row["gain"]
        yield from ((f"{row['name']} on {kind}", score / 100) for kind, score in row["scores"].items())
    for row in (*results.get("main", ()), *results.get("ablations", ())):
        yield from ((f"loss of {row['model']} on {domain}", loss) for domain, loss in row["domains"].items())


def _losses(folder: Path) -> Iterator[tuple[str, float]]:
    """The last loss of each training."""
    for log in sorted((folder / "models").rglob("log.json")):
        steps = [step for step in json.loads(log.read_text(encoding="utf-8")) if "loss" in step]
        yield f"loss of {log.parent.relative_to(folder / 'models').as_posix()}", steps[-1]["loss"]


def differences(study: str, folder: Path) -> list[str]:
    """The numbers of a run at the smoke scale that differ from the kept ones, in words. A run may leave some numbers out."""
    kept = json.loads(FILE.read_text(encoding="utf-8"))[study]
    found = numbers(folder)
    # embedders may be left out
    missing = [] if study in STUDIES and found else [f"{name} was not measured" for name in kept if name not in found]
    return missing + [
        f"{name}: {value:.5f} now, {kept[name]} kept" if name in kept else f"{name} is not kept"
        for name, value in found.items()
        if name not in kept or not _near(name, value, kept[name])
    ]


def _near(name: str, value: float, kept: list[float]) -> bool:
    beyond = LOSS * abs(value) + 1e-5 if name.startswith("loss") else SCORE
    return min(kept) - beyond <= value <= max(kept) + beyond


def main(studies: Sequence[str]) -> None:
    """Run these studies and keep their numbers. The numbers of others stay."""
    kept = json.loads(FILE.read_text(encoding="utf-8"))
    for study in studies:
        new, old = (_run(study, environment) for environment in ({}, OLD))
        kept[study] = {name: [round(value, 7), round(old[name], 7)] for name, value in new.items()}
    FILE.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def _run(study: str, environment: dict[str, str]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "unmask", *command(study, Path(folder))]
        subprocess.run(words, check=True, env={**os.environ, **environment})
        return numbers(Path(folder) / "pico")


if __name__ == "__main__":
    main(sys.argv[1:] or list(PAPERS))
