"""Keep what the page of claims needs of a study, in docs/measured.

Beside a result lies a zip of what was measured of each model, without the models: who unpacks it into STUDY/MODEL goes on from there,
with more seeds or embedders. There is none of Self-MoE, which measures every row again whose model is gone, and none if the base is a
folder, because values are known by its path.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Final

from tools.results.kept import MACHINE
from unmask.studies.results import StudyResults

RESULTS: Final = Path(__file__).parents[1] / "docs" / "measured"
VALUES: Final = (
    "study.json",
    "scores/results.jsonl",
    "scores/failures.jsonl",
    "scores/items/*.npz",
    "models/*/seed*.json",
    "cells/*/*/cell.json",
    "cells/*/*/counts.npz",
)
"""The files of a study that say what was measured of each model."""
_KEPT: Final = (
    "base_weights",
    "dtype",
    "scores",
    "configurations",
    "correlations",
    "contest",
    *StudyResults.model_fields,
)


def keep(file: Path, end: str, place: Path) -> None:
    """Keep what the page needs of a result. The smoke scale shows nothing of a claim, so it is refused.

    file: a study's `results.json`. end: of the name that it gets, or "". place: the folder.
    """
    content = json.loads(file.read_text(encoding="utf-8"))
    result = StudyResults.of(content, file)
    if result.smoke:
        sys.exit(f"'{file}' is of the smoke scale, which says nothing of a claim.")
    if not result.finished:
        sys.exit(f"'{file}' is of a study that is not finished: {result.command}")
    model = Path(result.model).name
    keeps_values = result.study != "self-moe" and result.model == model
    if keeps_values:
        _require_no_path(file.parent)
    place.mkdir(exist_ok=True)
    kept = {key: content[key] for key in _KEPT if key in content}
    kept["model"] = model
    kept["plan"] = {name: part for name, part in content["plan"].items() if name != "claims"}
    name = "-".join([result.study, model, *filter(None, [end])])
    (place / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    report = (file.parent / "report.md").read_text(encoding="utf-8").replace(result.model, model)  # no path of a machine
    (place / f"{name}.md").write_text(kept_report(report), encoding="utf-8")
    if keeps_values:
        keep_values(file.parent, place / f"{name}-values.zip")


def _require_no_path(study: Path) -> None:
    """Exit if values name a model by a path of this machine. They would, if the study ran with an absolute folder (`-o`)."""
    for file in _values(study):
        text = "" if file.suffix == ".npz" else file.read_text(encoding="utf-8")
        if path := MACHINE.search(text):
            named = text[path.start() :].splitlines()[0][:60]
            sys.exit(
                f"'{file}' names a path of this machine: {named}. Run the study with a relative `-o`, in the folder above its own."
            )


def _values(study: Path) -> list[Path]:
    return sorted(file for pattern in VALUES for file in study.glob(pattern))


def keep_values(study: Path, place: Path) -> None:
    """Write a zip of what a study measured of each model. The same values give the same bytes."""
    files = _values(study)
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for file in files:
            archive.writestr(zipfile.ZipInfo(file.relative_to(study).as_posix()), file.read_bytes(), zipfile.ZIP_DEFLATED, 9)


def kept_report(report: str) -> str:
    """A report as it is kept: without its pictures, whose tables stand beside them, and without its claims, which have a page."""
    plain = re.sub(r"(?m)^!\[.*\]\(.*\)\n\n?", "", report)
    plain = re.sub(r"(?ms)^## Claims\n.*?(?=^## |\Z)", "", plain)
    return re.sub(r"(?m)^\d+ claims?: .*\n(- (Refuted|Undecided): .*\n)*", "[The claims](../claims.md) have verdicts.\n", plain)
