"""What a training run depends on, and what came of it: settings and result in its `run.json`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from unmask.designs.design import Design
from unmask.errors import UnmaskError
from unmask.evaluation.training_gain import TrainingGain
from unmask.io.records import Record
from unmask.training.recipe import Recipe

COMPARED: Final = "compared"  # a folder of results


class TrainingSettings(Record):
    """The settings of one run: a recipe with one design and one seed."""

    recipe: Recipe
    held_out_tasks: dict[str, str]
    """The excluded tasks, whose texts are removed from the training rows, each with a hash of these texts."""


class LeakCounts(Record):
    """Training texts that occur in a held-out task."""

    exact: int
    near: int
    pairs: int = 0
    """Pairs of which both texts occur."""


class DataSetRecord(Record):
    """A data set as a stage saw it."""

    path: str
    examples: int
    revision: str
    """Hash of the rows, which may depend on the seed."""
    left_out: dict[str, int]
    """Rows by the reason why they were left out."""
    leaks: dict[str, LeakCounts]
    files: str | None = None
    """Hash of the files that the rows came from; None for rows of the hub or of this package."""


StageData = dict[str, DataSetRecord]
"""The data sets of a stage, by name."""


class ModelRecord(Record):
    """A model: its name and a hash of its weights."""

    model: str
    weights: str


class TeacherRecord(ModelRecord):
    """A teacher or guide. design: None for a sentence-transformers model."""

    design: str | None = None


class BaseRecord(ModelRecord):
    """The base model of a run, the teacher and the guide of its last stage that has one, and the precision of training."""

    teacher: TeacherRecord | None = None
    guide: TeacherRecord | None = None
    precision: str


class TrainingResult(Record):
    """What came of a run."""

    design: str
    seed: int
    base: BaseRecord
    data: dict[str, StageData]
    trains: dict[str, dict[str, int]]
    """Parameters that trained, by stage and kind of weight."""
    hardware: str
    versions: dict[str, str]
    scores: dict[str, float]
    """On the tasks that were watched during training."""
    chosen: bool
    """Whether these scores chose a checkpoint."""
    gain: TrainingGain | None = None
    """The comparison with the untrained base model, if the recipe names tasks for it."""
    kept_leaks: bool = False
    """Whether rows with texts of the recipe's tasks were kept."""
    card: str = ""
    """Hash of the model card that was written last."""


@dataclass(frozen=True)
class TrainingJob:
    """One design to train with one seed, in a folder. label: the design as the recipe names it, and the seed."""

    label: str
    design: Design
    seed: int
    folder: Path

    @property
    def result(self) -> Path:
        """The folder that Embedder and SentenceTransformer load."""
        return self.folder / "model"


def training_jobs(recipe: Recipe, folder: Path) -> list[TrainingJob]:
    """The jobs of a recipe. A single one uses the folder itself, several use subfolders.

    Raises UnmaskError if two designs would share a folder.
    """
    designs = {design.replace("/", "-"): design for design in recipe.designs}
    if len(designs) < len(recipe.designs):
        shared = next(design for design in recipe.designs if design not in designs.values())
        raise UnmaskError(
            f"'{shared}' and '{designs[shared.replace('/', '-')]}' would share a folder: train them in two recipes."
        )
    several = len(designs) * len(recipe.seeds) > 1
    return [
        TrainingJob(f"{design}, seed {seed}", Design.parse(design), seed, folder / f"{name}.seed{seed}" if several else folder)
        for name, design in designs.items()
        for seed in recipe.seeds
    ]
