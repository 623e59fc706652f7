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
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from unmask.errors import UnmaskError, first_problem
from unmask.io.files import atomic_folder, inside, only_writer_of
from unmask.io.seals import SEAL, check_seal, load_tensors, read_record, save_tensors, seal
from unmask.models.identity import pinned, recorded_base, require_same_base, require_unchanged_base
from unmask.models.loading import Source, base_of, load_base_language_model, own_tokenizer
from unmask.models.source import adapter_weights, same_place
from unmask.moe.mixture.expert_folder import Expert, content_of, read_expert, require_stackable
from unmask.moe.mixture.gating import Routing
from unmask.moe.mixture.model import MixtureModel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

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


class Mixture(MixtureModel):
    """A base model with experts under a router, on disk and in memory."""

    @classmethod
    def from_pretrained(cls, folder: str | Path, **source: Any) -> Mixture:
        """Load a saved mixture, with its `tokenizer`. source: options of Source, such as dtype and device. Raises UnmaskError."""
        mixture, tokenizer = load_mixture(Path(folder), Source(str(folder), **source))
        mixture.tokenizer = tokenizer
        return mixture

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the experts, the routers and the settings into a new folder. Raises UnmaskError if the folder exists."""
        with only_writer_of(Path(folder)), atomic_folder(Path(folder)) as scratch:
            self.write_files(scratch)
            seal(scratch)

    def write_files(self, folder: Path) -> None:
        """Write into an existing folder. Raises UnmaskError if the files of the base or of an expert changed since they were loaded."""
        require_unchanged_base(self.body)
        for expert in [*self.experts, self.shared] if self.shared else self.experts:
            _copy_expert(expert, inside(folder / EXPERTS, expert.name))
        save_tensors(folder / ROUTERS, {name: router.weight for name, router in self.routers.items()})
        names = tuple(expert.name for expert in self.experts)
        base = pinned(self.source, self.model)
        settings = MixtureSettings(
            base=base.base,
            revision=base.revision,
            base_weights=base.base_weights,
            experts=names,
            shared=self.shared.name if self.shared else None,
            routing=self.routing,
        )
        (folder / SETTINGS).write_text(settings.model_dump_json(indent=2) + "\n", encoding="utf-8")


def build_mixture(
    folders: Sequence[Path], routing: Routing, source: Source | None = None, seed: int = 0, shared: Path | None = None
) -> tuple[Mixture, PreTrainedTokenizerBase]:
    """Load the base model of some experts and put them in, under an untrained router.

    source: the base and how to load it; by default, the base that the experts name. shared: an expert that always acts. Raises UnmaskError.
    """
    experts = [read_expert(folder) for folder in folders]
    always = read_expert(shared) if shared else None
    require_stackable(experts)
    source = base_of_experts([*experts, always] if always else experts, source or Source(""))
    model, tokenizer = load_base_language_model(source)
    return Mixture(model, experts, routing, shared=always, source=source, seed=seed), tokenizer


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


def _copy_expert(expert: Expert, folder: Path) -> None:
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


def load_mixture(folder: Path, source: Source) -> tuple[Mixture, PreTrainedTokenizerBase]:
    """Read what `Mixture.write_files` wrote. Raises UnmaskError, also for a damaged folder and for a base model that has changed.

    source: how to load the base. If its adapter is the mixture, its model is the base.
    """
    check_seal(folder)
    settings = read_mixture_settings(folder)
    experts = [read_expert(inside(folder / EXPERTS, name), name) for name in settings.experts]
    shared = read_expert(inside(folder / EXPERTS, settings.shared), settings.shared) if settings.shared else None
    base = replace(source, adapters=(), merge=False) if source.adapters else base_of(folder, source)
    model, tokenizer = load_base_language_model(base)
    mixture = Mixture(model, experts, settings.routing, shared=shared, source=base)
    if not (folder / ROUTERS).is_file():
        raise UnmaskError(f"'{folder}' is a mixture without its routers ({ROUTERS}).")
    mixture.load_routers(load_tensors(folder / ROUTERS))
    saved_tokenizer = own_tokenizer(folder, source)
    return mixture, tokenizer if saved_tokenizer is None else saved_tokenizer


def read_mixture_settings(folder: Path) -> MixtureSettings:
    """The settings in `mixture.json`. Raises UnmaskError."""
    file = folder / SETTINGS
    try:
        return MixtureSettings.model_validate_json(file.read_bytes())
    except ValidationError as error:
        raise UnmaskError(f"'{file}' is not what this version of unmask wrote: {first_problem(error)}.") from error
