"""Kinds of weight: which linear layers of a decoder get a LoRA adapter or are trained directly, and a table of trainable weights.

A list of names can fail silently: on Mixtral `gate_proj` matches nothing, because its experts are 3-D parameters of one module. So
targets are looked up on the loaded model, by kind, and every kind that the recipe names must be there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from unmask.errors import UnmaskError, cause_of, unknown
from unmask.models.routers import find_routers

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

EVERY: Literal["all"] = "all"
ROUTER = "router"


class LoraOptions(BaseModel):
    """The `[lora]` table of a recipe: rank, scale (alpha / r), dropout, and the kinds of linear layer that are adapted.

    targets: "all" for every linear layer and every expert of the decoder's layers (never routers), or a list of kinds such as
    ["q_proj", "v_proj", "experts.down_proj"], as the coverage table names them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    r: int = Field(default=16, ge=1, le=1_000_000)
    alpha: float = Field(default=32, gt=0, le=1_000_000)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    targets: Literal["all"] | Annotated[tuple[str, ...], Field(min_length=1)] = EVERY


@dataclass(frozen=True)
class Coverage:
    """One kind of weight in the layers: how many there are, how many train, and the parameters that this adds or frees."""

    kind: str
    present: int
    adapted: int
    parameters: int
    trainable: int


def weight_kinds(model: nn.Module, layers: nn.ModuleList, depth: int | None = None) -> dict[str, list[str]]:
    """Names of what is in "all" for the (first `depth`) layers, by kind: linear layers, GPT-2's Conv1D, experts that are parameters.

    Such experts have 3 dimensions, or 2 where they are stacked on each other (DBRX). The kind is the name behind the layer's
    number, with the experts that it belongs to. Routers are left out: "all" does not mean them.
    """
    from transformers.pytorch_utils import Conv1D

    prefix = next(name for name, module in model.named_modules() if module is layers)
    routing = {id(module) for router in find_routers(model) for module in router.module.modules()}
    kinds: dict[str, list[str]] = {}
    for name, module in layers[:depth].named_modules():
        if id(module) in routing or isinstance(module, nn.Conv1d):
            continue
        if isinstance(module, nn.Linear | Conv1D):
            kinds.setdefault(_kind(name), []).append(f"{prefix}.{name}")
            continue
        for path, parameter in module.named_parameters(name, recurse=False):
            if parameter.ndim == 3 or (parameter.ndim == 2 and "expert" in name and "bias" not in path):
                kinds.setdefault(_kind(path), []).append(f"{prefix}.{path}")
    return kinds


def router_kinds(model: PreTrainedModel) -> dict[str, list[str]]:
    """Names of the routers of a mixture of experts, as a separate kind; empty for a dense model."""
    routers = {id(router.module) for router in find_routers(model)}
    names = [name for name, module in model.named_modules() if id(module) in routers]
    return {ROUTER: names} if names else {}


def unfreeze_kinds(model: nn.Module, kinds: dict[str, list[str]], requested: Sequence[str]) -> None:
    """Make the weights of these kinds trainable, in place. Raises UnmaskError for a kind that the model lacks."""
    for kind in requested:
        if kind not in kinds:
            raise unknown("kind of weight in train", kind, kinds)
        for name in kinds[kind]:
            for _, weight in _parameters_at(model, name):
                weight.requires_grad_(True)


def _kind(name: str) -> str:
    """`3.self_attn.q_proj` -> `q_proj`, `3.mlp.experts.down_proj` -> `experts.down_proj`, `3.mlp.experts.7.w1` -> `experts.w1`."""
    parts = [part for part in name.split(".")[1:] if not part.isdecimal()]
    within = next((part for part in reversed(parts[:-1]) if "expert" in part), None)
    return f"{within}.{parts[-1]}" if within else parts[-1]


def add_lora(model: PreTrainedModel, layers: nn.ModuleList, options: LoraOptions, depth: int | None = None) -> PeftModel:
    """Put fp32 adapters on a decoder, in place, and freeze the rest.

    depth: number of layers to adapt, for a design that reads no deeper. Raises UnmaskError for a kind that the model lacks or
    that peft does not reach there, and for dropout on experts, which LoRA cannot drop.
    """
    from peft import LoraConfig, get_peft_model

    kinds = weight_kinds(model, layers, depth)
    for kind in options.targets if options.targets != EVERY else ():
        if kind not in kinds:
            raise unknown("LoRA target", kind, kinds)
        if not _is_reached(model, kinds[kind][0]):
            raise _unreached_error(kind, 0, len(kinds[kind]))
    requested = kinds if options.targets == EVERY else {kind: kinds[kind] for kind in options.targets}
    reached = {kind: names for kind, names in requested.items() if _is_reached(model, names[0])}
    parameters = dict(model.named_parameters())
    experts = {kind: names for kind, names in reached.items() if names[0] in parameters}
    if not reached:
        raise UnmaskError("peft reaches nothing in the layers of this model, so nothing would train.")
    if experts and options.dropout:
        raise UnmaskError(
            f"LoRA on experts ({next(iter(experts))}) cannot have dropout: set lora.dropout = 0, "
            "or leave the experts out of lora.targets."
        )
    config = LoraConfig(
        r=options.r,
        lora_alpha=options.alpha,
        lora_dropout=options.dropout,
        target_modules=[name for kind, names in reached.items() if kind not in experts for name in names],
        target_parameters=[name for names in experts.values() for name in names] or None,
    )
    try:
        return get_peft_model(model, config)
    except ValueError as error:
        raise UnmaskError(f"peft does not adapt {type(model).__name__}: {cause_of(error)}") from error


def _is_reached(model: PreTrainedModel, name: str) -> bool:
    """Whether peft adapts a weight where it is.

    Next to fused experts it takes a dense `gate_proj` for a part of them, and would adapt the experts of ALL layers instead, at twice
    the rank. Of experts in two dimensions it wraps the owner, whose other weights the model then cannot find.
    """
    from peft import LoraConfig
    from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers

    parameter = dict(model.named_parameters()).get(name)
    if parameter is not None:
        return bool(parameter.ndim == 3)
    config = LoraConfig(target_modules=[name])
    try:
        convert_peft_config_for_transformers(config, model, None)
    except ValueError:  # a part of fused experts was named without the others
        return False
    return name in (config.target_modules or ())


def _unreached_error(kind: str, adapted: int, present: int) -> UnmaskError:
    return UnmaskError(
        f"lora.targets names '{kind}', but only {adapted} of {present} would train: peft does not reach the others in this model. Leave it "
        'out of lora.targets, or use train = "full".'
    )


def coverage(model: nn.Module, kinds: dict[str, list[str]]) -> list[Coverage]:
    """What trains, kind by kind, as seen on the model AFTER adapters were added (or weights freed)."""
    table = []
    for kind, names in kinds.items():
        adapted = parameters = trainable = 0
        for name in names:
            weights: list[Any] = _parameters_at(model, name)
            training = [weight.numel() for _, weight in weights if weight.requires_grad]
            parameters += sum(weight.numel() for path, weight in weights if "lora_" not in path)
            trainable += sum(training)
            adapted += bool(training)
        table.append(Coverage(kind, len(names), adapted, parameters, trainable))
    return table


def _parameters_at(model: nn.Module, name: str) -> list[tuple[str, nn.Parameter]]:
    """Parameters of a linear layer, or the replacements of a 3-D parameter once peft has wrapped its module."""
    modules = dict(model.named_modules())
    if name in modules:
        return list(modules[name].named_parameters())
    owner, _, leaf = name.rpartition(".")
    adapted = []
    layer: Any = modules[owner]
    while True:  # peft wraps the owner once for each of its parameters
        if getattr(layer, "parameter_name", None) == leaf:
            adapted += [(f"lora_{path}", parameter) for path, parameter in layer.named_parameters() if path.startswith("lora_")]
        if not hasattr(layer, "base_layer"):
            break
        layer = layer.base_layer
    parameter = dict(layer.named_parameters())[leaf]
    return [*adapted, (leaf, parameter)]


def require_coverage(table: Sequence[Coverage], options: LoraOptions) -> None:
    """Raise UnmaskError if nothing trains, or if weights of a kind that was named do not train.

    "all" means all that peft can reach: on a few mixtures it cannot reach dense MLPs next to fused experts, and the table says so.
    """
    if not any(kind.trainable for kind in table):
        raise UnmaskError("LoRA reached nothing in this model, so nothing would train.")
    for kind in table:
        if options.targets != EVERY and kind.kind in options.targets and kind.adapted < kind.present:
            raise _unreached_error(kind.kind, kind.adapted, kind.present)
