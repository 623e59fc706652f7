"""Experts on disk: plain PEFT folders, read without changing the model that they belong to."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from unmask.errors import UnmaskError
from unmask.io.seals import Damaged, check_seal, save_tensors
from unmask.mixture.expert_linear import Factors
from unmask.models.source import base_name, lasting_name

_PREFIX = "base_model.model."
# what would make the change of a weight something other than scale * B A
_UNREADABLE = {
    "use_dora": "DoRA",
    "rank_pattern": "a rank for each module",
    "alpha_pattern": "a scale for each module",
    "modules_to_save": "whole modules beside the LoRA",
    "target_parameters": "experts of a mixture of experts",
    "trainable_token_indices": "embeddings",
    "lora_bias": "biases",
}


@dataclass(frozen=True, eq=False)
class Expert:
    """One LoRA adapter: its factors by the name of the linear map that they change, in the causal language model."""

    name: str
    folder: Path
    base: str
    rank: int
    factors: Mapping[str, Factors]


def read_expert(folder: Path, name: str | None = None) -> Expert:
    """Read a PEFT folder. Raises UnmaskError for one that is no plain LoRA."""
    if not (folder / "adapter_config.json").is_file():
        raise UnmaskError(f"'{folder}' is no expert: it has no adapter_config.json.")
    check_seal(folder)
    config = _config(folder / "adapter_config.json")
    if config.get("peft_type") != "LORA":
        raise UnmaskError(f"'{folder}' is no expert: it is {config.get('peft_type')}, and a mixture stacks LoRA.")
    for key, what in _UNREADABLE.items():
        if config.get(key):
            raise UnmaskError(
                f"'{folder}' cannot be an expert: it trains {what} ({key}), which a gated stack of LoRA cannot hold."
            )
    if config.get("bias", "none") != "none":
        raise UnmaskError(f"'{folder}' cannot be an expert: it trains biases, which a gated stack of LoRA cannot hold.")
    weights = _weights(folder)
    return Expert(
        name or folder.name,
        folder,
        _base(str(config.get("base_model_name_or_path") or ""), folder),
        int(config["r"]),
        _factors(folder, weights, _scale(config)),
    )


def _base(name: str, folder: Path) -> str:
    """The base as the folder names it; a path as absolute. One that is gone matters only to those who load it."""
    try:
        return base_name(name, folder) if name else ""
    except UnmaskError:
        return name


def _config(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_bytes())
    except ValueError as error:
        raise Damaged(f"'{file}' is damaged: it is not JSON: {error}.") from error
    if not isinstance(config, dict):
        raise Damaged(f"'{file}' is damaged: it holds no settings.")
    for key in ("r", "lora_alpha"):
        value = config.get(key)
        if config.get("peft_type") == "LORA" and not (isinstance(value, int | float) and 0 < value < math.inf):
            raise UnmaskError(f"'{file}' cannot be used: {key} is a number above 0, not {value!r}.")
    return config


def _weights(folder: Path) -> dict[str, Tensor]:
    from peft.utils import load_peft_weights
    from safetensors import SafetensorError

    try:
        return load_peft_weights(str(folder), device="cpu")  # type: ignore[no-any-return]
    except (SafetensorError, RuntimeError, EOFError) as error:
        raise Damaged(f"The weights in '{folder}' are damaged: {error}.") from error


def _scale(config: Mapping[str, Any]) -> float:
    rank = float(config["r"])
    return float(config["lora_alpha"]) / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _factors(folder: Path, weights: Mapping[str, Tensor], scale: float) -> dict[str, Factors]:
    found: dict[str, Factors] = {}
    for key, down in weights.items():
        if not key.endswith(".lora_A.weight"):
            continue
        up = weights.get(key.replace(".lora_A.", ".lora_B."))
        if up is None or not key.startswith(_PREFIX):
            raise UnmaskError(f"'{folder}' is not a whole LoRA adapter: {key} stands alone.")
        found[key.removeprefix(_PREFIX).removesuffix(".lora_A.weight")] = (down.float(), up.float() * scale)
    if len(found) * 2 != len(weights):
        raise UnmaskError(f"'{folder}' holds weights that are no LoRA factors of linear maps, so it cannot be an expert.")
    return found


def write_expert(expert: Expert, folder: Path, alpha: float) -> None:
    """Write factors as a PEFT folder of scale alpha / rank, for the base model that the expert names."""
    from peft import LoraConfig

    config = LoraConfig(r=expert.rank, lora_alpha=alpha, target_modules=sorted(expert.factors), task_type="CAUSAL_LM")
    config.base_model_name_or_path = lasting_name(expert.base) if expert.base else None
    config.inference_mode = True
    config.save_pretrained(folder)
    weights = {}
    for name, (down, up) in expert.factors.items():
        weights[f"{_PREFIX}{name}.lora_A.weight"] = down
        weights[f"{_PREFIX}{name}.lora_B.weight"] = up * (expert.rank / alpha)
    save_tensors(folder / "adapter_model.safetensors", weights)


def require_alike(experts: Sequence[Expert]) -> None:
    """Raise UnmaskError if experts cannot be stacked: names twice, other ranks, other maps, another base model."""
    if not experts:
        raise UnmaskError("A mixture has at least one expert.")
    names = [expert.name for expert in experts]
    if len(set(names)) < len(names):
        raise UnmaskError(f"Two experts have the same name: {', '.join(names)}.")
    first = experts[0]
    for other in experts[1:]:
        if other.base != first.base:
            raise UnmaskError(f"'{other.name}' is an expert of '{other.base}', '{first.name}' of '{first.base}'.")
        if other.rank != first.rank:
            raise UnmaskError(f"'{other.name}' has rank {other.rank}, '{first.name}' {first.rank}: a router gates equal ranks.")
        if lacking := first.factors.keys() ^ other.factors.keys():
            raise UnmaskError(f"'{other.name}' and '{first.name}' change other maps, such as {min(lacking)}.")
