"""Loading: a hub id, a local folder or a bundled name -> a decoder without its head, and its tokenizer."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from unmask.decoder import body_of
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
    if is_mixture(Path(path)):
        return _load_mixture(Path(path), source)
    if (Path(path) / "adapter_config.json").is_file():
        if adapter:
            raise UnmaskError(f"'{source.model}' is an adapter itself, so --adapter cannot be given with it.")
        path, adapter = _base_of(Path(path)), path
    device = pick_device(source.device)
    tokenizer = _load(path, source, "tokenizer")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token  # sentence-transformers cannot do without one
    model = _load(path, source, "adapted" if adapter else "decoder", pick_dtype(source.dtype, device))
    if adapter:
        model = _adapt(model, adapter, source.merge)
    return _aligned(model.to(device)), tokenizer


def is_mixture(folder: Path) -> bool:
    """Whether a folder holds a mixture of LoRA experts."""
    return (folder / "mixture.json").is_file()


def _load_mixture(folder: Path, source: Source) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    from unmask.mixture.folder import load_mixture

    if source.adapter:
        raise UnmaskError(f"'{source.model}' is a mixture, and an adapter would change its base under its experts.")
    mixture, tokenizer = load_mixture(folder, source)
    return mixture.body, tokenizer


def load_language_model(source: Source) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The decoder WITH its language-model head, on its device, and its tokenizer; `body_of` finds the decoder inside.

    Raises UnmaskError, also for a model whose head was not saved with it and is not tied to its input embeddings.
    """
    path = resolve(source.model)
    if source.adapter or (Path(path) / "adapter_config.json").is_file():
        raise UnmaskError("A language model is read without an adapter: merge the adapter first.")
    device = pick_device(source.device)
    tokenizer = _load(path, source, "tokenizer")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return _aligned(_load(path, source, "language model", pick_dtype(source.dtype, device)).to(device)), tokenizer


def pick_device(device: str) -> torch.device:
    """The device of a name; "auto" is a GPU where there is one. Raises UnmaskError for a name that torch does not know."""
    if device == "auto":
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return accelerator or torch.device("cpu")
    try:
        return torch.empty(0, device=device).device  # torch.device(...) alone also takes devices that this machine lacks
    except (RuntimeError, AssertionError) as error:
        raise UnmaskError(f"'{device}' is not a device of this machine: try auto, cpu, cuda or cuda:1.") from error


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
    from safetensors import SafetensorError
    from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

    common: dict[str, Any] = {"trust_remote_code": source.trust_remote_code, "revision": source.revision}
    model_options = {"dtype": dtype, "use_safetensors": True, "attn_implementation": source.attn_implementation}
    try:
        if what == "tokenizer":
            loaded, report = AutoTokenizer.from_pretrained(path, **common), {}
        else:
            # an adapter names its modules as the causal language model does, so it is loaded on that and the head dropped
            auto = AutoModel if what == "decoder" else AutoModelForCausalLM
            loaded, report = auto.from_pretrained(path, **common, **model_options, output_loading_info=True)
    except (OSError, ImportError, ValueError, RuntimeError, SafetensorError) as error:
        raise UnmaskError(_why(source.model, path, what, error)) from error
    if what == "tokenizer" and not loaded.is_fast:
        raise UnmaskError(f"The tokenizer of '{source.model}' has no character offsets (it is not a fast one).")
    if what == "language model":
        _refuse_random_head(source.model, loaded, report["missing_keys"])
    if what != "tokenizer":
        _refuse_random_weights(source.model, loaded, report["missing_keys"], headed=what != "decoder")
    return loaded


def _refuse_random_head(name: str, model: Any, missing: Iterable[str]) -> None:
    """Raise UnmaskError if the checkpoint lacks the head that predicts tokens and it is not tied to the input embeddings."""
    head = model.get_output_embeddings()
    names = {
        f"{path}.{leaf}" for path, module in model.named_modules() if module is head for leaf, _ in module.named_parameters()
    }
    if names & set(missing):
        raise UnmaskError(
            f"'{name}' holds the decoder without its language-model head, and the head of this model is not tied to its input "
            "embeddings, so it predicts no tokens; give the model that the head was trained with."
        )


def _refuse_random_weights(name: str, model: Any, missing: Iterable[str], headed: bool) -> None:
    """Raise UnmaskError if the checkpoint lacks weights of the decoder: transformers gives those random values and goes on."""
    body = body_of(model) if headed else model  # a head may be lacking, it is dropped
    ours = {id(parameter) for parameter in body.parameters()}
    lacking = sorted(
        set(missing) & {key for key, weight in model.named_parameters(remove_duplicate=False) if id(weight) in ours}
    )
    if lacking:
        raise UnmaskError(f"'{name}' holds no weights for {lacking[0]} ({len(lacking)} are missing in all).")


def _aligned(model: Any) -> Any:
    """Weights that are mapped from a file begin anywhere in memory, and the bits of a product depend on it on some processors."""
    for weight in (*model.parameters(), *model.buffers()):
        if weight.data_ptr() % 64:
            weight.data = weight.data.clone()
    return model


def _adapt(model: Any, adapter: str, merge: bool) -> PreTrainedModel:
    from peft import PeftConfig, PeftModel
    from peft.utils import load_peft_weights

    body = body_of(model)
    try:
        PeftConfig.from_pretrained(adapter)  # says plainly what is wrong with a folder that is no adapter
        # most adapters were trained on a model with its head, and name its modules so; those of embedding models were not
        inside = next(f"base_model.model.{name}." for name, module in model.named_modules() if module is body)
        names = [name for name in load_peft_weights(adapter, device="cpu") if name.startswith("base_model.model.")]
        headless = bool(names) and not any(name.startswith(inside) for name in names)
        adapted = PeftModel.from_pretrained(body if headless else model, adapter)
        report = adapted.load_adapter(adapter, "default")
    except (OSError, ValueError, RuntimeError) as error:
        raise UnmaskError(f"The adapter '{adapter}' could not be loaded: {_first_line(error)}") from error
    if report.missing_keys or any("lora_" in name for name in report.unexpected_keys):
        # peft leaves the layers that it finds no weights for as they are, or random, and goes on
        raise UnmaskError(f"The adapter '{adapter}' belongs to another model: its layers are not those of this one.")
    if not any("lora_" in name or "modules_to_save" in name for name, _ in body.named_parameters()):
        # prompt tuning and its kin live in the wrapper, which has no decoder to read
        raise UnmaskError(f"The adapter '{adapter}' changes no layer of the decoder; only LoRA-like adapters can be read.")
    if merge:
        adapted.merge_and_unload()  # in place
    return body  # type: ignore[no-any-return]


def _base_of(adapter: Path) -> str:
    base = json.loads((adapter / "adapter_config.json").read_text()).get("base_model_name_or_path")
    if not base:
        raise UnmaskError(
            f"The adapter in '{adapter}' does not say which base model it belongs to; give --model and --adapter."
        )
    return resolve(str(base))


def _why(name: str, path: str, what: str, error: Exception) -> str:
    """Say what was tried: a file that is missing, weights that are not safetensors, or a hub that cannot be reached."""
    folder = Path(path)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            return f"'{name}' is a folder without a config.json, so it is no model."
        if not any(folder.glob("*.safetensors")):
            return f"'{name}' holds no *.safetensors file, and weights of another format are never loaded."
    if folder.is_dir() or not isinstance(error, OSError):
        failed = f"The tokenizer of '{name}'" if what == "tokenizer" else f"'{name}'"
        return f"{failed} could not be loaded: {_first_line(error)}"
    return hub_failure(name, error)


def hub_failure(name: str, error: Exception) -> str:
    """Say that a name was looked for as a folder, as a bundled name and on the hub, and what the hub said."""
    nearest = get_close_matches(name, BUNDLED, n=1)
    hint = f" Did you mean '{nearest[0]}'?" if nearest else ""
    offline = " HF_HUB_OFFLINE is set, so only its cache was tried." if os.environ.get("HF_HUB_OFFLINE") == "1" else ""
    return (
        f"'{name}' is no folder, no bundled name ({', '.join(BUNDLED)}), and the model hub did not give it.{hint}{offline} "
        f"The hub said: {_first_line(error)}"
    )


def hub_commit(name: str, revision: str | None) -> str:
    """The commit on the hub that a model or adapter comes from. Raises UnmaskError if the hub does not give it."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    for config in ("config.json", "adapter_config.json"):
        try:
            return Path(hf_hub_download(name, config, revision=revision)).parent.name
        except (LocalEntryNotFoundError, HFValidationError, HfHubHTTPError) as error:
            if not isinstance(error, EntryNotFoundError) or isinstance(error, LocalEntryNotFoundError):
                raise UnmaskError(hub_failure(name, error)) from error
    raise UnmaskError(f"'{name}' is on the hub, but is no model: it has no config.json.")


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def dtype_name(model: nn.Module) -> str:
    """The precision of a model's weights, as `Source.dtype` spells it."""
    return str(next(model.parameters()).dtype).removeprefix("torch.")
