"""Runs: long work in a folder, which can be stopped and resumed.

    with runs.open(folder, settings, inputs={"base model": revision}) as run:
        if run.result is None:                      # a finished run has its result
            weights = run.step("train", compute)    # durable; skipped if it is complete and intact
            run.finish(Report(...))

A run records its settings and the digests of its inputs before its first step. From then on the folder belongs to these settings: opening
it with others raises an error that names what differs. Until then nothing is recorded, so that a mistake can be corrected.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, Field

from unmask.errors import UnmaskError
from unmask.io.files import (
    atomic_folder,
    is_own,
    make_folder,
    make_own,
    only_run_in,
    only_writer_of,
    remove,
    remove_with_scratch,
)
from unmask.io.records import Record
from unmask.io.seals import SEAL, Damaged, check_seal, hash_file, read_record, seal

RECORD = "run.json"
STEP = "step.json"
_LONGEST_VALUE = 80

Result = TypeVar("Result", bound=BaseModel)


class RunRecord(Record):
    """The content of `run.json`."""

    settings: dict[str, Any]
    inputs: dict[str, str]
    key: str
    """Digest of settings and inputs. Each step repeats it, so that steps can be identified if this file is damaged."""
    result: dict[str, Any] | None = None


class StepRecord(Record):
    """The content of `step.json` in the folder of a step."""

    key: str
    complete: bool = False
    files: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of each output file."""
    value: Any = None


class Processes(Protocol):
    """Processes that do one run together. Only the first one writes."""

    def is_first(self) -> bool:
        """Whether this process writes files."""

    def wait(self) -> None:
        """Wait for all processes."""

    def broadcast(self, value: Any) -> Any:
        """The value of the first process."""


class _OneProcess:
    def is_first(self) -> bool:
        return True

    def wait(self) -> None:
        return None

    def broadcast(self, value: Any) -> Any:
        return value


class Run:
    """An open run.

    result: of an earlier run that was finished and is intact, else None. inputs: digests by name, also from earlier runs.
    """

    result: dict[str, Any] | None = None

    def __init__(
        self,
        folder: Path,
        settings: BaseModel,
        inputs: Mapping[str, str | None] | None = None,
        *,
        work: Path | None = None,
        record: str = RECORD,
        may_grow: Sequence[str] = (),
        processes: Processes | None = None,
    ) -> None:
        self.folder, self.work = folder, work or folder
        self._settings = settings.model_dump(mode="json", by_alias=True)
        self.inputs: dict[str, str] = {}
        self._file = self.work / record
        self._may_grow = tuple(may_grow)
        self._processes: Processes = processes or _OneProcess()
        self._record = RunRecord.read(self._file)
        self._key: str | None = self._record.key if self._record else None
        self._done: set[str] = set()
        if self._record is not None:
            self._settings = _merge_settings(folder, self._record, self._settings, self._may_grow)
            self.inputs = dict(self._record.inputs)
        self.check(inputs or {})

    @property
    def has_started(self) -> bool:
        """Whether a step was started, now or earlier."""
        return self._record is not None

    def check(self, inputs: Mapping[str, str | None]) -> None:
        """Compare digests of more inputs with the record, and record those that are new. None: not available, not compared.

        Raises UnmaskError.
        """
        for name, digest in inputs.items():
            if digest is not None and self.inputs.setdefault(name, digest) != digest:
                raise UnmaskError(
                    f"The {name} has changed since the run in '{self.folder}' began: it was {self.inputs[name]} and is {digest} now. "
                    "Restore it, choose another folder, or delete this one."
                )

    def start(self) -> None:
        """Record settings and inputs: from now on, the folder belongs to them. The first step does this by itself."""
        self._key = self._key_of_steps()
        self._write(self.result)

    def is_done(self, name: str) -> bool:
        """Whether a step is complete and its files are intact. The rest of a damaged step is removed."""
        if name not in self._done and self._processes.broadcast(self._processes.is_first() and self._is_complete(name)):
            self._done.add(name)
        return name in self._done

    def step(self, name: str, compute: Callable[[Path], Any], *, files: Sequence[str] = ()) -> Any:
        """The JSON value of `compute`, computed unless the step is complete and intact.

        compute: takes the folder of the step, where it may keep scratch files to resume from. files: those in it that are the outcome.
        Raises UnmaskError if the folder holds other files, or the step of another run.
        """
        if self.is_done(name):
            file = self.work / name / STEP
            return StepRecord.parse(read_record(file) or {}, file).value
        folder = self.scratch(name)
        value = compute(folder)
        self._processes.wait()
        if self._processes.is_first():
            assert self._key is not None
            digests = {file: hash_file(folder / file) for file in files}
            StepRecord(key=self._key, complete=True, files=digests, value=value).write(folder / STEP)
        self._processes.wait()
        self._done.add(name)
        return value

    def scratch(self, name: str) -> Path:
        """The folder of a step that is never complete by itself, such as checkpoints of a result that is published afterwards.

        It holds what an earlier try left. Raises UnmaskError as `step` does.
        """
        folder = self.work / name
        if self._processes.is_first():
            self._start_step(folder)
        self._processes.wait()
        return folder

    def finish(self, result: BaseModel) -> None:
        """Record the result."""
        if self._processes.is_first():
            self.start()
            self._write(result.model_dump(mode="json", by_alias=True))
        self.result = result.model_dump(mode="json", by_alias=True)

    def publish(self, write: Callable[[Path], object], result: BaseModel) -> None:
        """Make the folder of the result, which appears complete and sealed: `write` fills it. For runs opened with `publish`."""
        self.start()
        assert self._record is not None
        self.result = result.model_dump(mode="json", by_alias=True)
        with atomic_folder(self.folder, replaces=lambda folder: _holds_only_own(folder, self._file.name)) as scratch:
            write(scratch)
            self._record.model_copy(update={"result": self.result}).write(scratch / self._file.name)
            seal(scratch)

    def _write(self, result: dict[str, Any] | None) -> None:
        assert self._key is not None
        record = RunRecord(settings=self._settings, inputs=self.inputs, key=self._key, result=result)
        if record != self._record:
            record.write(self._file)
            self._record = record

    def _is_complete(self, name: str) -> bool:
        folder = self.work / name
        record = StepRecord.read(folder / STEP)
        if record is None or not record.complete or record.key != self._key_of_steps():
            return False
        for file, digest in record.files.items():
            if not (folder / file).is_file() or hash_file(folder / file) != digest:
                warnings.warn(f"'{folder / file}' is missing or damaged, so the step '{name}' is repeated.", stacklevel=4)
                remove(folder)
                return False
        return True

    def _key_of_steps(self) -> str:
        if self._key:
            return self._key
        settings = {name: value for name, value in self._settings.items() if name not in self._may_grow}
        content = json.dumps({"settings": settings, "inputs": self.inputs}, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    def _start_step(self, folder: Path) -> None:
        is_written = (folder / STEP).is_file()
        before = StepRecord.read(folder / STEP)
        if before is not None and before.key != self._key_of_steps():
            raise UnmaskError(
                f"'{folder}' belongs to a run with other settings. Choose another folder, or delete '{self.folder}'."
            )
        if before is None and is_written:
            remove(folder)
        elif before is None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UnmaskError(f"'{folder}' was not made by unmask, so it is not overwritten. Choose another folder.")
        self.start()
        assert self._key is not None
        make_folder(folder)
        StepRecord(key=self._key).write(folder / STEP)


@contextmanager
def hold(folder: Path, record: str = RECORD) -> Iterator[None]:
    """Hold a folder for a run whose settings are known later; it then makes a `Run`. Raises UnmaskError as `open` does."""
    with only_run_in(folder):
        require_own(folder, record)
        make_own(folder)
        yield


@contextmanager
def open(
    folder: Path,
    settings: BaseModel,
    *,
    inputs: Mapping[str, str | None] | None = None,
    output: str | None = None,
    may_grow: Sequence[str] = (),
    record: str = RECORD,
    processes: Processes | None = None,
) -> Iterator[Run]:
    """Open a run in a folder that grows in place, and hold it until the block ends.

    inputs: digests by name; None for an input that is not available any more, which is not compared. output: the sealed subfolder that is
    the result, if there is one. may_grow: names of settings whose tables may get new keys in a later run. record: name of the record's
    file. Raises UnmaskError if another run holds the folder, if it holds files of another program, and for other settings or inputs.
    """
    with hold(folder, record) if processes is None or processes.is_first() else nullcontext():
        if processes is not None:
            processes.wait()
        run = Run(folder, settings, inputs, record=record, may_grow=may_grow, processes=processes)
        if run._record is not None and run._record.result is not None:
            run.result = run._record.result
            if output is not None and not _is_intact(folder / output):
                run.result = None
        if processes is not None:
            run.result = processes.broadcast(run.result)
        yield run


@contextmanager
def open_published(
    folder: Path, settings: BaseModel, *, inputs: Mapping[str, str | None] | None = None, record: str = RECORD
) -> Iterator[Run]:
    """Open a run whose result is a folder that appears complete, by `Run.publish`; until then it works in a hidden folder next to it.

    Raises UnmaskError as `open` does.
    """
    folder = Path(folder).resolve()
    work = folder.with_name(f".{folder.name}-run")
    with only_writer_of(folder):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            if not (folder / record).is_file():
                raise UnmaskError(f"'{folder}' was not made by this command, so it is not overwritten. Choose another folder.")
            if read_record(folder / record) is None:
                raise UnmaskError(
                    f"'{folder / record}' is damaged, so the settings of '{folder}' are unknown. Delete the folder."
                )
            run = Run(folder, settings, inputs, record=record)
            if _is_intact(folder):
                assert run._record is not None
                run.result = run._record.result
                yield run
                remove_with_scratch(work)
                return
            _holds_only_own(folder, record)
        run = Run(folder, settings, inputs, work=work, record=record)
        yield run
        if run.result is not None:
            remove_with_scratch(work)


def read(folder: Path, record: str = RECORD) -> RunRecord | None:
    """The record of a run; None if there is none, or if it is damaged (with a warning)."""
    return RunRecord.read(folder / record)


def read_result(folder: Path, kind: type[Result], record: str = RECORD) -> Result | None:
    """The result of a finished run; None if it is not finished."""
    saved = read(folder, record)
    return None if saved is None or saved.result is None else kind.model_validate(saved.result)


def amend_result(folder: Path, result: BaseModel, record: str = RECORD) -> None:
    """Replace the result of a finished run, such as by one with more scores."""
    saved = read(folder, record)
    if saved is not None:
        saved.model_copy(update={"result": result.model_dump(mode="json", by_alias=True)}).write(folder / record)


def require_own(folder: Path, record: str = RECORD) -> None:
    """Raise UnmaskError if a folder holds files of another program."""
    foreign = sorted(file.name for file in folder.iterdir() if not file.name.startswith(".")) if folder.is_dir() else []
    if foreign and not is_own(folder) and read_record(folder / record) is None:
        raise UnmaskError(f"'{folder}' holds other files, such as '{foreign[0]}'. Choose a folder that is new or empty.")


def _is_intact(folder: Path) -> bool:
    """Whether a sealed result is complete. Warns if it is not."""
    try:
        if not (folder / SEAL).is_file():
            raise Damaged(f"'{folder}' is missing or incomplete.")
        check_seal(folder)
    except Damaged as error:
        warnings.warn(f"The result is made again: {error}", stacklevel=4)
        return False
    return True


def _holds_only_own(folder: Path, record: str) -> bool:
    """True for the folder of a result. Raises UnmaskError if it also holds files that are not in its seal: they would be deleted."""
    sealed = read_record(folder / SEAL)
    if sealed is None:
        raise UnmaskError(
            f"'{folder / SEAL}' is missing or damaged, so '{folder}' is not replaced. Delete the folder to start over."
        )
    for file in sorted(folder.rglob("*")):
        name = str(file.relative_to(folder))
        if file.is_file() and name not in sealed and name not in (SEAL, record, "README.md"):
            raise UnmaskError(
                f"'{folder}' is damaged and would be replaced, but '{file}' does not belong to it. Move that file."
            )
    return True


def _merge_settings(folder: Path, record: RunRecord, now: dict[str, Any], may_grow: Sequence[str]) -> dict[str, Any]:
    """The settings, with the keys of an earlier run where they may grow. Raises UnmaskError if they differ otherwise."""
    before = record.settings
    merged = {**now}
    for name in may_grow:
        merged[name] = {**before.get(name, {}), **now[name]}
    if changes := differences(before, merged, may_grow):
        and_others = f" (and {len(changes) - 3} others)" if len(changes) > 3 else ""
        raise UnmaskError(
            f"'{folder}' holds a run with other settings: {'; '.join(changes[:3])}{and_others}. Choose another folder, or delete this one."
        )
    return merged


def differences(before: Mapping[str, Any], now: Mapping[str, Any], may_grow: Sequence[str] = ()) -> list[str]:
    """What differs between settings (see `open`), in words and by dotted names."""
    old, new = dict(_flatten(before)), dict(_flatten(now))
    grown = {name for name in new if name not in old and name.split(".")[0] in may_grow}
    changed = [name for name in dict.fromkeys((*new, *old)) if name not in grown and old.get(name) != new.get(name)]
    return [f"{name} was {_format_value(old.get(name))} and is {_format_value(new.get(name))} now" for name in changed]


def _flatten(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _format_value(value: Any) -> str:
    text = "not set" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 4]} ..."
