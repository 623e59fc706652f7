"""Kept results: what tables need of the output of a command, as JSON in docs/measured/results."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from unmask.evaluation.results import SENTENCE_TRANSFORMERS
from unmask.evaluation.verdict import model_name

FOLDER: Final = Path("docs/measured/results")
MACHINE: Final = re.compile(r"(?<!\w)(?:/(?:home|root|tmp|work|workspace|Users|mnt|media|opt|srv|usr|var)/|~/|[A-Za-z]:\\)")
"""The beginning of a path on somebody's machine."""

Kept = Mapping[str, Any]
"""A kept result: the JSON that `keep` wrote."""

_LIBRARIES: Final = ("unmask", "torch", "transformers")
_OF_RESULT: Final = ("label", "model", "design", "task", "kind", "metric", "main_score", "interval", "n", "texts", "tokens")
_OF_TEST: Final = (
    *("tasks", "test", "n", "unit", "difference", "interval", "p_holm"),
    *("effect", "effect_name", "told_apart", "family"),
)
_OF_CHOICE: Final = (
    *("label", "design", "score", "interval", "items", "held_out", "chosen_on", "candidates", "ties"),
    *("tokens_a_text", "tokens", "grid_tokens", "failed"),
)


def keep(root: Path, name: str, output: Path, command: str | None) -> None:
    """Keep the output of a command: a folder of `compare` or `recommend`, or the file of a benchmark, which tells its own command.

    Exits if the output holds a path of a machine, if a design of a comparison has no score on a task, or if two embedders have one name.
    """
    if output.is_dir() != (command is not None):
        sys.exit("A folder needs the command that wrote it. A file of a benchmark tells its own.")
    content = _of_folder(output) if output.is_dir() else json.loads(output.read_text(encoding="utf-8"))
    kept = ({} if command is None else {"command": command}) | content
    text = json.dumps(kept, indent=1, ensure_ascii=False) + "\n"
    if path := MACHINE.search(text):
        sys.exit(f"This holds a path of a machine: {text[path.start() :].splitlines()[0]}")
    (root / FOLDER / f"{name}.json").write_text(text, encoding="utf-8")


def _of_folder(folder: Path) -> dict[str, Any]:
    results = [json.loads(line) for line in (folder / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    measured = results[-1]["provenance"]
    versions = {library: measured["versions"][library] for library in _LIBRARIES}
    choice = folder / "recommendation.json"
    content = _choice(choice, results) if choice.exists() else _comparison(folder / "comparison.json")
    return {"hardware": measured["hardware"], "versions": versions, **content}


def _comparison(file: Path) -> dict[str, Any]:
    content = json.loads(file.read_text(encoding="utf-8"))
    if lacking := [f"{one['label']} on {one['task']}: {one['error']}" for one in content["failures"]]:
        sys.exit(f"Not every design has a score on every task, so their means cannot be compared. {lacking[0]}")
    results = _told_apart(content["results"])
    labels = {(old["model"], old["design"]): new["label"] for old, new in zip(content["results"], results, strict=True)}
    return {
        "results": [_result(result) for result in results],
        "tests": [
            {side: labels[test[side]["model"], test[side]["design"]] for side in "ab"} | {key: test[key] for key in _OF_TEST}
            for test in content["comparisons"]
        ],
    }


def _told_apart(results: Sequence[Kept]) -> Sequence[Kept]:
    """The results with short names of models. Where there are several models, their designs are labelled as `compare` labels them."""
    several = len({result["model"] for result in results if result["design"] != SENTENCE_TRANSFORMERS}) > 1
    named = [dict(result, model=model_name(result["model"])) for result in results]
    for result in named:
        if several and result["design"] != SENTENCE_TRANSFORMERS:
            result["label"] = f"{result['model']} {result['label']}"
    if len({(one["label"], one["task"]) for one in named}) < len(named):
        sys.exit("Two embedders have one name. Give their folders different names.")
    return named


def _result(result: Kept) -> dict[str, Any]:
    """What tables need of a result. Clustering has AMI beside its main score."""
    beside = {"ami": result["scores"]["ami"]} if "ami" in result["scores"] else {}
    return {key: result[key] for key in _OF_RESULT} | beside


def _choice(file: Path, results: Sequence[Kept]) -> dict[str, Any]:
    content = json.loads(file.read_text(encoding="utf-8"))
    last = content["rounds"][-1]["standings"]
    spent: Counter[str] = Counter()
    texts: Counter[str] = Counter()
    for result in results:
        spent[result["label"]] += result["tokens"]
        texts[result["label"]] += result["texts"]
    costs = {label: spent[label] / number for label, number in texts.items()}
    return {
        **{key: content[key] for key in _OF_CHOICE},
        "rounds": [_round(one) for one in content["rounds"]],
        "last_round": [{**standing, "tokens_a_text": costs[standing["label"]]} for standing in last],
    }


def _round(one: Kept) -> dict[str, Any]:
    return {"items": one["items"], "tokens": one["tokens"], "designs": len(one["standings"]), "kept": one["kept"]}
