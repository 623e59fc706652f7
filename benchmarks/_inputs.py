"""Inputs of the benchmarks: real data sets, or a few bundled texts and the pico model (`--smoke`).

A smoke run shows in seconds that a benchmark still runs. Its numbers mean nothing. The tests run every benchmark in this way.
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
    """A parser with the options of all benchmarks: `--smoke`, and `--model` (unless `model` is False)."""
    options = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    options.add_argument("--smoke", action="store_true", help="use a tiny model and few texts, to see whether it runs")
    if model:
        options.add_argument("--model", help="default: smollm2, or pico with --smoke")
    return options


def model_of(given: argparse.Namespace) -> str:
    """The requested model, or the default."""
    return str(given.model or ("pico" if given.smoke else "smollm2"))


def rows(file: str, smoke: bool) -> list[dict[str, Any]]:
    """The rows of a file such as `stsb/test.jsonl`. In a smoke run, the rows of a bundled file with the same columns."""
    path = _BUNDLED[file] if smoke else DATA / file
    if not path.is_file():
        raise SystemExit(f"'{path}' does not exist. Set UNMASK_DATA to a folder that contains {file}, or use --smoke.")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
