"""Loading: a hub id, a local folder or a bundled name -> a decoder without its head, and its tokenizer."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from unmask.errors import UnmaskError
from unmask.models import BUNDLED, resolve

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Source:
    """Where a model comes from and how it is loaded: everything that decides its weights.

    model: hub id, folder or bundled name; adapter: a PEFT folder or hub id; merge: fold the adapter into the weights.
    dtype, device: a name or "auto"; attn_implementation: None lets transformers choose (sdpa where it exists, never flash,
    whose sliding window sees one token less); trust_remote_code: run code that comes with the model.
    """

    model: str
    revision: str | None = None
    adapter: str | None = None
    merge: bool = False
    dtype: str = "auto"
    device: str = "auto"
    attn_implementation: str | None = None
    trust_remote_code: bool = False


def load(source: Source) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The decoder without its language-model head, on its device, and its tokenizer. Raises UnmaskError."""
    path, adapter = resolve(source.model), source.adapter
    if (Path(path) / "adapter_config.json").is_file():
        if adapter:
            raise UnmaskError(f"'{source.model}' is an adapter itself, so --adapter cannot be given with it.")
        path, adapter = _base_of(Path(path)), path
    device = pick_device(source.device)
    tokenizer = _load(path, source, "tokenizer")
    model = _load(path, source, "adapted" if adapter else "decoder", pick_dtype(source.dtype, device))
    if adapter:
        model = _adapt(model, adapter, source.merge)
    return model.to(device), tokenizer


def pick_device(device: str) -> torch.device:
    """The device of a name; "auto" is a GPU where there is one. Raises UnmaskError for a name that torch does not know."""
    if device == "auto":
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return accelerator or torch.device("cpu")
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise UnmaskError(f"'{device}' is not a device: try auto, cpu, cuda or cuda:1.") from error


def pick_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """The precision of a name; "auto" is bf16 where the device computes it natively, else fp32. Raises UnmaskError."""
    if dtype != "auto":
        if dtype not in DTYPES:
            raise UnmaskError(f"'{dtype}' is not a dtype: auto, {', '.join(DTYPES)}.")
        return DTYPES[dtype]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    if device.type == "cpu" and (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()):
        return torch.bfloat16
    return torch.float32


def _load(path: str, source: Source, what: str, dtype: torch.dtype | None = None) -> Any:
    from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

    common: dict[str, Any] = {"trust_remote_code": source.trust_remote_code, "revision": source.revision}
    model_options = {"dtype": dtype, "use_safetensors": True, "attn_implementation": source.attn_implementation}
    try:
        if what == "tokenizer":
            tokenizer = AutoTokenizer.from_pretrained(path, **common)
            if not tokenizer.is_fast:
                raise UnmaskError(f"The tokenizer of '{source.model}' has no character offsets (it is not a fast one).")
            return tokenizer
        # an adapter names its modules as the causal language model does, so it is loaded on that and the head dropped
        auto = AutoModelForCausalLM if what == "adapted" else AutoModel
        return auto.from_pretrained(path, **common, **model_options)
    except (OSError, ImportError) as error:
        raise UnmaskError(_why(source.model, path, error)) from error
    except ValueError as error:
        if isinstance(error, UnmaskError):
            raise
        raise UnmaskError(f"'{source.model}' could not be loaded: {_first_line(error)}") from error


def _adapt(model: Any, adapter: str, merge: bool) -> PreTrainedModel:
    from peft import PeftModel

    adapted = PeftModel.from_pretrained(model, adapter)
    inner = adapted.merge_and_unload() if merge else adapted.get_base_model()
    if not merge and not any("lora_" in name or "modules_to_save" in name for name, _ in inner.named_parameters()):
        # prompt tuning and its kin live in the wrapper, which has no decoder to read
        raise UnmaskError(f"The adapter '{adapter}' changes no layer of the decoder; only LoRA-like adapters can be read.")
    return inner.get_decoder() if hasattr(inner, "get_decoder") else inner  # type: ignore[no-any-return]


def _base_of(adapter: Path) -> str:
    base = json.loads((adapter / "adapter_config.json").read_text()).get("base_model_name_or_path")
    if not base:
        raise UnmaskError(
            f"The adapter in '{adapter}' does not say which base model it belongs to; give --model and --adapter."
        )
    return resolve(str(base))


def _why(name: str, path: str, error: Exception) -> str:
    """Say what was tried: a file that is missing, weights that are not safetensors, or a hub that cannot be reached."""
    folder = Path(path)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            return f"'{name}' is a folder without a config.json, so it is no model."
        if not any(folder.glob("*.safetensors")):
            return f"'{name}' holds no *.safetensors file, and weights of another format are never loaded."
        return f"'{name}' could not be loaded: {_first_line(error)}"
    offline = " HF_HUB_OFFLINE is set, so only its cache was tried." if os.environ.get("HF_HUB_OFFLINE") == "1" else ""
    return (
        f"'{name}' is no folder, no bundled name ({', '.join(BUNDLED)}), and the model hub did not give it.{offline} "
        f"It said: {_first_line(error)}"
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def dtype_name(model: nn.Module) -> str:
    """The precision of a model's weights, as `Source.dtype` spells it."""
    return str(next(model.parameters()).dtype).removeprefix("torch.")
