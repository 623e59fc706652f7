"""The results of a study on one base model, in `results.json`: how they are written and read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from unmask.errors import UnmaskError, first_problem
from unmask.io.files import refuse_foreign
from unmask.io.seals import CHECKSUM
from unmask.studies.claims.claim import Finding
from unmask.studies.sheet import Sheet

RESULTS: Final = "results.json"
RECORD: Final = "study.json"
REPORT: Final = "report.md"


class StudyResults(BaseModel):
    """The part of `results.json` that all studies share. Each study adds its numbers to the file; they are ignored here."""

    model_config = ConfigDict(frozen=True)

    study: str
    paper: str
    """What is studied."""
    model: str
    """The base model."""
    command: str
    """What started the run."""
    scale: str
    finished: bool
    """Whether all of the plan was measured."""
    claims: tuple[Finding, ...]
    tables: tuple[Sheet, ...]
    """The tables of the report, without the one of claims."""
    data: dict[str, str]
    """What was measured on, each with its revision."""
    rests_on: dict[str, str] | None = None
    """Digests of the recipes, designs and configurations that were used, by name. None in results that did not record them."""
    conclusion: tuple[str, ...] = ()
    """Points in Markdown, of a study that draws a conclusion."""
    versions: dict[str, str]
    hardware: str
    date: str
    """When these numbers were first written, as YYYY-MM-DD."""

    @property
    def name(self) -> str:
        """The base model's name. Of a folder, the last part."""
        return Path(self.model).name if Path(self.model).is_absolute() else self.model

    @property
    def smoke(self) -> bool:
        """Whether the run was of the smoke scale, which says nothing of a claim."""
        return self.scale == "smoke"

    @classmethod
    def of(cls, content: Any, file: Path) -> StudyResults:
        """The results that have this content. Raises UnmaskError, which names the file, for another content."""
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise UnmaskError(
                f"'{file}' is not what this version of unmask writes ({first_problem(error)}). Run the command of the study again: it "
                "measures nothing twice, and writes the file again."
            ) from error


def is_study(folder: Path) -> bool:
    """Whether a folder holds a study on one base model, finished or not."""
    return any((folder / name).is_file() for name in (RESULTS, RECORD))


def refuse_foreign_files(folder: Path) -> None:
    """Raise UnmaskError, before any work, if a study would replace a file that unmask did not write."""
    any_content = [""]
    refuse_foreign(folder / RECORD, [CHECKSUM])
    refuse_foreign(folder / RESULTS, any_content if (folder / RECORD).is_file() else ['"hardware"'])
    refuse_foreign(folder / REPORT, any_content if is_study(folder) else [])


def refuse_several(folder: Path) -> None:
    """Raise UnmaskError for the folder of a whole study, with a folder for each base model below it."""
    models = sorted(path for path in folder.glob("*") if is_study(path))
    if models:
        raise UnmaskError(
            f"'{folder}' holds a study, with a folder for each base model. Give one of them: {', '.join(map(str, models))}."
        )


def read_results(folder: Path) -> StudyResults:
    """The results of a study. Raises UnmaskError if there are none yet, or if the file is damaged."""
    file = folder / RESULTS
    if not file.is_file():
        raise UnmaskError(
            f"The study in '{folder}' has no results yet. Run its command again: it continues where it was stopped."
        )
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UnmaskError(f"'{file}' is damaged: {error}. Run the command of the study again.") from error
    return StudyResults.of(content, file)
