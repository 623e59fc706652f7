"""Expert folders: plain PEFT folders, read without changing the model that they belong to."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError
from torch import Tensor, nn

from unmask.errors import UnmaskError, first_problem
from unmask.io.seals import Damaged, check_seal, save_tensors
from unmask.models.decoder import body_of
from unmask.models.digests import digest_of_file
from unmask.models.identity import CHANGE_BASE, recorded_base
from unmask.models.source import adapter_weights, base_name, lasting_name
from unmask.moe.mixture.gating import Factors
from unmask.saving.saved_adapter import sort_adapter_config

_PREFIX = "base_model.model."
UNREADABLE = {
    "use_dora": "DoRA",
    "rank_pattern": "a rank for each module",
    "alpha_pattern": "a scale for each module",
    "modules_to_save": "full modules in addition to the LoRA",
    "target_parameters": "experts of a mixture of experts",
    "trainable_token_indices": "embeddings",
    "lora_bias": "biases",
    "alora_invocation_tokens": "aLoRA",
    "use_qalora": "QA-LoRA",
    "kasa_config": "KaSA",
    "velora_config": "VeLoRA",
    "monteclora_config": "MonteCLoRA",
    "use_bdlora": "BD-LoRA",
    "arrow_config": "Arrow, which routes",
    "layer_replication": "copies of layers",
}
"""Settings under which an adapter is more, or other, than a change scale * B A of each linear layer."""


class _AdapterConfig(BaseModel):
    """The keys of adapter_config.json that are always read; further ones are in `model_extra`."""

    model_config = ConfigDict(extra="allow")

    peft_type: str | None = None
    r: PositiveInt = 1
    lora_alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1
    base_model_name_or_path: str | None = None


@dataclass(frozen=True, eq=False)
class Expert:
    """One LoRA adapter.

    scale: by which the product of its factors in the folder is multiplied. factors: by the name that the linear layer which they change has
    in the causal language model; the scale is in the second one. base_weights: of the base by their content, if the folder says it.
    content: a hash of the files that were read; None if the factors do not come from files.
    """

    name: str
    folder: Path
    base: str
    rank: int
    scale: float
    factors: Mapping[str, Factors]
    base_weights: str | None = None
    content: str | None = None


def read_expert(folder: Path, name: str | None = None) -> Expert:
    """Read a PEFT folder. Raises UnmaskError for anything but a plain LoRA."""
    file = folder / "adapter_config.json"
    if not file.is_file():
        raise UnmaskError(f"'{folder}' is not an expert adapter: adapter_config.json is missing.")
    check_seal(folder)
    if adapter_weights(folder) is None:
        raise UnmaskError(f"'{folder}' is not an expert adapter: its weights are missing (adapter_model.safetensors).")
    content = content_of(folder)  # first: files that change while they are read are noticed later
    try:
        config = _AdapterConfig.model_validate_json(file.read_bytes())
    except ValidationError as error:
        raise Damaged(f"'{file}' is damaged: {first_problem(error)}.") from error
    extra_fields = config.model_extra or {}
    if config.peft_type != "LORA":
        raise UnmaskError(f"'{folder}' is not an expert adapter: its type is {config.peft_type}, not LORA.")
    trained = [f"{feature} ({key})" for key, feature in UNREADABLE.items() if extra_fields.get(key)]
    if extra_fields.get("bias", "none") != "none":
        trained.append("biases")
    if str(extra_fields.get("init_lora_weights")).lower().startswith(CHANGE_BASE):
        trained.append("on a base whose weights PEFT changed first (init_lora_weights)")
    if trained:
        raise UnmaskError(
            f"'{folder}' cannot be an expert: it trains {trained[0]}. An expert is a plain LoRA of linear layers."
        )
    weights = _load_weights(folder)
    scale = config.lora_alpha / (math.sqrt(config.r) if extra_fields.get("use_rslora") else config.r)
    base = config.base_model_name_or_path or ""
    with suppress(UnmaskError):  # a missing base is an error only where it is loaded
        base = base and base_name(base, folder)
    return Expert(
        name=name or Path(os.path.abspath(folder)).name,  # noqa: PTH100 (of `.` and `..` too, and a link keeps its name)
        folder=folder,
        base=base,
        rank=config.r,
        scale=scale,
        factors=_pair_factors(folder, weights, scale),
        base_weights=recorded_base(folder),
        content=content,
    )


def content_of(folder: Path) -> str:
    """A hash of the files that decide what an expert adds: its config and its weights. Raises UnmaskError if one cannot be read."""
    weights = adapter_weights(folder) or folder / "adapter_model.safetensors"
    digests = [digest_of_file(file) for file in (folder / "adapter_config.json", weights)]
    return hashlib.sha256(" ".join([weights.name, *digests]).encode()).hexdigest()[:16]


def _load_weights(folder: Path) -> dict[str, Tensor]:
    from peft.utils import load_peft_weights
    from safetensors import SafetensorError

    try:
        return load_peft_weights(str(folder.absolute()), device="cpu")  # type: ignore[no-any-return]
    except (SafetensorError, RuntimeError, EOFError) as error:
        raise Damaged(f"The weights in '{folder}' are damaged: {error}.") from error
    except UnpicklingError as error:
        raise Damaged(f"The weights in '{folder}' are damaged, or the file holds more than weights.") from error


def _pair_factors(folder: Path, weights: Mapping[str, Tensor], scale: float) -> dict[str, Factors]:
    factors: dict[str, Factors] = {}
    for key, down in weights.items():
        if not key.endswith(".lora_A.weight"):
            continue
        up = weights.get(key.replace(".lora_A.", ".lora_B."))
        if up is None or not key.startswith(_PREFIX):
            raise UnmaskError(f"'{folder}' is not a complete LoRA adapter: {key} has no second factor.")
        factors[key.removeprefix(_PREFIX).removesuffix(".lora_A.weight")] = (down.float(), up.float() * scale)
    if len(factors) * 2 != len(weights):
        raise UnmaskError(f"'{folder}' cannot be an expert: some of its weights are not LoRA factors of linear layers.")
    return factors


def write_expert(expert: Expert, folder: Path, alpha: float) -> None:
    """Write an expert as a PEFT folder with the scale alpha / rank, for the base model that it names."""
    from peft import LoraConfig

    config = LoraConfig(r=expert.rank, lora_alpha=alpha, target_modules=list(expert.factors), task_type="CAUSAL_LM")
    config.base_model_name_or_path = lasting_name(expert.base) if expert.base else None
    config.inference_mode = True
    config.save_pretrained(folder)
    sort_adapter_config(folder)
    weights = {}
    for name, (down, up) in expert.factors.items():
        weights[f"{_PREFIX}{name}.lora_A.weight"] = down
        weights[f"{_PREFIX}{name}.lora_B.weight"] = up * (expert.rank / alpha)
    save_tensors(folder / "adapter_model.safetensors", weights)


def require_stackable(experts: Sequence[Expert]) -> None:
    """Raise UnmaskError if experts cannot be stacked: equal names, different ranks, different linear layers, different base models."""
    if not experts:
        raise UnmaskError("A mixture needs at least one expert.")
    names = [expert.name for expert in experts]
    if len(set(names)) < len(names):
        raise UnmaskError(f"Two experts have the same name: {', '.join(names)}. Rename the folder of one of them.")
    first = experts[0]
    for expert in experts[1:]:
        # by content where both record it: a base may have been moved between two trainings
        by_content = first.base_weights and expert.base_weights
        if first.base_weights != expert.base_weights if by_content else first.base != expert.base:
            raise UnmaskError(f"'{expert.name}' is an expert of '{expert.base}', '{first.name}' of '{first.base}'.")
        if expert.rank != first.rank:
            raise UnmaskError(
                f"'{expert.name}' has rank {expert.rank}, '{first.name}' has {first.rank}. All experts of a mixture need one rank."
            )
        if lacking := first.factors.keys() ^ expert.factors.keys():
            raise UnmaskError(
                f"Only one of '{expert.name}' and '{first.name}' changes {min(lacking)}. Both must change the same layers."
            )


def linear_of(model: nn.Module, expert: Expert, name: str) -> nn.Linear:
    """The linear layer of a language model that an expert changes. Raises UnmaskError if there is none, or one of another size."""
    down, up = expert.factors[name]
    size, problem = (up.shape[0], down.shape[1]), "the model has no such linear layer"
    linear, body = _submodule(model, name), body_of(model)
    if linear is None and _submodule(body, name) is not None:
        inside = next(path for path, module in model.named_modules() if module is body)
        raise UnmaskError(
            f"'{expert.name}' was trained on the decoder without its language-model head: it changes {name}, where the language model "
            f"has {inside}.{name}. Only an adapter of the whole language model is an expert. `unmask expert` trains one."
        )
    if linear is not None and type(linear) is not nn.Linear:
        raise UnmaskError(
            f"'{expert.name}' changes {name}, which is a {type(linear).__name__} in this model. An expert changes nn.Linear only."
        )
    if linear is not None:
        if tuple(linear.weight.shape) == size:
            return linear
        problem = f"the model's is {linear.out_features} x {linear.in_features}"
    raise UnmaskError(
        f"Expert '{expert.name}' does not fit this model: its {name} is {size[0]} x {size[1]}, {problem}. "
        "It was trained on another base model."
    )


def _submodule(model: nn.Module, name: str) -> nn.Module | None:
    try:
        return model.get_submodule(name)
    except AttributeError:
        return None
