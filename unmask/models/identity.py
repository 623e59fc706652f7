"""Identity: what makes two loads of a model the same. Every key, record and manifest takes it from here.

The weights count by content, every byte of them; below an adapter or a mixture the base model's count too. A model on the hub is its
commit. Library versions are kept beside results, but do not make another model: a patch release must not void what was measured.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from unmask.errors import UnmaskError
from unmask.io.files import fingerprint
from unmask.models.bundled import is_path, resolve
from unmask.models.digests import digest_of_folder
from unmask.models.hub import hub_commit
from unmask.models.source import Source, adapter_folder, below, is_adapter, is_mixture, lasting_name, place_of

Model = TypeVar("Model", bound=Any)
RECORDS = {"unmask.json": "base_weights", "mixture.json": "base_weights", "expert.json": "base_weights"}
"""Files that record what the base model was when a folder was made, and under which name."""


@dataclass(frozen=True)
class ModelIdentity:
    """What a model is made of.

    weights: content of its folder, or its commit on the hub; base: of the model below an adapter or a mixture; adapter: content of what
    was put on it; merged: whether an adapter was folded into the weights, which rounds them.
    """

    weights: str
    base: ModelIdentity | None = None
    adapter: str | None = None
    merged: bool = False

    @property
    def revision(self) -> str:
        """One short name for all of it; of a plain model, that of its weights."""
        if self.base is None and self.adapter is None:
            return self.weights
        return hashlib.sha256(json.dumps(self.as_json(), sort_keys=True).encode()).hexdigest()[:16]

    def as_json(self) -> dict[str, Any]:
        """Its parts, those that it has."""
        parts = {
            "weights": self.weights,
            "base": self.base and self.base.as_json(),
            "adapter": self.adapter,
            "merged": self.merged,
        }
        return {name: value for name, value in parts.items() if value}


def identity_of(source: Source) -> ModelIdentity:
    """The identity of what a source loads. Raises UnmaskError for a model that is not there."""
    place, adapter = Path(place_of(source)), source.adapter
    if adapter and is_mixture(Path(resolve(adapter))):  # its base is the model, named by the user
        return ModelIdentity(_content(adapter_folder(adapter), None), base=ModelIdentity(_content(str(place), source.revision)))
    base = below(place, source) if place.is_dir() else None
    merged = source.merge and (adapter is not None or is_adapter(place))
    on_top = _content(adapter_folder(adapter), None) if adapter else None
    return ModelIdentity(_content(str(place), source.revision), identity_of(base) if base else None, on_top, merged)


def _content(place: str, revision: str | None) -> str:
    return digest_of_folder(Path(place)) if Path(place).is_dir() else hub_commit(place, revision)


def older_revision(source: Source) -> str | None:
    """How versions before this one named the same weights; None where they left something out, so that their name proves nothing.

    They sampled the weights, in safetensors only, and did not look below an adapter or a mixture.
    """
    place = Path(place_of(source))
    if not place.is_dir() or source.adapter or is_adapter(place) or is_mixture(place):
        return None
    others = (".bin", ".pt", ".pth", ".ckpt", ".gguf", ".npz")
    return None if any(file.suffix in others for file in place.rglob("*")) else fingerprint(place)


def note_source(model: Model, source: Source, base: Source | None = None) -> Model:
    """Keep with a loaded decoder where it and the base model below it came from, for whoever asks for its identity or saves it."""
    model.unmask_source, model.unmask_base = source, base or replace(source, adapter=None, merge=False)
    return model


def source_of(model: nn.Module) -> Source | None:
    """Where a loaded decoder came from; None for one that was not loaded here."""
    found = getattr(model, "unmask_source", None)
    return found if isinstance(found, Source) else None


def base_of_loaded(model: nn.Module) -> Source | None:
    """The model below the adapter of a loaded decoder; None for one that was not loaded here."""
    found = getattr(model, "unmask_base", None)
    return found if isinstance(found, Source) else None


def identity_of_loaded(model: nn.Module) -> ModelIdentity:
    """The identity of a loaded decoder; of one that was not loaded here, the content of its weights in memory."""
    source = source_of(model)
    return identity_of(source) if source else ModelIdentity(f"memory-{_in_memory(model)}")


def _in_memory(model: nn.Module) -> str:
    import torch

    digest = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}\n".encode())
        digest.update(weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


def attention_implementation(model: Any) -> str | None:
    """What computes the attention of a loaded model: sdpa, eager, or another."""
    return getattr(model.config.get_text_config(decoder=True), "_attn_implementation", None)


@dataclass(frozen=True)
class Pinned:
    """A base model as a record keeps it: an absolute path or a hub id, its commit on the hub, and the name of its weights."""

    base: str
    revision: str | None
    base_weights: str | None


def pinned(base: Source, model: Any = None) -> Pinned:
    """A base model with all that a later load needs to find it again, and to notice that it has changed.

    model: as it was loaded; it knows its commit on the hub. A model that was only ever in memory has no weights to be named by.
    """
    name = lasting_name(base.model)
    if not name or (is_path(name) and not Path(name).is_dir()):
        return Pinned(name, base.revision, None)
    if Path(resolve(name)).is_dir():
        return Pinned(name, None, identity_of(base).revision)
    commit = getattr(getattr(model, "config", None), "_commit_hash", None)
    if commit is None and model is not None:
        return Pinned(name, base.revision, None)  # not from the hub, whatever its name says
    commit = commit or hub_commit(name, base.revision)
    return Pinned(name, commit, commit)


def recorded_base(folder: Path) -> str | None:
    """What the base model's weights were when an adapter or a mixture was made; None if nothing says so."""
    for name, key in RECORDS.items():
        if (folder / name).is_file():
            try:
                said = json.loads((folder / name).read_text(encoding="utf-8"))
            except ValueError:
                continue  # whoever needs that file says that it is damaged
            if isinstance(said, dict) and said.get(key):
                return str(said[key])
    return None


def require_same_base(folder: Path, base: Source) -> None:
    """Raise UnmaskError if the base model below an adapter or a mixture is not the one that it was made on."""
    before = recorded_base(folder)
    if before is None or base.revision == before:
        return
    now = identity_of(base).revision
    if now != before:
        raise UnmaskError(
            f"'{base.model}', the base model of '{folder}', has changed since that was made: its weights were {before} and are "
            f"{now} now. Bring the old base back. To use the new one all the same, name both: --model {base.model} --adapter {folder}."
        )
