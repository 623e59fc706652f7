"""What benchmarks measure on: real data sets, or, with `--smoke`, a few bundled texts and the pico model.

A smoke run shows in seconds that a benchmark still runs; its numbers mean nothing. The tests start every benchmark so.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from unmask.starter import starter_folders

DATA = Path(os.environ.get("UNMASK_DATA", Path(__file__).parents[2] / "shared" / "data"))
STARTER = {folder.name: folder for folder in starter_folders()}
_BUNDLED = {"stsb/test.jsonl": STARTER["sts"] / "test.jsonl", "scifact/corpus.jsonl": STARTER["retrieval"] / "corpus.jsonl"}


def parser(description: str | None, model: bool = True) -> argparse.ArgumentParser:
    """A parser with the options that all benchmarks share: `--smoke` and, unless told otherwise, `--model`."""
    options = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    options.add_argument("--smoke", action="store_true", help="a tiny model and few texts: does it run?")
    if model:
        options.add_argument("--model", help="smollm2, or pico in a smoke run")
    return options


def model_of(given: argparse.Namespace) -> str:
    """The model that was asked for, or the default of the size."""
    return str(given.model or ("pico" if given.smoke else "smollm2"))


def rows(file: str, smoke: bool) -> list[dict[str, Any]]:
    """The rows of a file of a data set, such as `stsb/test.jsonl`; a bundled file of the same columns in a smoke run."""
    path = _BUNDLED[file] if smoke else DATA / file
    if not path.is_file():
        raise SystemExit(f"There is no {path}. Set UNMASK_DATA to a folder that holds {file}, or use --smoke.")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
