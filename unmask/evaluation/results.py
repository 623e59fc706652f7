"""Results: one design on one task, with what it depends on; kept as JSON lines, so that a re-run computes only what is missing.

Every line carries its checksum. A line or a file of items that was damaged counts as missing: that is said, and the next run measures
it again.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from unmask.errors import UnmaskError
from unmask.io.arrays import load_arrays, save_arrays
from unmask.io.files import append_line, atomic, make_folder
from unmask.io.seals import Damaged, is_sealed_line, open_line, sealed_line
from unmask.statistics.bootstrap import Items

Line = TypeVar("Line", bound=BaseModel)
SENTENCE_TRANSFORMERS = "sentence-transformers"
"""What stands for the design of a reference row: the model's own."""


_LATER = ("attn_implementation",)


class Conditions(BaseModel):
    """Everything that decides a score. Two results with equal conditions are the same measurement.

    model_revision: see `unmask.models.identity`; attn_implementation: as asked for, None if transformers chose. Library versions are no
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

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

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

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

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


class Lines(Generic[Line]):
    """A file of JSON lines, each with its checksum.

    A line that was damaged is passed over with a warning, and goes with the next line that is written. A line that a kill cut short is
    not read: to a reader, it may be one that is being written.
    """

    def __init__(self, file: Path, kind: type[Line], lost: str) -> None:
        """Read the file, if it is there; lost: what a damaged line means. Raises UnmaskError for a file of somebody else."""
        self.file, self.read = file, list[Line]()
        self._damaged = False
        if not file.is_file():
            return
        content = file.read_bytes()
        if not _is_ours(content):
            raise UnmaskError(f"'{file}' was not written by unmask: give another folder.")
        whole, _, unfinished = content.rpartition(b"\n")
        if unfinished:
            warnings.warn(f"{file} ends with an unfinished line: {lost}.", stacklevel=3)
        for number, line in enumerate(whole.split(b"\n") if whole else [], start=1):
            try:
                self.read.append(_parsed(line, kind, f"{file}, line {number}"))
            except Damaged as error:
                self._damaged = True
                warnings.warn(f"{file}, line {number} is damaged ({error}): {lost}.", stacklevel=3)

    def append(self, one: Line) -> None:
        """Add a line, durably."""
        if self._damaged:
            self.write(self.read)
        append_line(self.file, _line(one))
        self.read.append(one)

    def write(self, lines: Iterable[Line]) -> None:
        """Replace all lines."""
        self.read = list(lines)
        with atomic(self.file) as scratch:
            scratch.write_text("".join(f"{_line(one)}\n" for one in self.read), encoding="utf-8")
        self._damaged = False


_MARKS = (b'"model_revision"', b'"task_revision"', b'"peak_memory"', b'"checksum"')
"""What lines of ours hold: one flipped bit leaves some of it."""


def _is_ours(content: bytes) -> bool:
    """Whether the content of a file is ours, be it damaged or cut short anywhere."""
    begun = content.startswith(_START) or _START.startswith(content)
    return any(mark in content for mark in _MARKS) or (begun and b"\n" not in content) or not content.strip(b"\0")


_START = b'{"model":'


def _line(one: BaseModel) -> str:
    return sealed_line(one.model_dump(mode="json"))


def _parsed(line: bytes, kind: type[Line], where: str) -> Line:
    """A line. Raises Damaged, or UnmaskError for one that is as it was written, but by a newer version."""
    content = open_line(line)
    try:
        return kind.model_validate_json(json.dumps(content))
    except ValidationError as error:
        problem = error.errors()[0]
        reason = f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
        if is_sealed_line(line):
            raise UnmaskError(
                f"{where} was written by a newer version of unmask ({reason}). Use that version, or another folder."
            ) from error
        raise Damaged(reason) from error


class ResultStore:
    """A folder with `results.jsonl` and, for each result, the items behind its score in `items/`.

    Beside them `failures.jsonl`, the cells without a score, and `costs.jsonl`, what was spent. A line is written only after its items.
    Damaged lines and items count as missing, with a warning.
    """

    def __init__(self, folder: Path) -> None:
        """Open or create the folder. Raises UnmaskError for files of somebody else or of a newer version."""
        self.folder = folder
        again = "what it held counts as missing, and `unmask compare` measures it again"
        self._lines = Lines(folder / "results.jsonl", Result, again)
        self._failed = Lines(folder / "failures.jsonl", Failure, again)
        self._spent = Lines(folder / "costs.jsonl", Cost, "times and memory of these passes are not known any more")
        make_folder(folder / "items")
        self._results = {result.conditions.key: result for result in self._lines.read}
        self._failures = {failure.conditions.key: failure for failure in self._failed.read}
        self._items: dict[str, bool] = {}

    @property
    def results(self) -> list[Result]:
        """Every result in the folder."""
        return list(self._results.values())

    def get(self, conditions: Conditions) -> Result | None:
        """The result under these conditions, if it has been measured and its items are there and undamaged."""
        result = self._results.get(conditions.key)
        return result if result is not None and self._has_items(result) else None

    def _has_items(self, result: Result) -> bool:
        """Whether the items can be read; found out once, and told if they cannot."""
        key = result.conditions.key
        if key not in self._items:
            try:
                _read_items(self._items_file(result))
            except Damaged as error:
                told = f"{result.label} on {result.task} counts as missing, and `unmask compare` measures it again: {error}"
                warnings.warn(told, stacklevel=3)
                self._items[key] = False
            else:
                self._items[key] = True
        return self._items[key]

    def add(self, result: Result, items: Items | None) -> None:
        """Keep a result: its items first, then its line."""
        arrays = {} if items is None else {f"column_{name}": column for name, column in items.columns.items()}
        if items is not None:
            arrays["metric"] = np.array(items.metric)
        save_arrays(self._items_file(result), arrays, compressed=True)
        self._lines.append(result)
        self._results[result.conditions.key] = result
        self._items[result.conditions.key] = True
        if self._failures.pop(result.conditions.key, None):
            self._failed.write(self.failures)

    @property
    def failures(self) -> list[Failure]:
        """The cells that have no score, unless they were scored since."""
        return [failure for failure in self._failures.values() if self.get(failure.conditions) is None]

    def fail(self, failure: Failure) -> None:
        """Keep why a cell has no score; what was kept of it before is replaced."""
        self._failures[failure.conditions.key] = failure
        self._failed.write(self.failures)

    @property
    def costs(self) -> list[Cost]:
        """What was spent, run after run."""
        return list(self._spent.read)

    def spend(self, cost: Cost) -> None:
        """Keep what was spent."""
        self._spent.append(cost)

    def items(self, result: Result) -> Items | None:
        """The items behind a result's score, or None where the task has no single set of them. Raises Damaged."""
        return _read_items(self._items_file(result))

    def _items_file(self, result: Result) -> Path:
        return self.folder / "items" / f"{result.conditions.key}.npz"


def _read_items(file: Path) -> Items | None:
    arrays = load_arrays(file)
    if "metric" not in arrays:
        if arrays:
            raise Damaged(f"'{file}' is damaged: it holds no metric.")
        return None
    columns = {name.removeprefix("column_"): column for name, column in arrays.items() if name != "metric"}
    try:
        return Items(str(arrays["metric"]), columns)
    except ValueError as error:
        raise Damaged(f"'{file}' is damaged: {error}") from error
