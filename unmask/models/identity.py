"""Identity: what makes two loads of a model the same. Every key, record and report takes it from here.

Weights are identified by their content, every byte of it, including the base model below an adapter or a mixture. A model on the hub is
identified by its commit, and an adapter there by its own files. Library versions are recorded with results, but are not part of the
identity: a patch release must not make results invalid.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic import BaseModel
from torch import nn

from unmask.errors import UnmaskError
from unmask.models.bundled import is_path, resolve
from unmask.models.conversion import is_gguf
from unmask.models.digests import digest_of_folder, state_of_folder
from unmask.models.hub import hub_commit
from unmask.models.placement import stored_parts
from unmask.models.source import Source, adapter_folder, below, is_adapter, is_mixture, lasting_name, place_of

Model = TypeVar("Model", bound=Any)
ReadFolder = Callable[[Path, str], str]
"""Tells what a folder holds in files of a pattern."""

RECORDS = ("unmask.json", "mixture.json", "expert.json")
"""Files that record the base model of a folder."""
BASE_MODEL = "base model"
"""The input of a run under which its base model is recorded."""
_NO_SETTINGS = (
    *("architectures", "attn_implementation", "auto_map", "dtype", "experts_implementation", "id2label", "is_causal"),
    *("label2id", "output_attentions", "output_hidden_states", "problem_type", "return_dict", "tie_word_embeddings"),
    *("torch_dtype", "transformers_version", "use_cache"),
)
"""Entries of a config that no vector depends on, or that a design sets. So are those that begin with an underscore."""
_WRAPPED = re.compile(r"\.(base_layer|original_module|base)\.")
"""What peft and a mixture add to the name of a weight whose module they wrap."""
CHANGE_BASE = ("pissa", "olora", "loftq", "corda", "lora_ga")
"""Beginnings of a LoRA that take something out of the base model when peft puts them on it, at every load."""
_SAMPLED = 8
"""Numbers of each weight that show whether a loaded model has changed."""

IN_MEMORY = "memory-"
"""What the revision of a model starts with whose weights are not those of its files."""


@dataclass(frozen=True)
class ModelIdentity:
    """The parts that identify a model.

    weights: content of its folder, or its commit on the hub. base: the model below an adapter or a mixture. adapter: its content, of
    several joined by "+". merged: whether the adapter was merged into the weights, which rounds them. quantize: as in Source.
    """

    weights: str
    base: ModelIdentity | None = None
    adapter: str | None = None
    merged: bool = False
    quantize: str | None = None

    @property
    def revision(self) -> str:
        """One short name for all parts. For a plain model, the name of its weights."""
        if self.base is None and self.adapter is None and self.quantize is None:
            return self.weights
        return hashlib.sha256(json.dumps(self.as_json(), sort_keys=True).encode()).hexdigest()[:16]

    def as_json(self) -> dict[str, Any]:
        """The parts that are not empty."""
        parts = {
            "weights": self.weights,
            "base": self.base and self.base.as_json(),
            "adapter": self.adapter,
            "merged": self.merged,
            "quantize": self.quantize,
        }
        return {name: value for name, value in parts.items() if value}


def identity_of(source: Source) -> ModelIdentity:
    """The identity of the model that a source loads. Raises UnmaskError for a missing model."""
    return replace(_identity(source, digest_of_folder), quantize=source.quantize)


def _identity(source: Source, digest: ReadFolder) -> ModelIdentity:
    """The identity of a model. digest: maps a folder and a file pattern to a string."""
    folder, adapters = Path(place_of(source)), source.adapters
    weights = digest(folder, _own_files(source.model)) if folder.is_dir() else hub_commit(str(folder), source.revision)
    on_top = "+".join(digest(Path(adapter_folder(adapter)), _own_files(adapter)) for adapter in adapters) or None
    if on_top and is_mixture(Path(resolve(adapters[0]))):  # its base is the model, named by the user
        return ModelIdentity(on_top, base=ModelIdentity(weights))
    base = below(folder, source) if folder.is_dir() else None
    merged = len(adapters) > 1 or (source.merge and (bool(adapters) or is_adapter(folder)))
    return ModelIdentity(weights, _identity(base, digest) if base else None, on_top, merged)


def _own_files(name: str) -> str:
    """A pattern of the files that count. Beside an adapter on the hub lies whatever other programs have downloaded from there."""
    return "*" if Path(resolve(name)).is_dir() else "adapter_*"


def note_source(model: Model, source: Source, base: Source | None = None) -> Model:
    """Note on a loaded decoder where it and its base model came from. Its identity and its saving need that."""
    model.unmask_source, model.unmask_base = source, base or replace(source, adapters=(), merge=False)
    model.unmask_sample, model.unmask_files = _sample(model), _state_of_files(source)
    return model


def note_saved(model: nn.Module, folder: Path) -> None:
    """Note that a decoder was saved over the folder that it was loaded from: its files hold the weights in memory again."""
    source, base = source_of(model), base_of_loaded(model)
    if source is not None and lasting_name((source.model, *source.adapters)[-1]) == str(folder.resolve()):
        note_source(model, source, base)  # type: ignore[arg-type]
        if base is not None and lasting_name(base.model) == str(folder.resolve()):  # no adapter or mixture over another base
            note_base_values(model)


def _state_of_files(source: Source) -> ModelIdentity | None:
    """The identity of a model, with names and times of its files in place of their content. None if the model is not there."""
    try:
        return _identity(source, state_of_folder)
    except UnmaskError:
        return None


def source_of(model: nn.Module) -> Source | None:
    """Where a loaded decoder came from; None if it was not loaded here."""
    source = getattr(model, "unmask_source", None)
    return source if isinstance(source, Source) else None


def loaded_from(model: nn.Module, otherwise: Source) -> Source:
    """Where a decoder was loaded from: for a saved embedder its folder, not the model that it was made of."""
    return source_of(model) or otherwise


def base_of_loaded(model: nn.Module) -> Source | None:
    """The base model of a loaded decoder; None if it was not loaded here."""
    base = getattr(model, "unmask_base", None)
    return base if isinstance(base, Source) else None


def identity_of_loaded(model: nn.Module) -> ModelIdentity:
    """The identity of a loaded decoder.

    If it was not loaded here, or was trained since, it is the content of its weights in memory. So it is if its files were written
    since: they may hold other weights now. A mixture that routes in another way than when it was loaded is named by its routing, too, and
    so is a model whose adapters are scaled, chosen or switched off in another way.
    """
    source = source_of(model)
    if source is not None and getattr(model, "unmask_sample", None) == _sample(model):
        noted = getattr(model, "unmask_files", None)
        if noted is None or noted == _state_of_files(source):
            return identity_of(source)
    return ModelIdentity(f"{IN_MEMORY}{_in_memory(model)}")


def _sample(model: nn.Module) -> tuple[str, list[tuple[str, int, list[float]]]]:
    """What any training changes of a model: the names of its weights, how often each was written to, and its first numbers.

    Also how a mixture uses its experts and how adapters are applied, which needs no training to change.
    torch counts what is written to a tensor, but not what its fused optimizers write. A move to another device changes nothing here.
    """
    weights = [
        (name, 0 if weight.is_inference() else weight._version, _first(weight).tolist())
        for name, weight in model.named_parameters()
        if weight.device.type != "meta"  # offloaded weights are read from their files each time
    ]
    return _in_use(model), weights


def _first(weight: torch.Tensor) -> torch.Tensor:
    """The first numbers of a weight."""
    return torch.atleast_1d(next(stored_parts(weight)))[:1].flatten()[:_SAMPLED]


def _in_use(model: nn.Module) -> str:
    """How a mixture uses its experts at the moment, and how adapters are applied. Empty for a plain model."""
    mixture = getattr(model, "mixture", None)
    adapters = [f"{name} {state}" for name, module in model.named_modules() if (state := _adapter_state(module))]
    return "\n".join(["" if mixture is None else str(mixture.in_use), *adapters])


def _adapter_state(module: nn.Module) -> str:
    """How a peft layer applies its adapters: scaling, active and merged ones. Empty for other modules."""
    off = getattr(module, "disable_adapters", None)
    if not isinstance(off, bool):  # a model of transformers has a method of this name
        return ""
    scaling = getattr(module, "scaling", None)
    factors = sorted(scaling.items()) if isinstance(scaling, dict) else []
    return f"{factors} {list(module.active_adapters)} {off} {list(module.merged_adapters)}"  # type: ignore[arg-type]


def _of_vectors(config: Any) -> Any:
    """A config without what no vector depends on."""
    if isinstance(config, dict):
        public = {str(name): value for name, value in config.items() if not str(name).startswith("_")}
        return {name: _of_vectors(value) for name, value in public.items() if name not in _NO_SETTINGS}
    return [_of_vectors(part) for part in config] if isinstance(config, list | tuple) else config


def _in_memory(model: nn.Module) -> str:
    settings = json.dumps(_of_vectors(model.config.to_dict()), sort_keys=True, default=str)  # type: ignore[operator,union-attr]
    digest = hashlib.sha256(f"{_in_use(model)}\n{settings}\n".encode())
    for name, weight in sorted(model.state_dict().items()):
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}\n".encode())
        for part in stored_parts(weight):
            digest.update(part.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


def attention_implementation(model: Any) -> str | None:
    """What computes the attention of a loaded model: sdpa, eager, or another."""
    return getattr(model.config.get_text_config(decoder=True), "_attn_implementation", None)


@dataclass(frozen=True)
class Pinned:
    """A base model in a record: an absolute path or a hub id, its commit on the hub, and the name of its weights."""

    base: str
    revision: str | None
    base_weights: str | None


def pinned(base: Source, model: Any = None) -> Pinned:
    """A base model with all that a later load needs to find it and to notice a change.

    model: the loaded model, which knows its commit on the hub. A model that exists in memory only has no name of its weights.
    """
    name = lasting_name(base.model)
    if not name or (is_path(name) and not Path(name).is_dir() and not is_gguf(Path(name))):
        return Pinned(name, base.revision, None)
    if Path(resolve(name)).is_dir():
        return Pinned(name, None, identity_of(replace(base, quantize=None)).revision)
    commit = getattr(getattr(model, "config", None), "_commit_hash", None)
    if commit is None and model is not None:
        return Pinned(name, base.revision, None)  # not from the hub, whatever its name says
    commit = commit or hub_commit(name, base.revision)
    return Pinned(name, commit, commit)


class _BaseRecord(BaseModel):
    """What the records of embedders, mixtures and experts say of the base model."""

    base_weights: str | None = None
    inputs: dict[str, str] = {}


def recorded_base(folder: Path) -> str | None:
    """The recorded name of the base model's weights, in the folder of an adapter or a mixture. None without a record."""
    for name in RECORDS:
        if (folder / name).is_file():
            with suppress(ValueError):  # the code that needs this file reports the damage
                record = _BaseRecord.model_validate_json((folder / name).read_bytes())
                if weights := record.base_weights or record.inputs.get(BASE_MODEL):
                    return weights
    return None


def require_same_base(folder: Path, base: Source) -> None:
    """Raise UnmaskError if an adapter or a mixture was made on another base model."""
    before = recorded_base(folder)
    if before is None or base.revision == before:
        return
    now = identity_of(replace(base, quantize=None)).revision  # an adapter may lie over quantised weights of its base
    if now != before:
        raise UnmaskError(
            f"'{base.model}', the base model of '{folder}', has changed since that was made: its weights were {before} and are "
            f"{now} now. Restore the old base. To use the new one all the same, name both: --model {base.model} --adapter {folder}."
        )


def note_base_values(model: nn.Module) -> None:
    """Note on a decoder that was just loaded the first numbers of its weights, before an adapter or experts are put in."""
    # cloned, since `float` and `cpu` may give the numbers themselves, which change with the weight
    weights = ((name, weight) for name, weight in model.named_parameters() if weight.device.type != "meta")
    values = {name: _first(weight).float().cpu().clone() for name, weight in weights}
    model.unmask_base_values = values  # type: ignore[assignment]


def _changed_in_memory(model: nn.Module) -> str | None:
    """The first weight of the base model that has other numbers than when it was loaded. None if there is none."""
    configs = getattr(model, "peft_config", None) or {}
    if any(str(getattr(config, "init_lora_weights", "")).lower().startswith(CHANGE_BASE) for config in configs.values()):
        return None  # loading changes the base in the same way
    noted = getattr(model, "unmask_base_values", {})
    # an adapter that trained biases also replaces the biases of the base
    biases = any(getattr(config, "bias", "none") != "none" for config in configs.values())
    for name, weight in model.named_parameters():
        plain = _WRAPPED.sub(".", name)
        if plain in noted and not (biases and plain.endswith(".bias")) and not _is_close(_first(weight).cpu(), noted[plain]):
            return plain
    return None


def _is_close(now: torch.Tensor, before: torch.Tensor) -> bool:
    """Whether a weight has its old numbers, in its precision of now. peft takes a merged adapter out again, but for rounding."""
    rounding = max(1e-5, 2 * torch.finfo(now.dtype).eps) if now.is_floating_point() else 0.0
    before = before.to(now.dtype).float()
    return bool(((now.float() - before).abs() <= rounding * before.abs().max()).all())


def require_unchanged_base(model: nn.Module) -> None:
    """Raise UnmaskError if the weights of the base model were changed in memory: a record would name the weights on disk."""
    base = base_of_loaded(model)
    if base is not None and (name := _changed_in_memory(model)):
        raise UnmaskError(
            f"'{name}' of the base model '{base.model}' was changed in memory: something was merged into it, or it was trained. What is "
            "saved would name the base on disk, which lacks that. Save the whole model first, without the adapter or the experts over it. "
            "Load that, and put them on it."
        )
