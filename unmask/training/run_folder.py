"""The folder of a run: whose it is, whether it is begun, and whether it is done."""

from __future__ import annotations

import hashlib
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from unmask.designs.design import Design
from unmask.errors import UnmaskError
from unmask.io.files import refuse_foreign
from unmask.io.seals import CHECKSUM, Damaged, check_seal, read_record, write_record
from unmask.training.recipe import Recipe
from unmask.training.records import BASE, DATA, DONE, RECIPE, RUN, DataRecord, RunRecord


@dataclass(frozen=True)
class Run:
    """One trained embedder: its design, its seed and its folder."""

    design: Design
    seed: int
    folder: Path

    @property
    def result(self) -> Path:
        """The folder that Embedder and SentenceTransformer load."""
        return self.folder / "model"


def runs(recipe: Recipe, folder: Path) -> list[Run]:
    """Each run of a recipe, with its folder: the folder itself if there is only one run.

    Raises UnmaskError if two designs would share a folder.
    """
    designs = {design.replace("/", "-"): design for design in recipe.designs}
    if len(designs) < len(recipe.designs):
        shared = next(design for design in recipe.designs if design not in designs.values())
        raise UnmaskError(
            f"'{shared}' and '{designs[shared.replace('/', '-')]}' would share a folder: train them in two recipes."
        )
    many = len(designs) * len(recipe.seeds) > 1
    return [
        Run(Design.parse(design), seed, folder / f"{name}.seed{seed}" if many else folder)
        for name, design in designs.items()
        for seed in recipe.seeds
    ]


def claim(recipe: Recipe, folder: Path) -> None:
    """Write the recipe into its folder. Raises UnmaskError if the folder holds steps of another recipe."""
    saved, settings = read_record(folder / RECIPE), json.loads(recipe.model_dump_json(by_alias=True))
    if is_begun(folder):
        if saved is not None:
            same = _is(recipe, saved)
        else:  # damaged, or lost: each run has noted which recipe it is of
            files = [run.folder / DATA for run in runs(recipe, folder)]
            notes = [DataRecord.read(file) for file in files if file.is_file()]
            same = bool(notes) and all(note is not None and note.recipe == digest(recipe) for note in notes)
        if not same:
            raise UnmaskError(f"'{folder}' holds a run of another recipe or other settings: give another folder.")
    else:
        _refuse_foreign(recipe, folder)
    write_record(folder / RECIPE, settings)


def _is(recipe: Recipe, saved: dict[str, Any]) -> bool:
    """Whether saved settings are those of this recipe. A setting that a later version added has its default."""
    try:
        return Recipe.model_validate(saved) == recipe
    except ValidationError:
        return False


def _refuse_foreign(recipe: Recipe, folder: Path) -> None:
    """Raise UnmaskError if a file of somebody else stands where a run would write its own."""
    for run in runs(recipe, folder):
        for file in (folder / RECIPE, *(run.folder / record for record in (DATA, BASE, RUN))):
            refuse_foreign(file, [CHECKSUM])
        if run.result.exists() and not (run.result.is_dir() and not any(run.result.iterdir())):
            raise UnmaskError(
                f"'{run.result}' exists and is not a trained embedder, so it is not overwritten: give another folder."
            )


def is_begun(folder: Path) -> bool:
    """Whether a folder holds results of training. A command that only read its data left none."""
    made = ("model/unmask.json", f"stages/*/{DONE}", "stages/*/checkpoint-*")
    return any(any(folder.glob(f"{depth}{pattern}")) for depth in ("", "*/") for pattern in made)


def digest(recipe: Recipe) -> str:
    """The digest of all settings of a recipe."""
    return hashlib.sha256(recipe.model_dump_json(by_alias=True).encode()).hexdigest()[:16]


def is_done(run: Run) -> bool:
    """Whether a run is finished and its result intact. A damaged result is made again from the weights of its stages."""
    if not (run.result / "unmask.json").is_file():
        return False
    try:
        check_seal(run.result)
    except Damaged as error:
        warnings.warn(f"The result is made again: {error}", stacklevel=2)
        return False
    return RunRecord.read(run.folder / RUN) is not None
