"""Results: one design on one task, with what it depends on; kept as JSON lines, so that a re-run computes only what is missing."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from unmask.errors import UnmaskError
from unmask.evaluation.resampling import Items
from unmask.files import atomic

SENTENCE_TRANSFORMERS = "sentence-transformers"
"""What stands for the design of a reference row: the model's own."""


class Conditions(BaseModel):
    """Everything that decides a score. Two results with equal conditions are the same measurement."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    model_revision: str
    adapter: str | None = None
    design: str
    task: str
    task_revision: str
    max_length: int
    dtype: str
    reference: str | None = None

    @property
    def key(self) -> str:
        """A short hash of the conditions."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:20]


class Result(BaseModel):
    """The score of one design on one task.

    main_score: 0 to 1; interval: 95 % by bootstrap over the task's n items; scores: others of mteb's worth keeping; label: the name
    under which the design was asked for; dim: size of a vector; tokens: computed for this task; truncated: texts that
    were cut to max_length; provenance: attention as proven, library versions, device.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    design: str
    label: str
    task: str
    kind: str
    metric: str
    main_score: float
    interval: tuple[float, float] | None
    n: int
    scores: dict[str, float]
    dim: int
    texts: int
    tokens: int
    truncated: int
    conditions: Conditions
    provenance: dict[str, Any]

    @property
    def system(self) -> tuple[str, str]:
        """What was measured: model and design."""
        return self.model, self.design


class ResultStore:
    """A folder with `results.jsonl` and, for each result, the items behind its score in `items/`.

    A line is written only after its items, in one write; a line that a kill cut short is dropped when the folder is opened.
    """

    def __init__(self, folder: Path) -> None:
        """Open or create the folder. Raises UnmaskError for results that are broken in another way than by a kill."""
        self.folder = folder
        self._file = folder / "results.jsonl"
        (folder / "items").mkdir(parents=True, exist_ok=True)
        self._results = {result.conditions.key: result for result in self._read()}

    @property
    def results(self) -> list[Result]:
        """Every result in the folder."""
        return list(self._results.values())

    def get(self, conditions: Conditions) -> Result | None:
        """The result under these conditions, if it has been measured and its items are there."""
        result = self._results.get(conditions.key)
        return result if result is not None and self._items_file(result).is_file() else None

    def add(self, result: Result, items: Items | None) -> None:
        """Keep a result: its items first, then its line."""
        arrays = {} if items is None else {f"column_{name}": column for name, column in items.columns.items()}
        if items is not None:
            arrays["metric"] = np.array(items.metric)
        with atomic(self._items_file(result)) as scratch, scratch.open("wb") as stream:
            np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]
        with self._file.open("ab") as lines:
            lines.write(result.model_dump_json().encode() + b"\n")
            lines.flush()
            os.fsync(lines.fileno())
        self._results[result.conditions.key] = result

    def items(self, result: Result) -> Items | None:
        """The items behind a result's score, or None where the task has no single set of them."""
        with np.load(self._items_file(result)) as saved:
            if "metric" not in saved:
                return None
            columns = {name.removeprefix("column_"): saved[name] for name in saved.files if name != "metric"}
            return Items(str(saved["metric"]), columns)

    def _items_file(self, result: Result) -> Path:
        return self.folder / "items" / f"{result.conditions.key}.npz"

    def _read(self) -> Iterator[Result]:
        if not self._file.is_file():
            return
        content = self._file.read_bytes()
        whole, _, torn = content.rpartition(b"\n")
        if torn:
            with atomic(self._file) as scratch:
                scratch.write_bytes(whole + b"\n" if whole else b"")
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                yield Result.model_validate_json(line)
            except ValidationError as error:
                problem = error.errors()[0]
                where = ".".join(map(str, problem["loc"]))
                raise UnmaskError(
                    f"{self._file}, line {number}: {where}: {problem['msg']}. Move the folder away to start anew."
                ) from error
