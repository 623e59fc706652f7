"""Run records. A record says what a run was started with, so that the next command can resume it, reuse it, or refuse it."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from pydantic import Field

from unmask.errors import UnmaskError
from unmask.io.files import remove
from unmask.io.records import Record
from unmask.io.seals import Damaged, check_seal
from unmask.models.source import lasting_name
from unmask.moe.experts.lessons.lessons import Lesson

STEPS: Final = "checkpoint-*"
_OTHER = {"expert": "an expert of other lessons", "mixture": "a mixture with other experts, lessons, order"}
_NOT_SETTINGS = {"base", "base_weights", "losses", "versions"}
_LATER = {"dtype", "scales"}  # settings that older records lack, or have as "auto"


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
        named = lasting_name(before.base) == lasting_name(self.base)
        if named and now and then and now != then:
            raise UnmaskError(
                f"The model '{self.base}' has changed since the run in '{folder}' began: its weights were {then} and are {now} now. "
                "Bring the old weights back, or give another folder."
            )
        same_base = then in (now, None) if named else now is not None and now == then
        ignored = _NOT_SETTINGS | {name for name in _LATER if getattr(before, name, None) in (None, {}, "auto")}
        return same_base and before.model_dump(exclude=ignored) == self.model_dump(exclude=ignored)


class TrainingRecord(RunRecord):
    """What a training was started with and, once it is finished, the loss of each logged step and the versions of the libraries.

    dtype: of the base. "auto" means another one on another machine. Older versions did not keep it.
    """

    dtype: str | None = None
    losses: tuple[float, ...] = ()
    versions: dict[str, str] = Field(default_factory=dict)


Training = TypeVar("Training", bound=TrainingRecord)


def claim(work: Path, name: str, record: RunRecord) -> None:
    """Write the record of a run into its working folder, before its first step.

    Raises UnmaskError if the folder holds steps of a run with other settings. Steps without a record are removed. The record of a run
    without steps is replaced.
    """
    if any(work.glob(STEPS)):
        before = type(record).read(work / name)
        if before is None:
            warnings.warn(f"The record of the steps in '{work}' is missing, so training starts anew.", stacklevel=2)
            remove(work)
        else:
            record.require_same(before, work)
    record.write(work / name)


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
    then, asked = (getattr(record, "dtype", None) for record in (before, now))
    return f" (dtype {then} then, {asked} now)" if then and then != asked else ""


def finished(folder: Path, name: str, record: Training, what: str) -> Training | None:
    """The record of a finished run in a folder. None if there is none, or if its files are damaged.

    what: "expert" or "mixture", for errors. Raises UnmaskError if the folder holds something else.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    if not (folder / name).is_file():
        raise UnmaskError(f"'{folder}' exists and holds no {what} of unmask, so it is not overwritten. Give another folder.")
    done = type(record).read(folder / name)
    if done is None:
        raise UnmaskError(
            f"'{folder / name}' is damaged, so the settings of '{folder}' are unknown. Remove the folder to train again."
        )
    if not record.is_same(done, folder):
        raise UnmaskError(
            f"'{folder}' holds {_OTHER[what]} or settings{_difference(record, done)}. Give another folder, or remove this one to train "
            "again."
        )
    try:
        check_seal(folder)
    except Damaged as error:
        _require_only_own(folder, name)
        warnings.warn(f"It is trained again: {error}", stacklevel=2)
        return None
    return done


def is_own(name: str) -> Callable[[Path], bool]:
    """Whether an existing folder holds a record of this name, so that it may be replaced.

    The function raises UnmaskError if the folder also holds files that its run did not write.
    """

    def replaceable(folder: Path) -> bool:
        recorded = (folder / name).is_file()
        if recorded:
            _require_only_own(folder, name)
        return recorded

    return replaceable


def _require_only_own(folder: Path, name: str) -> None:
    """Raise UnmaskError for a finished run's folder with files that the run did not write: they would go with the folder."""
    from unmask.saving.folder import files_in, own_files  # which loads torch; records are read without it

    known = own_files(folder) | {folder / name}
    if others := [file for file in files_in(folder) if file not in known]:
        raise UnmaskError(
            f"'{folder}' is damaged and would be trained again, but '{others[0]}' is not of its run and would be removed. Move it."
        )


def working_folder(folder: Path, what: str) -> Path:
    """The folder that a run works in until its result is complete. It lies beside the folder of the result."""
    return folder.with_name(f".{folder.name}-{what}")
