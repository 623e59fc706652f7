"""Records of a run: what it was trained on, and what came of it. Each is a JSON file in the folder of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Self

from pydantic import AliasChoices, ConfigDict, Field

from unmask.evaluation.training_gain import TrainingGain
from unmask.io.records import Record
from unmask.io.seals import write_record

DATA: Final = "data.json"
RUN: Final = "run.json"
RECIPE: Final = "recipe.json"
BASE: Final = "base.json"
DONE: Final = "done.safetensors"  # what a stage trained; where it lies, the stage is done
COMPARED: Final = "compared"  # a folder of results


class LeakCounts(Record):
    """Training texts that are in a held-out task: exact, nearly, and pairs of which both texts are.

    texts: a hash of the task's texts, as they were searched for. None in records of older versions.
    """

    exact: int
    near: int
    pairs: int = 0
    texts: str | None = None


class DataSetRecord(Record):
    """A data set as a stage saw it.

    revision: a hash of the rows, which a seed may have drawn. left_out: rows by the reason why they were left out. leaks: by held-out task.
    files: a hash of the files that all rows came from. None for rows of the hub or of this package, and in records of older versions.
    """

    path: str
    examples: int
    revision: str
    left_out: dict[str, int] = Field(validation_alias=AliasChoices("left out", "left_out"), serialization_alias="left out")
    leaks: dict[str, LeakCounts]
    files: str | None = None


StageData = dict[str, DataSetRecord]
"""The data sets of a stage, by name."""


class DataRecord(Record):
    """The data sets of each stage, and the recipe that they were read for (a hash)."""

    stages: dict[str, StageData]
    recipe: str | None = None

    @classmethod
    def read(cls, file: Path) -> Self | None:
        """The record in a file, where the stages stand beside the key `recipe`."""
        flat = _FlatDataRecord.read(file)
        return None if flat is None else cls(stages=flat.model_extra or {}, recipe=flat.recipe)

    def write(self, file: Path) -> None:
        """Write the record, with the stages beside the key `recipe`."""
        stages: dict[str, Any] = self.as_json()["stages"]
        write_record(file, {**stages, "recipe": self.recipe})


class _FlatDataRecord(Record):
    model_config = ConfigDict(frozen=True, extra="allow")
    __pydantic_extra__: dict[str, StageData]

    recipe: str | None = None


class ModelRecord(Record):
    """A model: its name and a hash of its weights."""

    model: str
    weights: str


class TeacherRecord(ModelRecord):
    """A teacher. design: how a decoder is read; None for a sentence-transformers model."""

    design: str | None = None


class BaseRecord(ModelRecord):
    """The base model of a run, and the teacher of its stage `distill`, if it has one.

    precision: of the products in training. A record of an older version does not say it.
    """

    teacher: TeacherRecord | None = None
    precision: str | None = None


class RunRecord(Record):
    """What came of a run.

    trains: parameters that trained, by stage and kind. scores: of the tasks that were watched. gain: the comparison with the untrained
    base model, if the recipe names tasks for it and they have been scored. kept_leaks: rows with texts of the recipe's tasks were not
    left out. chosen: scores chose a checkpoint; None in records of older versions. card: a hash of the model card that was written last.
    """

    design: str
    seed: int
    base: BaseRecord | None = None
    data: dict[str, StageData]
    trains: dict[str, dict[str, int]]
    hardware: str
    versions: dict[str, str]
    scores: dict[str, float]
    gain: TrainingGain | None = None
    kept_leaks: bool = False
    chosen: bool | None = None
    card: str = ""
