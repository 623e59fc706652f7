"""Results: one design on one task, with what it depends on; kept as JSON lines, so that a re-run computes only what is missing."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from unmask.errors import UnmaskError
from unmask.evaluation.resampling import Items
from unmask.files import atomic

Line = TypeVar("Line", bound=BaseModel)
SENTENCE_TRANSFORMERS = "sentence-transformers"
"""What stands for the design of a reference row: the model's own."""


_LATER = ("attn_implementation",)


class Conditions(BaseModel):
    """Everything that decides a score. Two results with equal conditions are the same measurement.

    model_revision: see `unmask.identity`; attn_implementation: as asked for, None if transformers chose. Library versions are no
    condition: they are in a result's provenance, since a patch release must not void what was measured.
    """

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
    attn_implementation: str | None = None

    @property
    def key(self) -> str:
        """A short hash of the conditions. What came later counts only where it is said, so that older results keep their keys."""
        silent = {name for name in _LATER if getattr(self, name) is None}
        return hashlib.sha256(self.model_dump_json(exclude=silent).encode()).hexdigest()[:20]


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


class Failure(BaseModel):
    """A design that has no score on a task, and why. applies: false if the task asks nothing of such a design, so that nothing failed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    design: str
    label: str
    task: str
    kind: str
    error: str
    applies: bool = True
    conditions: Conditions


class Cost(BaseModel):
    """What the passes of one attention and prompt over a task's texts took, for all designs that share them.

    texts, tokens: computed, without those that were on disk from an earlier run; seconds: of wall time; peak_memory: bytes that the
    process (on a GPU: its tensors) held at most so far.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    model_revision: str
    attention: str
    prompt: str
    task: str
    texts: int
    tokens: int
    seconds: float
    peak_memory: int
    hardware: str


class ResultStore:
    """A folder with `results.jsonl` and, for each result, the items behind its score in `items/`.

    Beside them `failures.jsonl`, the cells without a score, and `costs.jsonl`, what was spent. A line is written only after its items,
    in one write; a line that a kill cut short is not read, and cut off before the next one.
    """

    def __init__(self, folder: Path) -> None:
        """Open or create the folder. Raises UnmaskError for results that are broken in another way than by a kill."""
        self.folder = folder
        self._file, self._failed, self._costs = (folder / f"{name}.jsonl" for name in ("results", "failures", "costs"))
        (folder / "items").mkdir(parents=True, exist_ok=True)
        self._results = {result.conditions.key: result for result in _read(self._file, Result)}
        self._failures = {failure.conditions.key: failure for failure in _read(self._failed, Failure)}

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
        _append(self._file, result)
        self._results[result.conditions.key] = result
        if self._failures.pop(result.conditions.key, None):
            self._write_failures()

    @property
    def failures(self) -> list[Failure]:
        """The cells that have no score, unless they were scored since."""
        return [failure for key, failure in self._failures.items() if key not in self._results]

    def fail(self, failure: Failure) -> None:
        """Keep why a cell has no score; what was kept of it before is replaced."""
        self._failures[failure.conditions.key] = failure
        self._write_failures()

    def _write_failures(self) -> None:
        with atomic(self._failed) as scratch:
            scratch.write_text("".join(f"{failure.model_dump_json()}\n" for failure in self.failures), encoding="utf-8")

    @property
    def costs(self) -> list[Cost]:
        """What was spent, run after run."""
        return list(_read(self._costs, Cost))

    def spend(self, cost: Cost) -> None:
        """Keep what was spent."""
        _append(self._costs, cost)

    def items(self, result: Result) -> Items | None:
        """The items behind a result's score, or None where the task has no single set of them."""
        with np.load(self._items_file(result)) as saved:
            if "metric" not in saved:
                return None
            columns = {name.removeprefix("column_"): saved[name] for name in saved.files if name != "metric"}
            return Items(str(saved["metric"]), columns)

    def _items_file(self, result: Result) -> Path:
        return self.folder / "items" / f"{result.conditions.key}.npz"


def _append(file: Path, line: BaseModel) -> None:
    with file.open("a+b") as lines:
        _drop_torn(lines)
        lines.write(line.model_dump_json().encode() + b"\n")
        lines.flush()
        os.fsync(lines.fileno())


def _drop_torn(lines: BinaryIO) -> None:
    """Cut off what a kill left of a line. Only who writes may: to a reader, it may be a line that is being written."""
    size = lines.seek(0, os.SEEK_END)
    lines.seek(max(0, size - 1))
    if size and lines.read(1) != b"\n":
        lines.seek(0)
        lines.truncate(lines.read().rfind(b"\n") + 1)


def _read(file: Path, kind: type[Line]) -> Iterator[Line]:
    """The whole lines of a file."""
    if not file.is_file():
        return
    whole, _, _ = file.read_bytes().rpartition(b"\n")
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            yield kind.model_validate_json(line)
        except ValidationError as error:
            problem = error.errors()[0]
            where = ".".join(map(str, problem["loc"]))
            raise UnmaskError(
                f"{file}, line {number}: {where}: {problem['msg']}. Move the folder away to start anew."
            ) from error
