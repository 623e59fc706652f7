"""Results: the score of one design on one task, with everything that it depends on.

They are stored as JSON lines, so that a second run computes only what is missing. Every line carries its checksum. A damaged line or file
of items counts as missing: a warning says so, and the next run computes it again.
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

from unmask.errors import UnmaskError, first_problem
from unmask.io.arrays import load_arrays, save_arrays
from unmask.io.files import append_line, atomic, make_folder
from unmask.io.seals import Damaged, open_line, seal_line
from unmask.statistics.bootstrap import Items

Line = TypeVar("Line", bound=BaseModel)
SENTENCE_TRANSFORMERS = "sentence-transformers"
"""The design of a reference model: it encodes with its own code."""


class Conditions(BaseModel):
    """Everything that decides a score. Two results with equal conditions are the same measurement.

    Library versions are not conditions: they are in a result's provenance, so that a patch release does not void old results.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    model_revision: str
    """See `unmask.models.identity`."""
    adapter: str | None = None
    design: str
    task: str
    task_revision: str
    max_length: int
    dtype: str
    reference: str | None = None
    """A hash of the texts that the design was fitted on, or "as saved"; None if it needs no fit."""
    attn_implementation: str | None = None
    """As requested; None if transformers chose."""
    trust_remote_code: bool | None = None
    """True if Python code that comes with the model ran, else None."""
    own_prompts: bool | None = None
    """True if a reference model has the prompts and the similarity of its model, else None."""

    @property
    def key(self) -> str:
        """A short hash of the conditions. Fields that came later are left out while they are None: older keys stay valid."""
        later = ("attn_implementation", "trust_remote_code", "own_prompts")
        unset = {name for name in later if getattr(self, name) is None}
        return hashlib.sha256(self.model_dump_json(exclude=unset).encode()).hexdigest()[:20]


class Result(BaseModel):
    """The score of one design on one task."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    model: str
    design: str
    label: str
    """The name under which the user gave the design."""
    task: str
    kind: str
    metric: str
    main_score: float
    """0 to 1."""
    interval: tuple[float, float] | None
    """95 %, from the task's n items."""
    n: int
    scores: dict[str, float]
    """Other scores of mteb."""
    dim: int
    texts: int
    tokens: int
    """Computed for this task."""
    tokens_by_prompt: dict[str, int] = {}
    """The same for each prompt of a design with several."""
    truncated: int
    """Texts that were cut to max_length."""
    conditions: Conditions
    provenance: dict[str, Any]
    """The proven attention, library versions, device, and the training of a model that `unmask train` made (seed, and a hash of the
    rest)."""

    @property
    def system(self) -> tuple[str, str]:
        """What was measured: model and design."""
        return self.model, self.design


class Failure(BaseModel):
    """Why a design has no score on a task. applies: false if the task cannot score such a design, so that nothing failed."""

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
    """The cost of one forward pass (attention and prompt) over a task's texts, for all designs that share it."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    model: str
    model_revision: str
    attention: str
    prompt: str
    task: str
    texts: int
    """Computed now, without vectors that an earlier run left on disk."""
    tokens: int
    seconds: float
    """Wall time."""
    peak_memory: int
    """The most bytes that the process (on a GPU: its tensors) held meanwhile."""
    hardware: str
    task_revision: str
    adapter: str | None
    max_length: int
    dtype: str
    attn_implementation: str | None
    trust_remote_code: bool | None

    def is_of(self, conditions: Conditions) -> bool:
        """Whether the pass was computed under these conditions, whatever the design reads of it."""
        shared = Cost.model_fields.keys() & Conditions.model_fields.keys()
        return all(getattr(self, name) == getattr(conditions, name) for name in shared)


class SealedLines(Generic[Line]):
    """A file of JSON lines, each with its checksum.

    A damaged line is skipped with a warning, and removed when the next line is written. An unfinished last line is not read: another
    process may be writing it.
    """

    def __init__(self, file: Path, kind: type[Line], lost: str) -> None:
        """Read the file if it exists. lost: what a damaged line means to the user. Raises UnmaskError for a file of another program."""
        self.file, self.lines = file, list[Line]()
        self._damaged = False
        content = file.read_bytes() if file.is_file() else b""
        is_start = b"\n" not in content and (content.startswith(_START) or _START.startswith(content))  # of a first line
        if content.strip(b"\0") and not is_start and not any(mark in content for mark in _MARKS):
            raise UnmaskError(f"'{file}' was not written by unmask. Give another folder.")
        complete, _, unfinished = content.rpartition(b"\n")
        if unfinished:
            warnings.warn(f"{file} ends with an unfinished line: {lost}.", stacklevel=3)
        for number, line in enumerate(complete.split(b"\n") if complete else [], start=1):
            try:
                self.lines.append(kind.model_validate_json(json.dumps(open_line(line))))
            except (Damaged, ValidationError) as error:
                self._damaged = True
                reason = first_problem(error) if isinstance(error, ValidationError) else error
                warnings.warn(f"{file}, line {number} is damaged ({reason}): {lost}.", stacklevel=3)

    def append(self, line: Line) -> None:
        """Add a line, durably."""
        if self._damaged:
            self.write(self.lines)
        append_line(self.file, _seal(line))
        self.lines.append(line)

    def write(self, lines: Iterable[Line]) -> None:
        """Replace all lines."""
        self.lines = list(lines)
        with atomic(self.file) as scratch:
            scratch.write_text("".join(f"{_seal(line)}\n" for line in self.lines), encoding="utf-8")
        self._damaged = False


_START = b'{"model":'
_MARKS = (b'"model_revision"', b'"task_revision"', b'"peak_memory"', b'"checksum"')
"""Keys that our lines contain: one flipped bit leaves at least one of them intact."""


def _seal(line: BaseModel) -> str:
    return seal_line(line.model_dump(mode="json"))


class ResultStore:
    """A folder with `results.jsonl` and, for each result, the items behind its score in `items/`.

    `failures.jsonl` says why designs have no score, and `costs.jsonl` what forward passes cost. Items are written before the line of
    their result. Damaged lines and items count as missing, with a warning.
    """

    def __init__(self, folder: Path) -> None:
        """Open or create the folder. Raises UnmaskError for files of another program."""
        self.folder = folder
        again = "it counts as missing, and `unmask compare` computes it again"
        self._result_file = SealedLines(folder / "results.jsonl", Result, again)
        self._failure_file = SealedLines(folder / "failures.jsonl", Failure, again)
        self._cost_file = SealedLines(folder / "costs.jsonl", Cost, "times and memory of this forward pass are lost")
        make_folder(folder / "items")
        self._results = {result.conditions.key: result for result in self._result_file.lines}
        self._failures = {failure.conditions.key: failure for failure in self._failure_file.lines}
        self._items: dict[str, bool] = {}

    @property
    def results(self) -> list[Result]:
        """Every result in the folder."""
        return list(self._results.values())

    def get(self, conditions: Conditions) -> Result | None:
        """The result under these conditions, if there is one and its items are undamaged."""
        result = self._results.get(conditions.key)
        return result if result is not None and self._has_items(result) else None

    def _has_items(self, result: Result) -> bool:
        """Whether the items can be read. They are read once; a warning says if they cannot."""
        key = result.conditions.key
        if key not in self._items:
            try:
                self.items(result)
                self._items[key] = True
            except Damaged as error:
                message = f"{result.label} on {result.task} counts as missing, and `unmask compare` computes it again: {error}"
                warnings.warn(message, stacklevel=3)
                self._items[key] = False
        return self._items[key]

    def add(self, result: Result, items: Items | None) -> None:
        """Store a result: its items first, then its line."""
        arrays = {} if items is None else {f"column_{name}": column for name, column in items.columns.items()}
        if items is not None:
            arrays["metric"] = np.array(items.metric)
        save_arrays(self._items_file(result), arrays, compressed=True)
        self._result_file.append(result)
        self._results[result.conditions.key] = result
        self._items[result.conditions.key] = True
        if self._failures.pop(result.conditions.key, None):
            self._failure_file.write(self.failures)

    @property
    def failures(self) -> list[Failure]:
        """Why designs have no score on tasks, without those that were scored since."""
        return [failure for failure in self._failures.values() if self.get(failure.conditions) is None]

    def failures_under(self, conditions: Iterable[Conditions]) -> list[Failure]:
        """The failures under these conditions, without those of earlier runs with other settings, weights or data."""
        keys = {of_cell.key for of_cell in conditions}
        return [failure for failure in self.failures if failure.conditions.key in keys]

    def add_failure(self, failure: Failure) -> None:
        """Store why a design has no score on a task, in place of an earlier reason."""
        self._failures[failure.conditions.key] = failure
        self._failure_file.write(self.failures)

    @property
    def costs(self) -> list[Cost]:
        """What forward passes cost, run after run."""
        return list(self._cost_file.lines)

    def add_cost(self, cost: Cost) -> None:
        """Store what a forward pass cost."""
        self._cost_file.append(cost)

    def items(self, result: Result) -> Items | None:
        """The items behind a result's score, or None if the task has no single set of items. Raises Damaged."""
        file = self._items_file(result)
        arrays = load_arrays(file)
        if not arrays:
            return None
        columns = {name.removeprefix("column_"): column for name, column in arrays.items() if name != "metric"}
        try:
            return Items(str(arrays["metric"]), columns)
        except (KeyError, ValueError) as error:
            raise Damaged(f"'{file}' is damaged: {error}") from error

    def _items_file(self, result: Result) -> Path:
        return self.folder / "items" / f"{result.conditions.key}.npz"
