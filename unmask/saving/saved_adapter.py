"""Saved adapters: the active adapter of a model in PEFT's format, with the name of the base model.

Only one adapter can be saved, at its own strength. A model that does anything else with its adapters is refused, since it would come back
with other vectors.
"""

from __future__ import annotations

import json
import math
import re
import sys
from copy import copy
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError
from unmask.models.identity import Pinned, require_unchanged_base
from unmask.models.loading import require_repeatable

_INSTEAD = "merge them for good (merge_and_unload of peft) and save the whole model"


def adapter_modules(model: Any) -> list[Any]:
    """The modules that PEFT has put into a model: layers that it adapts, and copies that are trained in full."""
    if "peft" not in sys.modules:  # nothing can be adapted before it is imported, which takes seconds
        return []
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    return [module for module in model.modules() if isinstance(module, BaseTunerLayer | AuxiliaryTrainingWrapper)]


def write_adapter(model: Any, folder: Path, base: Pinned) -> None:
    """Write the adapter of a decoder. Raises UnmaskError if the base and this adapter alone do not make the model in memory."""
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    if merged := getattr(model, "merged_adapter", None):
        raise UnmaskError(
            f"Another adapter ('{merged}') was merged into the weights below this one, and the base model on disk does not have it. Save "
            "the merged model first, load that, and put the new adapter on it."
        )
    require_unchanged_base(model)
    name = _active_adapter(model)
    config = model.peft_config[name]
    require_repeatable(config, name)
    kind = getattr(config.peft_type, "value", config.peft_type)
    try:
        weights = get_peft_model_state_dict(model, adapter_name=name)
    except Exception as error:  # of any class: each kind of adapter has its own
        raise _unsaved(name, kind) from error
    if len({weight.data_ptr() for weight in weights.values()}) < len(weights) or not weights:
        raise _unsaved(name, kind)  # VeRA and its kin: layers share weights, which belong to the wrapper and not to the decoder
    # the names that peft gives to the weights of the model that it has wrapped, to which the config belongs: with its head or without
    body_path = getattr(model, "adapter_place", "")
    tensors = {f"base_model.model.{body_path}{key}": weight.contiguous() for key, weight in weights.items()}
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = _of_decoder(config, model, body_path)
    config.base_model_name_or_path, config.revision, config.inference_mode = base.base, base.revision, True
    config.save_pretrained(folder)
    sort_adapter_config(folder)


def _unsaved(name: str, kind: str) -> UnmaskError:
    return UnmaskError(
        f"The adapter '{name}' ({kind}) cannot be saved on its own: its layers share weights. Load it merged "
        "(Embedder.from_pretrained(MODEL, adapter=ADAPTER, merge=True)), and save the whole model."
    )


def _active_adapter(model: Any) -> str:
    """The name of the one adapter that acts, in all of its layers and at its own strength. Raises UnmaskError if there is none such."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    if any(layer.merged for layer in layers):
        raise UnmaskError(
            f"The adapters of this model are merged into its weights for now. Call unmerge_adapter of peft first, or {_INSTEAD}."
        )
    if any(layer.disable_adapters for layer in layers):
        raise UnmaskError(
            "The adapters of this model are disabled, and would act when it is loaded again. Enable or unload them."
        )
    acting = [layer._get_available_adapters().intersection(layer.active_adapters) for layer in layers]
    names: list[str] = sorted(set().union(*acting))
    if len(names) != 1 or any(
        names[0] in layer._get_available_adapters() and not acts for layer, acts in zip(layers, acting, strict=True)
    ):
        raise UnmaskError(
            f"Just one adapter can be saved. Active in this model: {', '.join(names) or 'none'}. Make one adapter active in all layers "
            f"(set_adapter of peft), or {_INSTEAD}."
        )
    if model.peft_config[names[0]].peft_type == "LORA" and not all(_is_at_full_strength(layer, names[0]) for layer in layers):
        raise UnmaskError(
            f"The scale of the adapter '{names[0]}' was changed, and its config does not say so. Set it back (unscale_layer of peft), or "
            f"{_INSTEAD}."
        )
    return names[0]


def _is_at_full_strength(layer: Any, name: str) -> bool:
    """Whether a layer scales its LoRA by alpha / rank, as configured."""
    if name not in getattr(layer, "scaling", {}):
        return True
    rank = layer.r[name]
    configured = layer.lora_alpha[name] / (math.sqrt(rank) if layer.use_rslora.get(name) else rank)
    return math.isclose(layer.scaling[name], configured)


def _of_decoder(config: Any, model: Any, body_path: str) -> Any:
    """A copy of an adapter's config that names modules of the decoder only: what belongs to the language-model head is not saved."""
    config, names = copy(config), [f"{body_path}{name}" for name, _ in model.named_modules()]
    for field in ("target_modules", "modules_to_save"):
        module_names = getattr(config, field, None)
        if isinstance(module_names, str):  # a regular expression, which may match the head too
            within = f"(?={re.escape(body_path)})" if body_path else ""
            setattr(config, field, module_names if module_names.startswith(within) else f"{within}(?:{module_names})")
        elif module_names:
            setattr(config, field, [end for end in module_names if any(name.endswith(end) for name in names)])
    config.ensure_weight_tying = False  # else peft would look for weights of the head
    return config


_SETS = ("target_modules", "exclude_modules")


def sort_adapter_config(folder: Path) -> None:
    """Sort the module names in `adapter_config.json` of a folder that peft wrote.

    peft holds them as sets and writes them in the order of Python's hashes, which differ between processes: the same training would
    leave other bytes after it was stopped and started again.
    """
    file = folder / "adapter_config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    for key in _SETS:
        if isinstance(config.get(key), list):
            config[key] = sorted(config[key])
    file.write_text(json.dumps(config, indent=2, sort_keys=True), encoding="utf-8")
