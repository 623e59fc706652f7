"""Placement: on which devices the weights of a model lie, and in how many bits.

A device map spreads a model over GPUs, main memory and disk; accelerate then moves the states from layer to layer. Quantised weights take
a quarter (8 bits) or an eighth (4 bits) of float32. Linear layers are quantised, while embeddings, norms and activations keep the dtype.

The methods were chosen by how well they keep vectors (`benchmarks/memory.py`). int8 of torchao, with a scale for each output and float
activations, is better than LLM.int8 of bitsandbytes, which rounds activations too. NF4 of bitsandbytes (QLoRA, arXiv 2305.14314) is better
than int4 of torchao.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from unmask.errors import UnmaskError, unknown
from unmask.io.paths import cache_folder, expanded

if TYPE_CHECKING:
    from unmask.models.source import Source

DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
"""Strategies of accelerate that choose a device for each layer by the memory that is free."""
_TABLE = 'A device map as a table names a device (0, "cpu", "disk") for every module: {"embed_tokens": 0, "layers.0": 1, "norm": "cpu"}.'


def _int8(_: torch.dtype) -> Any:
    from torchao.quantization import Int8WeightOnlyConfig
    from transformers import TorchAoConfig

    warnings.filterwarnings("ignore", "TorchaoLoraLinear was instantiated")  # it cannot be merged, and never is
    return TorchAoConfig(Int8WeightOnlyConfig())


def _nf4(dtype: torch.dtype) -> Any:
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)


QUANTIZATIONS: dict[str, tuple[str, Callable[[torch.dtype], Any]]] = {
    "8bit": ("torchao", _int8),
    "4bit": ("bitsandbytes", _nf4),
}
"""The package of each quantisation, and its configuration for a dtype of activations."""


def as_device_map(device_map: str | Mapping[str, str | int] | None) -> str | None:
    """A device map as a source keeps it: a strategy, or a table of modules and devices as JSON. A string may also be a JSON file.

    Raises UnmaskError for anything else.
    """
    if device_map is None or (isinstance(device_map, str) and device_map in DEVICE_MAPS):
        return device_map
    table: Any = device_map
    if isinstance(device_map, str):
        file = expanded(device_map)
        try:
            table = json.loads(file.read_text(encoding="utf-8") if file.suffix == ".json" and file.is_file() else device_map)
        except ValueError as error:
            raise unknown("device map", device_map, (*DEVICE_MAPS, "a table as JSON", "FILE.json")) from error
    if not isinstance(table, Mapping) or not all(isinstance(device, str | int) for device in table.values()):
        raise UnmaskError(_TABLE)
    if "" in table and len(table) > 1:
        raise UnmaskError(f'"" is the whole model, so it cannot have further entries. {_TABLE}')
    return json.dumps(dict(table))


def placement_options(source: Source, stored: str | None, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """The arguments by which `from_pretrained` places and quantises weights. Empty for a plain load.

    stored: the method by which the checkpoint is quantised already. Raises UnmaskError for an unknown quantisation, one whose package is
    not installed, and for a checkpoint that is quantised already.
    """
    options: dict[str, Any] = {}
    if source.device_map is not None:
        table = source.device_map if source.device_map in DEVICE_MAPS else json.loads(source.device_map)
        # weights on disk are read from the checkpoint; only those that had to be converted are written here
        options = {"device_map": table, "offload_folder": str(cache_folder() / "offload")}
    elif source.quantize is not None or stored is not None:
        options = {"device_map": {"": device}}  # straight to the device, since quantised weights may not be moved
    if stored is not None:
        require_readable(stored, source.model)
    if source.quantize is None:
        return options
    if source.quantize not in QUANTIZATIONS:
        raise unknown("quantisation", source.quantize, QUANTIZATIONS)
    if stored is not None:
        raise UnmaskError(f"'{source.model}' is quantised already ({stored}): load it without --quantize.")
    package, config = QUANTIZATIONS[source.quantize]
    if find_spec(package) is None:
        raise UnmaskError(f"--quantize {source.quantize} needs the package {package}: pip install {package}.")
    return {**options, "quantization_config": config(dtype)}


def require_readable(stored: str, model: str) -> None:
    """Raise UnmaskError for weights that are stored in a way that transformers does not know: it would take them as they are."""
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

    known = {name.removesuffix("_4bit").removesuffix("_8bit") for name in AUTO_QUANTIZATION_CONFIG_MAPPING}
    if stored not in known | {"unknown"}:  # older versions of bitsandbytes name no method
        raise UnmaskError(
            f"The weights of '{model}' are quantised by a method that transformers cannot read ({stored}). Give the model in full "
            "precision, with --quantize if it is too large."
        )


def is_placed(model: nn.Module) -> bool:
    """Whether the weights already lie where they belong: quantised, or spread by a device map. Such a model must not be moved."""
    return getattr(model, "hf_device_map", None) is not None or is_quantized(model)


def is_quantized(model: nn.Module) -> bool:
    """Whether linear layers hold quantised weights."""
    return getattr(getattr(model, "config", None), "quantization_config", None) is not None


def main_device(model: nn.Module) -> torch.device:
    """The device that token ids go to. With offloading, weights themselves may lie on no device (`meta`) between two forward passes."""
    embeddings: Any = model.get_input_embeddings()  # type: ignore[operator]
    hook = getattr(embeddings, "_hf_hook", None)
    device = getattr(hook, "execution_device", None)
    return next(model.parameters()).device if device is None else torch.empty(0, device=device).device


def weight_bytes(model: nn.Module) -> int:
    """Bytes of the weights and buffers of a model, as stored: packed numbers and scales of quantised weights."""
    distinct = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}.values()
    return sum(part.numel() * part.element_size() for tensor in distinct for part in stored_parts(tensor))


def stored_parts(tensor: Any) -> Iterator[torch.Tensor]:
    """The plain tensors that a weight is stored as: packed numbers and scales if it is quantised, else the weight itself."""
    data = tensor.detach()
    if hasattr(data, "__tensor_flatten__"):  # torchao
        for name in data.__tensor_flatten__()[0]:
            yield from stored_parts(getattr(data, name))
        return
    yield data
    if (state := getattr(tensor, "quant_state", None)) is not None:  # bitsandbytes
        yield from (part for part in vars(state).values() if isinstance(part, torch.Tensor))
