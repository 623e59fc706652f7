"""Task folders: their files, their columns, and what `task.toml` states."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from unmask.errors import UnmaskError, first_problem
from unmask.io import rows as rows_of
from unmask.io.files import inside
from unmask.io.rows import read_rows


class TaskFile(BaseModel):
    """The settings that `task.toml` may hold.

    kind: a name of `unmask.tasks.kinds.KINDS`. text, label: what the files call these columns, for kinds that have them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str | None = None
    kind: str | None = None
    split: str | None = None
    limit: int | None = Field(default=None, ge=2)
    seed: int = 0
    text: str = "text"
    label: str = "label"
    instruction: str | None = None


@dataclass(frozen=True)
class TaskFolder:
    """A folder that may hold a task, with the settings of its `task.toml`."""

    path: Path
    settings: TaskFile

    def file(self, stem: str) -> Path | None:
        """The table of this name, whatever its format (`train` finds `train.jsonl` or `train.csv`), or None.

        Raises UnmaskError if there are two.
        """
        candidates = (inside(self.path, f"{stem}{ending}") for ending in rows_of.READERS)
        files = [candidate for candidate in candidates if candidate.is_file()]
        files = [file for file in files if file.suffix != ".txt"] or files  # plain text holds no columns
        if len(files) > 1:
            raise UnmaskError(f"'{files[0]}' and '{files[1]}' are one table in two formats. Keep one of the two.")
        return files[0] if files else None

    def table(self, stem: str) -> Path:
        """The table of this name, whatever its format. Raises UnmaskError if there is none."""
        if file := self.file(stem):
            return file
        endings = ", ".join(rows_of.READERS)
        raise UnmaskError(f"There is no file '{self.path / stem}.jsonl', and none of that name in another format ({endings}).")

    @cached_property
    def main_file(self) -> Path:
        """The file that is scored: the split that is asked for, or `test`, or `all`. Raises UnmaskError if there is none."""
        stems = [self.settings.split] if self.settings.split else ["test", "all"]
        for stem in stems:
            if file := self.file(stem):
                return file
        expected = ", ".join(f"{stem}.jsonl" for stem in stems)
        raise UnmaskError(f"'{self.path}' is not a task folder: none of {expected} was found.")

    @cached_property
    def columns(self) -> frozenset[str]:
        """The columns of the first row of the main file."""
        first = next(read_rows(self.main_file), None)
        return frozenset(first[1]) if first else frozenset()

    def train_file(self) -> Path | None:
        """The training file of a task that is tested on another file. Raises UnmaskError if both are the same file."""
        train = self.file("train")
        if train and train.samefile(self.main_file):
            raise UnmaskError(
                f"'{self.main_file}' holds the training rows of a task, and a test on them says nothing about new texts. Give "
                f"'{self.path}' for its test file, another file of it, or '{self.main_file}:clustering' to cluster labelled texts."
            )
        return train


def open_folder(path: Path, split: str | None = None) -> TaskFolder:
    """A folder with its settings. split: use this file of it instead, which becomes part of the task's name."""
    settings = _settings(path)
    if split:
        name = f"{settings.name or path.resolve().name}-{split}"
        settings = settings.model_copy(update={"split": split, "name": name})
    return TaskFolder(path, settings)


def _settings(folder: Path) -> TaskFile:
    file = folder / "task.toml"
    if not file.is_file():
        return TaskFile()
    try:
        return TaskFile.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
    except tomllib.TOMLDecodeError as error:
        raise UnmaskError(f"{file}: this is not TOML: {error}.") from error
    except ValidationError as error:
        raise UnmaskError(f"{file}: {first_problem(error)} (keys: {', '.join(TaskFile.model_fields)}).") from error
