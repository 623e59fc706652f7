"""Inputs of the benchmarks: real data sets, or a few bundled texts and the pico model (`--smoke`).

UNMASK_DATA names the folder of the real data sets (docs/data.md). A smoke run needs none. It shows in seconds that a benchmark still runs.
Its numbers mean nothing. The tests run the benchmarks in this way.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError
from unmask.starter import starter_folders

STARTER = {folder.name: folder for folder in starter_folders()}
_BUNDLED = {"stsb/test.jsonl": STARTER["sts"] / "test.jsonl", "scifact/corpus.jsonl": STARTER["retrieval"] / "corpus.jsonl"}
_RETRIEVAL = ("corpus.jsonl", "queries.jsonl", "qrels_test.tsv")


def parser(description: str | None, model: bool = True) -> argparse.ArgumentParser:
    """A parser with the options of all benchmarks: `--smoke`, and `--model` (unless `model` is False)."""
    options = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    options.add_argument("--smoke", action="store_true", help="use a tiny model and few texts, to see whether it runs")
    if model:
        options.add_argument("--model", help="default: smollm2, or pico with --smoke")
    return options


def model_of(given: argparse.Namespace) -> str:
    """The requested model, or the default."""
    return str(given.model or ("pico" if given.smoke else "smollm2"))


def data(*needed: str) -> Path:
    """The data folder. Exits with one sentence if UNMASK_DATA is not set, or if the folder lacks a file or folder that is needed."""
    folder = os.environ.get("UNMASK_DATA")
    missing = [name for name in needed if not folder or not Path(folder, name).exists()]
    if not folder or missing:
        fault = f"'{folder}' lacks {', '.join(missing)}" if folder else "UNMASK_DATA is not set"
        raise SystemExit(f"{fault}: let UNMASK_DATA name a folder with {', '.join(needed)} (docs/data.md), or give --smoke.")
    return Path(folder)


def rows(file: str, smoke: bool) -> list[dict[str, Any]]:
    """The rows of a file such as `stsb/test.jsonl`. In a smoke run, the rows of a bundled file with the same columns."""
    path = _BUNDLED[file] if smoke else data(file) / file
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def retrieval(name: str, smoke: bool) -> Path:
    """The folder of a retrieval task such as `scifact`. In a smoke run, the bundled one."""
    return STARTER["retrieval"] if smoke else data(*(f"{name}/{file}" for file in _RETRIEVAL)) / name


def tasks(*names: str) -> list[str]:
    """Tasks such as `stsb#500`, in the form that `-t` takes. Exits with one sentence if a task is missing or cannot be read."""
    from unmask.tasks.find import resolve_tasks

    folder = data(*(name.partition("#")[0] for name in names))
    specs = [str(folder / name) for name in names]
    try:
        resolve_tasks(specs)
    except UnmaskError as error:
        raise SystemExit(str(error)) from error
    return specs
