"""Run records. A record says what a run was started with, so that the next command can resume it, reuse it, or refuse it."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError
from unmask.experts.lessons.lessons import Lesson
from unmask.io.files import remove
from unmask.io.seals import Damaged, check_seal, read_record, write_record
from unmask.models.identity import identity_of
from unmask.models.source import Source, lasting_name

WEIGHTS = "base_weights"
STEPS = "checkpoint-*"
_OTHER = {"expert": "an expert of other lessons", "mixture": "a mixture of other experts, lessons"}


def weights_of(source: Source) -> dict[str, str]:
    """The entry of a record that identifies a model's weights by their content, wherever the command runs."""
    return {WEIGHTS: identity_of(source).revision}


def require_same_weights(before: Mapping[str, Any], record: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The record of an earlier run as this version would have written it. The caller compares it with the record of this run.

    Older versions kept the name of the model as the user typed it, and no weights. Raises UnmaskError if the weights have changed.
    """
    now, then = record.get(WEIGHTS), before.get(WEIGHTS)
    name = next((key for key in ("base", "model") if key in record and key in before), None)
    alike = name is not None and lasting_name(str(before[name])) == lasting_name(str(record[name]))
    if alike and now and then and now != then:
        assert name is not None
        raise UnmaskError(
            f"The model '{record[name]}' has changed since the run in '{folder}' began: its weights were {then} and are {now} now. "
            "Bring the old weights back, or give another folder."
        )
    known = dict(before)
    if now and not then:
        known[WEIGHTS] = now
    if name is not None and (alike or (now and now == then)):
        known[name] = record[name]
    return known


def claim(work: Path, name: str, record: dict[str, Any]) -> None:
    """Write the record of a run into its working folder, before its first step.

    Raises UnmaskError if the folder holds steps of a run with other settings. Steps without a record are removed. The record of a run
    without steps is replaced.
    """
    file, ours = work / name, plain(record)
    if any(work.glob(STEPS)):
        before = read_record(file)
        if before is None:
            warnings.warn(f"The record of the steps in '{work}' is missing, so training starts anew.", stacklevel=2)
            remove(work)
        else:
            require_same(before, ours, work)
    write_record(file, ours)


def write_or_check(file: Path, record: dict[str, Any]) -> None:
    """Write the record of a folder. Raises UnmaskError if the folder has a record of something else."""
    before = read_record(file)
    if before is not None:
        require_same(before, record, file.parent)
    write_record(file, plain(record))


def require_same(before: dict[str, Any], record: dict[str, Any], folder: Path) -> None:
    """Raise UnmaskError if an unfinished run was started with something else."""
    if require_same_weights(before, plain(record), folder) != plain(record):
        raise another_run(folder)


def another_run(folder: Path) -> UnmaskError:
    """The error for a folder with an unfinished run of something else."""
    return UnmaskError(
        f"'{folder}' holds an unfinished run with other lessons or settings. Remove the folder, or use the same settings again."
    )


def finished(folder: Path, name: str, record: dict[str, Any], what: str) -> dict[str, Any] | None:
    """The record of a finished run in a folder. None if there is none, or if its files are damaged.

    what: "expert" or "mixture", for errors. Raises UnmaskError if the folder holds something else.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    if not (folder / name).is_file():
        raise UnmaskError(f"'{folder}' exists and holds no {what} of unmask, so it is not overwritten. Give another folder.")
    done = read_record(folder / name)
    if done is None:
        raise UnmaskError(
            f"'{folder / name}' is damaged, so the settings of '{folder}' are unknown. Remove the folder to train again."
        )
    before = require_same_weights(done, plain(record), folder)
    if {key: before.get(key) for key in record} != plain(record):
        raise UnmaskError(f"'{folder}' holds {_OTHER[what]} or settings. Give another folder.")
    try:
        check_seal(folder)
    except Damaged as error:
        warnings.warn(f"It is trained again: {error}", stacklevel=2)
        return None
    return done


def is_own(name: str) -> Callable[[Path], bool]:
    """Whether an existing folder holds a record of this name, so that it may be replaced."""
    return lambda folder: (folder / name).is_file()


def working_folder(folder: Path, what: str) -> Path:
    """The folder that a run works in until its result is complete. It lies beside the folder of the result."""
    return folder.with_name(f".{folder.name}-{what}")


def plain(record: dict[str, Any]) -> dict[str, Any]:
    """A record as JSON gives it back."""
    return json.loads(json.dumps(record))  # type: ignore[no-any-return]


def content_of(lessons: Sequence[Lesson]) -> dict[str, Any]:
    """Lessons by their number and a hash of their texts."""
    digest = hashlib.sha256()
    for lesson in lessons:
        digest.update(repr((lesson.instruction, lesson.input, lesson.output)).encode())
    return {"number": len(lessons), "content": digest.hexdigest()[:16]}
