"""Loading: from a hub id, a local folder or a bundled name to a decoder without its head, and its tokenizer."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from unmask.errors import UnmaskError, first_line
from unmask.io.paths import expanded
from unmask.io.seals import check_seal
from unmask.models.attention import attention_configs, set_attention
from unmask.models.bundled import resolve
from unmask.models.decoder import body_of
from unmask.models.devices import is_native, warn_if_emulated
from unmask.models.hub import hub_failure, no_long_wait
from unmask.models.identity import note_base_values, note_base_weights, note_source, require_same_base
from unmask.models.progress_bars import without_loading_bars
from unmask.models.source import Source as Source
from unmask.models.source import (
    adapter_folder,
    adapter_weights,
    below,
    is_adapter,
    is_mixture,
    place_of,
    require_own_code,
    require_safetensors,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class HeadMissing(UnmaskError):
    """A language model was saved without the head that predicts tokens, and the head is not tied to the embeddings."""


def load_decoder(source: Source) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The decoder without its language-model head, on its device, and its tokenizer. Raises UnmaskError.

    A mixture of ours is loaded by `unmask.mixture.any_model.load_any_decoder`, which calls this for every other model.
    """
    path, base, adapter = _parts_of(source)
    device = pick_device(source.device)
    own = own_tokenizer(Path(adapter), source) if adapter else None
    tokenizer = _padding(_load(path, base, "tokenizer")) if own is None else own
    model = _load(path, base, "adapted" if adapter else "decoder", pick_dtype(source.dtype, device))
    if not adapter and model.get_output_embeddings() is not None:  # AutoModel loads Llama 4 with its head
        model = model.get_decoder()
    note_base_values(body_of(model) if adapter else model)
    if adapter:
        model = _adapt(model, adapter, source.merge)
    note_source(_aligned(model.to(device)), source, replace(base, adapter=None, merge=False))
    return note_base_weights(model), tokenizer


def load_output_embeddings(source: Source) -> nn.Module:
    """The layer that turns states into logits, as the adapter changes it; the rest of the model is loaded and dropped.

    Raises UnmaskError, also for a model that was saved without this layer.
    """
    path, base, adapter = _parts_of(source)
    device = pick_device(source.device)
    model = _load(path, base, "language model", pick_dtype(source.dtype, device)).to(device)
    if adapter:
        _adapt(model, adapter, source.merge)
    return model.get_output_embeddings()  # type: ignore[no-any-return]


def _parts_of(source: Source) -> tuple[str, Source, str | None]:
    """The path of the base model, its source, and the absolute folder of the adapter, if there is one."""
    folder, adapter = places_of(source)
    if not is_adapter(folder):
        return str(folder), source, _with_weights(adapter) if adapter else None
    if adapter:
        raise UnmaskError(f"'{source.model}' is an adapter itself. Leave --adapter out, or name a base model.")
    base = base_of(folder, source)
    return _intact(resolve(base.model)), base, _with_weights(str(folder))


def _with_weights(adapter: str) -> str:
    """The absolute folder of an adapter. PEFT would take a relative one for a hub id, if a file was missing there. Raises UnmaskError."""
    if adapter_weights(Path(adapter)) is None:
        raise UnmaskError(f"The adapter '{adapter}' is not complete: it has no weights (adapter_model.safetensors).")
    return str(Path(adapter).absolute())


def places_of(source: Source) -> tuple[Path, str | None]:
    """The folders of a model and of its adapter, if it has one. Raises UnmaskError if one of them is damaged."""
    return Path(_intact(place_of(source))), _intact(adapter_folder(source.adapter)) if source.adapter else None


def base_of(folder: Path, source: Source) -> Source:
    """The base model below an adapter or a mixture. Raises UnmaskError, also if the weights of the base have changed since."""
    base = below(folder, source)
    if base is None:
        raise UnmaskError(f"'{folder}' has no base model: it is neither an adapter nor a mixture.")
    require_same_base(folder, base)
    return base


def _intact(path: str) -> str:
    """The path itself. Raises Damaged for a sealed folder, such as a saved embedder, if a file in it has changed."""
    check_seal(expanded(path))
    return path


def load_language_model(source: Source) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The decoder WITH its language-model head, on its device, and its tokenizer. `body_of` finds the decoder inside.

    It attends causally, whatever its config says: an embedder may have been saved without its mask, and would see what it has to predict.
    Raises UnmaskError, also for a model that was saved without its head, unless the head is tied to the input embeddings.
    """
    path = _intact(place_of(source))
    if source.adapter or is_adapter(Path(path)):
        raise UnmaskError("A language model is loaded without an adapter. Merge the adapter first.")
    device = pick_device(source.device)
    tokenizer = _padding(_load(path, source, "tokenizer"))
    model = _aligned(_load(path, source, "language model", pick_dtype(source.dtype, device)).to(device))
    if any(getattr(config, "is_causal", True) is False for config in attention_configs(model)):
        set_attention(model, "causal")
    note_base_values(body_of(model))
    note_base_weights(note_source(body_of(model), source))
    return model, tokenizer


def pick_device(device: str) -> torch.device:
    """The device of a name; "auto" is a GPU if there is one. Raises UnmaskError for a device that this machine does not have."""
    if device == "auto":
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return accelerator or torch.device("cpu")
    try:
        return torch.empty(0, device=device).device  # torch.device(...) would also accept devices that this machine lacks
    except (RuntimeError, AssertionError) as error:
        raise UnmaskError(f"'{device}' is not a device of this machine: try auto, cpu, cuda or cuda:1.") from error


def pick_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """The precision of a name; "auto" is bf16 where that is native, else fp32. Warns of an emulated one. Raises UnmaskError."""
    if dtype == "auto":
        return torch.bfloat16 if is_native(torch.bfloat16, device) else torch.float32
    if dtype not in DTYPES:
        raise UnmaskError(f"'{dtype}' is not a dtype: auto, {', '.join(DTYPES)}.")
    warn_if_emulated(DTYPES[dtype], device)
    return DTYPES[dtype]


def precision_of(source: Source) -> str:
    """The name of the precision that a model is loaded in: what "auto" means on its device. Raises UnmaskError."""
    return str(pick_dtype(source.dtype, pick_device(source.device))).removeprefix("torch.")


def load_tokenizer(source: Source) -> PreTrainedTokenizerBase:
    """The tokenizer of a model alone. Raises UnmaskError if it cannot be loaded, or has no character offsets."""
    return _load(place_of(source), source, "tokenizer")  # type: ignore[no-any-return]


def own_tokenizer(folder: Path, source: Source) -> PreTrainedTokenizerBase | None:
    """The tokenizer that lies beside an adapter or a mixture, which was trained or saved with it. None if there is none: use the base's.

    Of an adapter on the hub only a saved embedder is sure to be downloaded with its tokenizer. Raises UnmaskError.
    """
    name = source.adapter or source.model
    whole = is_mixture(folder) or (folder / "unmask.json").is_file() or Path(resolve(name)).is_dir()
    if not whole or not (folder / "tokenizer_config.json").is_file():
        return None
    trusted = source.trust_remote_code and not source.adapter  # that covers the model only, not the adapter beside it
    return _padding(_load(str(folder), replace(source, model=name, revision=None, trust_remote_code=trusted), "tokenizer"))


def _padding(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """The tokenizer, with a padding token. sentence-transformers needs one."""
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


@without_loading_bars()
def _load(path: str, source: Source, what: str, dtype: torch.dtype | None = None) -> Any:
    from safetensors import SafetensorError
    from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

    common: dict[str, Any] = {"trust_remote_code": source.trust_remote_code, "revision": source.revision}
    model_options = {"dtype": dtype, "use_safetensors": True, "attn_implementation": source.attn_implementation}
    require_own_code(path, source)
    if what != "tokenizer":
        require_safetensors(path, source)
    try:
        with nullcontext() if Path(path).is_dir() else no_long_wait():
            if what == "tokenizer":
                loaded, report = AutoTokenizer.from_pretrained(path, **common), {}
            else:
                # an adapter uses the module names of the causal language model; its head is dropped later
                auto = AutoModel if what == "decoder" else AutoModelForCausalLM
                loaded, report = auto.from_pretrained(path, **common, **model_options, output_loading_info=True)
    except (OSError, ImportError, ValueError, RuntimeError, SafetensorError) as error:
        raise UnmaskError(_why(source.model, path, what, error)) from error
    if what == "tokenizer" and not loaded.is_fast:
        raise UnmaskError(
            f"The tokenizer of '{source.model}' is not a fast one, so it has no character offsets. unmask needs them."
        )
    if what == "language model":
        _refuse_random_head(source.model, loaded, report["missing_keys"])
    if what != "tokenizer":
        _refuse_random_weights(source.model, loaded, report["missing_keys"], headed=what != "decoder")
    return loaded


def _refuse_random_head(name: str, model: Any, missing: Iterable[str]) -> None:
    """Raise UnmaskError if the checkpoint lacks the language-model head, and the head is not tied to the input embeddings."""
    head = model.get_output_embeddings()
    names = {
        f"{path}.{leaf}" for path, module in model.named_modules() if module is head for leaf, _ in module.named_parameters()
    }
    if names & set(missing):
        raise HeadMissing(
            f"'{name}' was saved without its language-model head, so it cannot predict tokens. Give the complete model."
        )


def _refuse_random_weights(name: str, model: Any, missing: Iterable[str], headed: bool) -> None:
    """Raise UnmaskError if the checkpoint lacks weights of the decoder. transformers would give them random values."""
    body = body_of(model) if headed else model  # a missing head does not matter: it is dropped
    ours = {id(parameter) for parameter in body.parameters()}
    lacking = sorted(
        set(missing) & {key for key, weight in model.named_parameters(remove_duplicate=False) if id(weight) in ours}
    )
    if lacking:
        raise UnmaskError(f"'{name}' is not complete: it has no weights for {lacking[0]} ({len(lacking)} are missing in all).")


def _aligned(model: Any) -> Any:
    """The model, with its weights aligned in memory. On some processors the last bits of a product depend on the alignment."""
    for weight in (*model.parameters(), *model.buffers()):
        if weight.data_ptr() % 64:
            weight.data = weight.data.clone()
    return model


def _adapt(model: Any, adapter: str, merge: bool) -> PreTrainedModel:
    from peft import PeftModel
    from peft.utils import load_peft_weights

    body, config = body_of(model), _adapter_config(adapter)
    require_repeatable(config, adapter)
    try:
        # most adapters use the module names of a model with its head; those of embedding models do not
        place = next(f"{name}." for name, module in model.named_modules() if module is body)
        names = [name for name in load_peft_weights(adapter, device="cpu") if name.startswith("base_model.model.")]
        headless = bool(names) and not any(name.startswith(f"base_model.model.{place}") for name in names)
        if headless:
            config.task_type = None  # for "CAUSAL_LM", peft would look for the head's methods
        adapted = PeftModel.from_pretrained(body if headless else model, adapter, config=config)
        report = adapted.load_adapter(adapter, "default")
    except KeyError as error:
        raise UnmaskError(f"The adapter '{adapter}' is not complete: it has no weights for {error}.") from error
    except UnpicklingError as error:
        raise UnmaskError(
            f"The adapter '{adapter}' could not be loaded: its .bin file is damaged, or holds more than weights."
        ) from error
    except (OSError, ValueError, RuntimeError) as error:
        raise UnmaskError(f"The adapter '{adapter}' could not be loaded: {first_line(error)}") from error
    if report.missing_keys or any("lora_" in name for name in report.unexpected_keys):
        # peft would leave layers without weights unchanged or random
        raise UnmaskError(f"The adapter '{adapter}' belongs to another model: its layers do not match this model's.")
    if not any("lora_" in name or "modules_to_save" in name for name, _ in body.named_parameters()):
        # prompt tuning and similar methods change the wrapper, not the decoder
        raise UnmaskError(
            f"The adapter '{adapter}' changes no layer of the decoder. Only LoRA and similar adapters can be loaded."
        )
    if merge:
        _untie(model, body)
        adapted.merge_and_unload()  # in place
        body.merged_adapter = adapter  # a later adapter lies over it, and saving that would name the plain base
    else:
        body.peft_config = adapted.peft_config  # peft keeps it with the whole model; saving looks for it in the body
        body.adapter_place = "" if headless else place  # names and patterns in the config are those of this model
    return body  # type: ignore[no-any-return]


def _adapter_config(adapter: str) -> Any:
    from peft import PeftConfig

    try:
        return PeftConfig.from_pretrained(adapter)
    except KeyError as error:
        raise UnmaskError(
            f"The adapter '{adapter}' is of the kind {error}, which this version of peft does not know."
        ) from error
    except (OSError, ValueError) as error:
        raise UnmaskError(f"The adapter '{adapter}' could not be loaded: {first_line(error)}") from error


def require_repeatable(config: Any, adapter: str) -> None:
    """Raise UnmaskError for an adapter that PEFT leaves out here, or that it starts anew at random whenever it is loaded."""
    if getattr(config, "alora_invocation_tokens", None):
        raise UnmaskError(
            f"The adapter '{adapter}' is an aLoRA (alora_invocation_tokens): it acts only after these tokens in a chat, so it would change "
            "no vector. Use the base model, or an adapter without them."
        )
    if str(getattr(config, "init_lora_weights", "")).lower().startswith("pissa_niter"):
        raise UnmaskError(
            f"The adapter '{adapter}' changes the base by a random SVD at each load (init_lora_weights = \"{config.init_lora_weights}\"), "
            "so its vectors would differ each time. Convert it to a plain LoRA: save_pretrained of peft with "
            "path_initial_model_for_weight_conversion."
        )


def _untie(model: Any, body: Any) -> None:
    """Give the language-model head its own weights, if it shares them with the input embeddings and an adapter changes one of both.

    peft merges in place: what belongs to one would change the other as well.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    changed = isinstance(head, BaseTunerLayer) or isinstance(embeddings, BaseTunerLayer)
    if head is not None and changed and head.weight is embeddings.weight:
        layer = head.get_base_layer() if isinstance(head, BaseTunerLayer) else head
        layer.weight = nn.Parameter(head.weight.detach().clone(), requires_grad=False)
        body.config.tie_word_embeddings = False


def _why(name: str, path: str, what: str, error: Exception) -> str:
    """The reason of a failed load: a missing file, weights that are not safetensors, or a hub that cannot be reached."""
    folder = Path(path)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            return f"'{name}' is no model: the folder has no config.json."
        if not any(folder.glob("*.safetensors")):
            return f"'{name}' has no *.safetensors file. Weights of other formats are not loaded, since they can run code."
    if folder.is_dir() or not isinstance(error, OSError):
        failed = f"The tokenizer of '{name}'" if what == "tokenizer" else f"'{name}'"
        return f"{failed} could not be loaded: {first_line(error)}"
    return hub_failure(name, error)


def dtype_name(model: nn.Module) -> str:
    """The precision of a model's weights, as `Source.dtype` spells it."""
    return str(next(model.parameters()).dtype).removeprefix("torch.")
