"""Keep what the pages need of a result in docs/measured, then write the pages (`tools.pages`).

    python -m tools.keep NAME FOLDER 'COMMAND'     of `unmask compare`; readers see COMMAND, with DATA for the folder of data sets
    python -m tools.keep NAME FOLDER               of `unmask reproduce`: the folder of one base model, STUDY/MODEL

Of a study, a zip of what was measured of each model is kept as well. Unpack it into STUDY/MODEL to continue with more seeds or
embedders. Self-MoE has no zip, since it measures every row again whose model is gone.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any, Final

from tools import pages
from unmask.evaluation.results import SENTENCE_TRANSFORMERS
from unmask.evaluation.verdict import model_name
from unmask.studies.results import StudyResults

MEASURED: Final = pages.ROOT / "docs" / "measured"
LOCAL_PATH: Final = re.compile(r"(?<!\w)(?:/(?:home|root|tmp|work|workspace|Users|mnt|media|opt|srv|usr|var)/|~/|[A-Za-z]:\\)")
OF_RESULT: Final = ("label", "model", "design", "task", "kind", "metric", "main_score", "interval", "n", "texts", "tokens")
OF_TEST: Final = (
    "tasks",
    "test",
    "n",
    "unit",
    "difference",
    "interval",
    "p_holm",
    "effect",
    "effect_name",
    "is_significant",
    "family",
)
OF_STUDY: Final = (
    "base_weights",
    "dtype",
    "scores",
    "kinds",
    "configurations",
    "correlations",
    "replication",
    *StudyResults.model_fields,
)
VALUES: Final = (
    *("study.json", "scores/results.jsonl", "scores/failures.jsonl", "scores/items/*.npz", "models/*/seed*.json"),
    *("cells/*/*/cell.json", "cells/*/*/counts.npz"),
)
"""The files of a study that say what was measured of each model."""


def comparison(folder: Path, command: str) -> dict[str, Any]:
    """Scores and tests of a comparison. Designs of several models are labelled `MODEL DESIGN`."""
    content = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    if content["failures"]:
        sys.exit(f"A design has no score on a task, so means cannot be compared: {content['failures'][0]}")
    results = content["results"]
    several = len({row["model"] for row in results if row["design"] != SENTENCE_TRANSFORMERS}) > 1
    labels = {
        (row["model"], row["design"]): f"{model_name(row['model'])} {row['label']}"
        if several and row["design"] != SENTENCE_TRANSFORMERS
        else row["label"]
        for row in results
    }
    rows = []
    for row in results:
        own = {"label": labels[row["model"], row["design"]], "model": model_name(row["model"])}
        ami = {"ami": row["scores"]["ami"]} if "ami" in row["scores"] else {}
        rows.append({key: row[key] for key in OF_RESULT} | own | ami)
    tests = [
        {side: labels[test[side]["model"], test[side]["design"]] for side in "ab"} | {key: test[key] for key in OF_TEST}
        for test in content["comparisons"]
    ]
    last = json.loads((folder / "results.jsonl").read_text(encoding="utf-8").splitlines()[-1])["provenance"]
    versions = {name: last["versions"][name] for name in ("unmask", "torch", "transformers")}
    return {"command": command, "hardware": last["hardware"], "versions": versions, "results": rows, "tests": tests}


def study(folder: Path, name: str) -> None:
    """The results of a study, its report without pictures and claims, and its values."""
    content = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    result = StudyResults.of(content, folder / "results.json")
    if result.smoke or not result.finished:
        sys.exit(f"'{folder}' is of the smoke scale or not finished: {result.command}")
    model = Path(result.model).name
    plan = {key: part for key, part in content["plan"].items() if key != "claims"}
    _write(
        MEASURED / f"{name}.json", {key: content[key] for key in OF_STUDY if key in content} | {"model": model, "plan": plan}
    )
    report = (folder / "report.md").read_text(encoding="utf-8").replace(result.model, model)
    report = re.sub(r"(?m)^!\[.*\]\(.*\)\n\n?", "", report)
    report = re.sub(r"(?ms)^## Claims\n.*?(?=^## |\Z)", "", report)
    report = re.sub(
        r"(?m)^\d+ claims?: .*\n(- (Refuted|Undecided): .*\n)*", "[The claims](../claims.md) have verdicts.\n", report
    )
    (MEASURED / f"{name}.md").write_text(report, encoding="utf-8")
    if result.study != "self-moe" and result.model == model:  # values of a base in a folder are known by its path
        for file in folder.rglob("*.json*"):
            _refuse_local_path(file.read_text(encoding="utf-8"))
        keep_values(folder, MEASURED / f"{name}-values.zip")


def keep_values(folder: Path, archive: Path) -> None:
    """Zip what a study measured of each model. Equal values give equal bytes."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as values:
        for file in sorted(file for pattern in VALUES for file in folder.glob(pattern)):
            values.writestr(zipfile.ZipInfo(str(file.relative_to(folder))), file.read_bytes(), zipfile.ZIP_DEFLATED, 9)


def _write(file: Path, content: dict[str, Any]) -> None:
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    _refuse_local_path(text)
    file.write_text(text, encoding="utf-8")


def _refuse_local_path(text: str) -> None:
    if path := LOCAL_PATH.search(text):
        sys.exit(f"The result names a path of this machine. Use relative paths: {text[path.start() :].splitlines()[0]}")


def main(name: str, source: str, command: str = "") -> None:
    """Keep a result and write the pages."""
    if (Path(source) / "results.json").is_file():
        study(Path(source), name)
    elif command:
        _write(MEASURED / "results" / f"{name}.json", comparison(Path(source), command))
    else:
        sys.exit(f"Give the command that wrote '{source}'.")
    pages.main()


if __name__ == "__main__":
    main(*sys.argv[1:])
