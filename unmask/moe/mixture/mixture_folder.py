"""Mixture folders: a PEFT folder for each expert, the routers, and a small file that says what belongs together.

```
mixture.json         base model and revision, experts in the order of the router's rows, routing, the shared expert if there is one
router.safetensors   "router" (n, dim), or one for each block
experts/NAME/        config, weights, record, card and seal of an expert, unchanged: plain peft still loads it on the base
```
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from unmask.errors import UnmaskError, first_problem
from unmask.io.seals import SEAL, read_record
from unmask.models.identity import recorded_base, require_same_base
from unmask.models.loading import Source, base_of
from unmask.models.source import adapter_weights, same_place
from unmask.moe.mixture.expert_folder import Expert, content_of
from unmask.moe.mixture.gating import Routing

SETTINGS, ROUTERS, EXPERTS = "mixture.json", "router.safetensors", "experts"


class MixtureSettings(BaseModel):
    """What `mixture.json` holds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    base: str
    revision: str | None = None
    base_weights: str | None = None
    experts: tuple[str, ...]
    shared: str | None = None
    routing: Routing


def base_of_experts(experts: Sequence[Expert], source: Source) -> Source:
    """The base model of some experts: the one that `source` names, else the one that the experts name.

    Raises UnmaskError if they were trained on another model, or if the model has changed since.
    """
    if not source.model:
        if not experts[0].base:
            raise UnmaskError(f"Expert '{experts[0].name}' does not name its base model. Give the base model.")
        source = base_of(experts[0].folder, source)
    for expert in experts:
        if recorded_base(expert.folder) is not None:
            require_same_base(expert.folder, source)
        elif expert.base and not same_place(expert.base, source.model):
            raise UnmaskError(f"'{expert.name}' is an expert of '{expert.base}', not of '{source.model}'.")
    return source


def copy_expert(expert: Expert, folder: Path) -> None:
    """Copy the files of an expert by their names. Whatever else lies there is not copied: a link may lead to a file of the user.

    The files of an expert from the hub are links too. The config and the weights have been read as such. Of the others, a link is
    copied only if the seal lists it, so that whoever made the expert knew its content. Raises UnmaskError if the weights have changed since
    they were read.
    """
    folder.mkdir(parents=True)
    source = expert.folder
    weights = adapter_weights(source) or source / "adapter_model.safetensors"
    for name in ("adapter_config.json", weights.name):
        shutil.copyfile(source / name, folder / name)
    if expert.content is not None and expert.content != content_of(folder):
        raise UnmaskError(
            f"The expert in '{source}' has changed since this mixture was loaded, so the mixture would be saved with other experts than it "
            "has. Put the old files back, or load the mixture again."
        )
    sealed = read_record(source / SEAL) or {}
    for name in ("expert.json", "README.md"):
        if (source / name).is_file() and (name in sealed or not (source / name).is_symlink()):
            shutil.copyfile(source / name, folder / name)
    if sealed and all((folder / name).is_file() for name in sealed):
        shutil.copyfile(source / SEAL, folder / SEAL)


def read_mixture_settings(folder: Path) -> MixtureSettings:
    """The settings in `mixture.json`. Raises UnmaskError."""
    file = folder / SETTINGS
    try:
        return MixtureSettings.model_validate_json(file.read_bytes())
    except ValidationError as error:
        raise UnmaskError(f"'{file}' is not what this version of unmask wrote: {first_problem(error)}.") from error
