"""Run records. A record says what a run was started with, so that the next command can resume it, reuse it, or refuse it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError
from unmask.io.records import Record
from unmask.models.provenance import versions
from unmask.models.source import Source, lasting_name
from unmask.moe.experts.lessons.lessons import Lesson

_NOT_SETTINGS = {"base", "base_weights"}
_LATER = {"dtype"}  # settings that older records lack, or have as "auto"


class LessonsRecord(Record):
    """Lessons by their number and a hash of their texts."""

    number: int
    content: str

    @classmethod
    def of(cls, lessons: Sequence[Lesson]) -> LessonsRecord:
        """The record of these lessons."""
        digest = hashlib.sha256()
        for lesson in lessons:
            digest.update(repr((lesson.instruction, lesson.input, lesson.output)).encode())
        return cls(number=len(lessons), content=digest.hexdigest()[:16])

    @property
    def words(self) -> str:
        """The record in words."""
        return f"{self.number} lessons, {self.content}"


class RunRecord(Record):
    """What a run was started with. A subclass adds its settings.

    base: the name of the base model. base_weights: its weights by their content, wherever the command runs. Older versions kept the name
    as the user typed it, and no weights.
    """

    base: str
    base_weights: str | None = None

    def require_same(self, before: RunRecord, folder: Path) -> None:
        """Raise UnmaskError if an unfinished run in a folder was started with something else."""
        if not self.is_same(before, folder):
            raise another_run(folder, _difference(self, before))

    def is_same(self, before: RunRecord, folder: Path) -> bool:
        """Whether an earlier run in a folder was started with the same. Raises UnmaskError if the weights have changed since."""
        now, then = self.base_weights, before.base_weights
        same_name = lasting_name(before.base) == lasting_name(self.base)
        if same_name and now and then and now != then:
            raise UnmaskError(
                f"The model '{self.base}' has changed since the run in '{folder}' began: its weights were {then} and are {now} now. "
                "Bring the old weights back, or give another folder."
            )
        same_base = then in (now, None) if same_name else now is not None and now == then
        ignored = _NOT_SETTINGS | {name for name in _LATER if getattr(before, name, None) in (None, {}, "auto")}
        return same_base and before.model_dump(exclude=ignored) == self.model_dump(exclude=ignored)


class LearningResult(Record):
    """What came of a training on lessons. losses: of each logged step."""

    base: str
    losses: tuple[float, ...]
    versions: dict[str, str]

    @classmethod
    def of(cls, source: Source, log: Sequence[Mapping[str, Any]]) -> LearningResult:
        """The result of a training with this log."""
        losses = tuple(entry["loss"] for entry in log if "loss" in entry)
        return cls(base=lasting_name(source.model), losses=losses, versions=versions())


def write_or_check(file: Path, record: RunRecord) -> None:
    """Write the record of a folder. Raises UnmaskError if the folder has a record of something else."""
    before = type(record).read(file)
    if before is not None:
        record.require_same(before, file.parent)
    record.write(file)


def another_run(folder: Path, difference: str = "") -> UnmaskError:
    """The error for a folder with a run of something else. difference: in brackets, what differs."""
    return UnmaskError(
        f"'{folder}' holds a run with other lessons or settings{difference}. Remove the folder, or use the same settings again."
    )


def _difference(now: RunRecord, before: RunRecord) -> str:
    """What "auto" may have changed, without the user."""
    then, requested = (getattr(record, "dtype", None) for record in (before, now))
    return f" (dtype {then} then, {requested} now)" if then and then != requested else ""
