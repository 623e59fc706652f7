"""Loading: from a hub id, a local folder or a bundled name to a decoder without its head, and its tokenizer."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from pickle import UnpicklingError
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from unmask.errors import UnmaskError, cause_of
from unmask.io.files import make_folder
from unmask.io.paths import cache_folder, expanded
from unmask.io.seals import check_seal
from unmask.models.attention import attention_configs, set_attention
from unmask.models.bundled import resolve
from unmask.models.decoder import body_of, depth_of, without_head
from unmask.models.devices import is_native, warn_if_emulated
from unmask.models.hub import hub_failure, no_long_wait
from unmask.models.identity import note_base_values, note_source, require_same_base
from unmask.models.nv_embed import decoder_options, nv_embed_config
from unmask.models.placement import QUANTIZATIONS, is_placed, placement_options
from unmask.models.progress_bars import without_loading_bars
from unmask.models.source import Source as Source
from unmask.models.source import (
    adapter_folder,
    adapter_weights,
    below,
    is_adapter,
    is_language_model,
    is_mixture,
    lasting_name,
    missing_adapter,
    own_classes,
    place_of,
    require_own_code,
    require_safetensors,
    same_place,
    stored_quantization,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class HeadMissing(UnmaskError):
    """A language model was saved without the head that predicts tokens, and the head is not tied to the embeddings."""


# Folders that rooms above this one load. Their functions are named, not imported, since they build on this module.
_LOADERS = {
    "mixture": "unmask.moe.mixture.model:load_mixture",
    "expert": "unmask.moe.mixture.merging:load_merged_expert",
}


def _load_folder(kind: str, folder: Path, source: Source) -> Any:
    module, _, function = _LOADERS[kind].partition(":")
    return getattr(import_module(module), function)(folder, source)


def load_decoder(source: Source) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The decoder without its language-model head, on its device, and its tokenizer. The model may be an adapter or a mixture.

    Raises UnmaskError.
    """
    folder, adapters = places_of(source)
    if is_mixture(folder):
        if adapters:
            raise UnmaskError(f"'{source.model}' is a mixture, and an adapter would change its base under its experts.")
    elif not any(is_mixture(Path(adapter)) for adapter in adapters):
        return _load_plain_decoder(source)
    mixture, tokenizer = _load_folder("mixture", _only_folder(source), source)
    return note_source(mixture.body, source, mixture.source), tokenizer


def _load_plain_decoder(source: Source) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    path, base, chain = _parts_of(source)
    tokenizer = None
    for adapter in reversed(chain):
        # only code of the model that the user names may run
        trusted = source.trust_remote_code and adapter.name == source.model
        named = replace(source, model=adapter.name, adapters=(), trust_remote_code=trusted)
        tokenizer = tokenizer or own_tokenizer(Path(adapter.folder), named)
    if tokenizer is None:
        tokenizer = _padding(_load(path, base, "tokenizer"))
    return _load_plain_model(source, path, base, chain), tokenizer


def _load_plain_model(source: Source, path: str, base: Source, chain: list[_Adapter]) -> PreTrainedModel:
    device = pick_device(source.device)
    dtype, merges = pick_dtype(source.dtype, device), source.merge or len(chain) > 1
    if source.quantize is not None and merges and chain:
        return _quantized_after_merging(source, dtype, path, base, chain)
    model = _load(path, base, "adapted" if chain else "decoder", dtype)
    if not chain:
        model = without_head(model)
    note_base_values(body_of(model) if chain else model)
    if chain:
        model = _adapt_all(model, chain, source.merge)
    return note_source(_placed(model, device), source, replace(base, adapters=(), merge=False))


def _quantized_after_merging(
    source: Source, dtype: torch.dtype, path: str, base: Source, chain: list[_Adapter]
) -> PreTrainedModel:
    """The decoder with adapters merged into its full weights, and quantised then: merging into quantised weights would round them twice."""
    make_folder(cache_folder())
    with TemporaryDirectory(dir=cache_folder()) as folder:
        in_full: dict[str, Any] = {
            "quantize": None,
            "device_map": None,
            "device": "cpu",
            "dtype": str(dtype).removeprefix("torch."),
        }
        merged = _load_plain_model(replace(source, **in_full), path, replace(base, **in_full), chain)
        merged_base, merged_chain = merged.unmask_base, getattr(merged, "merged_chain", None)
        merged.save_pretrained(folder)
        del merged
        model = _load(folder, replace(source, model=folder, adapters=(), revision=None), "decoder", dtype)
    note_base_values(model)
    if merged_chain:
        model.merged_chain = merged_chain
    return note_source(model, source, merged_base)


def load_output_embeddings(source: Source) -> nn.Module:
    """The layer that turns states into logits, as the adapter changes it; the rest of the model is loaded and dropped.

    Raises UnmaskError, also for a model that was saved without this layer.
    """
    path, base, chain = _parts_of(source)
    device = pick_device(source.device)
    model = _placed(_load(path, base, "language model", pick_dtype(source.dtype, device)), device)
    if chain:
        _adapt_all(model, chain, source.merge)
    return model.get_output_embeddings()  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _Adapter:
    """An adapter by the name that the user or another adapter's config gives, and its absolute folder."""

    name: str
    folder: str


def _parts_of(source: Source) -> tuple[str, Source, list[_Adapter]]:
    """The path of the base model, its source, and the adapters over it, lowest first.

    The model may itself be an adapter whose base is an adapter, and so on. Raises UnmaskError.
    """
    folder, folders = places_of(source)
    chain = [_Adapter(name, _with_weights(adapter)) for name, adapter in zip(source.adapters, folders, strict=True)]
    base = source
    while is_adapter(folder):
        chain.insert(0, _Adapter(base.model, _with_weights(str(folder))))
        _require_distinct(chain)
        base = base_of(folder, base)
        folder = Path(_intact(place_of(base)))
    _require_distinct(chain)
    _require_lower_adapter(source, base, chain)
    return str(folder), base, chain


def _require_distinct(chain: Sequence[_Adapter]) -> None:
    folders = [os.path.realpath(adapter.folder) for adapter in chain]
    if twice := [adapter.name for adapter, folder in zip(chain, folders, strict=True) if folders.count(folder) > 1]:
        raise UnmaskError(f"The adapter '{twice[0]}' cannot lie over itself. Give each adapter once, from the lowest one up.")


def _require_lower_adapter(source: Source, base: Source, chain: list[_Adapter]) -> None:
    """Raise UnmaskError if an adapter's config is known to leave out another adapter; only warn if the user named the base."""
    if len(chain) != 1 or (lacking := missing_adapter(chain[0].name, Path(chain[0].folder))) is None:
        return
    if not source.adapters:
        raise UnmaskError(lacking)
    if (config_base := below(Path(chain[0].folder), replace(source, model=chain[0].name))) and same_place(
        base.model, config_base.model
    ):
        warnings.warn(lacking, stacklevel=2)


def _with_weights(adapter: str) -> str:
    """The absolute folder of an adapter. PEFT would take a relative one for a hub id, if a file was missing there. Raises UnmaskError."""
    if adapter_weights(Path(adapter)) is None:
        raise UnmaskError(f"The adapter '{adapter}' is not complete: it has no weights (adapter_model.safetensors).")
    return str(Path(adapter).absolute())


def places_of(source: Source) -> tuple[Path, tuple[str, ...]]:
    """The folders of a model and of its adapters. Raises UnmaskError if one of them is damaged."""
    return Path(_intact(place_of(source))), tuple(_intact(adapter_folder(adapter)) for adapter in source.adapters)


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


def load_language_model(source: Source) -> tuple[Any, PreTrainedTokenizerBase]:
    """A model that predicts tokens, in evaluation mode, and its tokenizer. Raises UnmaskError.

    The source names a language model, an expert or a mixture, or a base model with the expert or the mixture as its adapter. An expert is
    merged into its base at full strength.
    """
    folder = _only_folder(source)
    if is_mixture(folder):
        mixture, tokenizer = _load_folder("mixture", folder, source)
        note_source(mixture.body, source, mixture.source)
        return mixture.model.eval(), tokenizer
    model, tokenizer = _load_folder("expert", folder, source) if is_adapter(folder) else load_base_language_model(source)
    return model.eval(), tokenizer


def load_language_model_tokenizer(source: Source) -> PreTrainedTokenizerBase:
    """The tokenizer that `load_language_model` returns, without loading the model."""
    folder = _only_folder(source)
    tokenizer = own_tokenizer(folder, source)
    return load_tokenizer(source if source.adapters else below(folder, source) or source) if tokenizer is None else tokenizer


def _only_folder(source: Source) -> Path:
    if len(source.adapters) > 1:
        raise UnmaskError(
            f"Here a model takes one adapter or mixture, not {source.adapter_names}. Save them merged first "
            "(Embedder.from_pretrained(MODEL, adapter=[...]).save_pretrained(FOLDER)), or give one."
        )
    return Path(adapter_folder(source.adapters[0]) if source.adapters else place_of(source))


def load_base_language_model(source: Source) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The decoder WITH its language-model head, on its device, and its tokenizer. `body_of` finds the decoder inside.

    It attends causally, whatever its config says: an embedder may have been saved without its mask, and would see what it has to predict.
    Raises UnmaskError, also for a model that was saved without its head, unless the head is tied to the input embeddings.
    """
    path = _intact(place_of(source))
    if source.adapters or is_adapter(Path(path)):
        raise UnmaskError("A language model is loaded without an adapter. Merge the adapter first.")
    device = pick_device(source.device)
    tokenizer = _padding(_load(path, source, "tokenizer"))
    model = _placed(_load(path, source, "language model", pick_dtype(source.dtype, device)), device)
    if any(getattr(config, "is_causal", True) is False for config in attention_configs(model)):
        set_attention(model, "causal")
    note_base_values(body_of(model))
    note_source(body_of(model), source)
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
        hint = f" For quantised weights: --quantize {' or '.join(QUANTIZATIONS)}." if re.search("[48]", dtype) else ""
        raise UnmaskError(f"'{dtype}' is not a dtype: auto, {', '.join(DTYPES)}.{hint}")
    warn_if_emulated(DTYPES[dtype], device)
    return DTYPES[dtype]


def precision_of(source: Source) -> str:
    """The name of the precision that a model is loaded in: what "auto" means on its device. Raises UnmaskError."""
    return str(pick_dtype(source.dtype, pick_device(source.device))).removeprefix("torch.")


def load_tokenizer(source: Source) -> PreTrainedTokenizerBase:
    """The tokenizer of a model alone. Raises UnmaskError if it cannot be loaded, or has no character offsets."""
    return _load(place_of(source), source, "tokenizer")  # type: ignore[no-any-return]


def own_tokenizer(folder: Path, source: Source) -> PreTrainedTokenizerBase | None:
    """The tokenizer in the folder of an adapter or a mixture. None if it has none: use the tokenizer of the base model.

    Of an adapter on the hub only a saved embedder is sure to be downloaded with its tokenizer. Raises UnmaskError.
    """
    name = (source.model, *source.adapters)[-1]
    has_tokenizer = is_mixture(folder) or (folder / "unmask.json").is_file() or Path(resolve(name)).is_dir()
    if not has_tokenizer or not (folder / "tokenizer_config.json").is_file():
        return None
    trusted = source.trust_remote_code and not source.adapters  # applies to the model only, not to its adapter
    tokenizer_source = replace(source, model=name, adapters=(), revision=None, trust_remote_code=trusted)
    return _padding(_load(str(folder), tokenizer_source, "tokenizer"))


def _padding(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """The tokenizer, with a padding token. sentence-transformers needs one."""
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


@without_loading_bars()
def _load(path: str, source: Source, part: str, dtype: torch.dtype | None = None) -> Any:
    from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

    common: dict[str, Any] = {"trust_remote_code": source.trust_remote_code, "revision": source.revision}
    model_options = {
        "dtype": dtype,
        "use_safetensors": True,
        "attn_implementation": source.attn_implementation,
        "ignore_mismatched_sizes": True,  # transformers would raise without saying which, so they are refused below
    }
    require_own_code(path, source)
    nv_embed, stored, with_head = None, None, part != "decoder"
    if dtype is not None:  # a model, not a tokenizer
        require_safetensors(path, source)
        if (nv_embed := nv_embed_config(path, source.revision)) is not None:
            model_options |= decoder_options(nv_embed, part)
        stored = stored_quantization(path, source.revision)
        # transformers finds weights of torchao only by their full names, which include those of a language model around the decoder
        with_head |= stored == "torchao" and is_language_model(path, source.revision)
        model_options |= placement_options(source, stored, pick_device(source.device), dtype)
    try:
        with nullcontext() if Path(path).is_dir() else no_long_wait():
            if part == "tokenizer":
                loaded, report = AutoTokenizer.from_pretrained(path, **common), {}
            else:
                # an adapter uses the module names of the causal language model; its head is dropped later
                auto = AutoModelForCausalLM if with_head else AutoModel
                loaded, report = auto.from_pretrained(path, **common, **model_options, output_loading_info=True)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # of any class, since files of users go through code of several libraries
        raise UnmaskError(_why(source.model, path, part, error)) from error
    if nv_embed is None:
        _note_own_code(loaded, path, source, part)
    if nv_embed is not None or stored is not None:
        # saving would undo what loading did to these files, or fail to: it is what the model holds now that is saved
        vars(loaded).pop("_weight_conversions", None)
    if part == "tokenizer" and not loaded.is_fast:
        raise UnmaskError(
            f"The tokenizer of '{source.model}' is not a fast one, so it has no character offsets. unmask needs them."
        )
    if part != "tokenizer":
        body = body_of(loaded) if with_head else loaded
        weights = _weights_within(loaded, body)  # a missing head does not matter to a decoder: it is dropped
        _refuse_other_shapes(source.model, _weights_within(loaded, loaded) if part == "language model" else weights, report)
        if part == "language model":
            _refuse_random_head(source.model, loaded, report["missing_keys"])
        if lacking := sorted(set(report["missing_keys"]) & set(weights)):  # transformers would give them random values
            raise UnmaskError(
                f"'{source.model}' is not complete: it has no weights for {lacking[0]} ({len(lacking)} are missing in all)."
            )
        _refuse_surplus(source.model, body, report["unexpected_keys"])
        if with_head and part == "decoder":
            body.hf_quantizer = loaded.hf_quantizer  # saving needs it
            return body
    return loaded


def _weights_within(loaded: Any, part: Any) -> dict[str, Any]:
    """The weights of a part of a model, by their names in the model. A weight that is shared has several."""
    parameter_ids = {id(weight) for weight in part.parameters()}
    return {name: weight for name, weight in loaded.named_parameters(remove_duplicate=False) if id(weight) in parameter_ids}


def _note_own_code(loaded: Any, path: str, source: Source, loaded_part: str) -> None:
    """Warn if a model or a tokenizer includes Python code and transformers loaded a built-in class instead.

    What is saved then belongs to that class, so its config must not name the code.
    """
    if type(loaded).__module__.partition(".")[0] == "transformers_modules":
        return
    parts = ("AutoTokenizer",) if loaded_part == "tokenizer" else ("AutoModel", "AutoModelForCausalLM", "AutoConfig")
    classes = own_classes(path, source.revision)
    if class_names := [name for part in parts for name in classes.get(part, [])]:
        warnings.warn(
            f"'{source.model}' includes Python code ({class_names[0]}), which was not run: {type(loaded).__name__} of transformers "
            "was loaded instead. If that code computes anything else, these are not the vectors of its authors. If you trust the "
            "code, run it with --trust-remote-code (in Python: trust_remote_code=True).",
            stacklevel=2,
        )
        (loaded.init_kwargs if loaded_part == "tokenizer" else vars(loaded.config)).pop("auto_map", None)


def _refuse_other_shapes(name: str, weights: dict[str, Any], report: dict[str, Any]) -> None:
    """Raise UnmaskError if weights have another shape in the files than by the config."""
    wrong = sorted(entry for entry in report["mismatched_keys"] if entry[0] in weights)
    if not wrong:
        return
    key, in_file, by_config = wrong[0][0], tuple(wrong[0][1]), tuple(wrong[0][2])
    raise UnmaskError(
        f"'{name}' could not be loaded: its weights do not fit its config.json. {key} has shape {in_file} in the file and {by_config} by "
        f"the config ({len(wrong)} such weights in all). Restore the config.json of these weights."
    )


def _refuse_surplus(name: str, body: Any, unexpected: Iterable[str]) -> None:
    """Raise UnmaskError for weights of the decoder in the files that its config has no place for. transformers would drop them.

    Heads, and whole parts that transformers does not have (layers that predict a second token), stay outside: they do not act on the
    states of a decoder.
    """
    config = body.config.get_text_config(decoder=True)
    if (
        getattr(body.config, "quantization_config", None) is not None
    ):  # scales of caches and activations, which not every kernel reads
        return
    depth, ahead = depth_of(config), getattr(config, "num_nextn_predict_layers", None) or 0
    modules = dict(body.named_modules())
    surplus = []
    for key in sorted(unexpected):
        path = key.removeprefix(f"{body.base_model_prefix}.").split(".")
        if path[0] not in modules:
            continue
        beyond = [int(part) for part in path if part.isdigit()][:1]
        if beyond and depth <= beyond[0] < depth + ahead:
            continue
        parent = modules.get(".".join(path[:-1]))
        is_buffer = path[-1] not in ("weight", "bias") or (parent is not None and any(parent.children()))  # masks of old files
        if (beyond and beyond[0] >= depth) or not is_buffer:
            surplus.append(key)
    if surplus:
        raise UnmaskError(
            f"'{name}' has weights that its config.json ({depth} layers) has no place for, such as {surplus[0]} ({len(surplus)} in all). "
            "Without them its vectors would be wrong. Restore the config.json of these weights. For the states of an "
            "earlier layer, name the layer in the design."
        )


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


def _placed(model: Any, device: torch.device) -> Any:
    """The model on its device, unless a device map or quantisation has placed it; on a CPU, with its weights aligned in memory.

    On some processors the last bits of a product depend on the alignment.
    """
    if is_placed(model):
        return model
    model = model.to(device)
    for weight in (*model.parameters(), *model.buffers()):
        if weight.data_ptr() % 64:
            weight.data = weight.data.clone()
    return model


def _adapt_all(model: Any, chain: Sequence[_Adapter], merge: bool) -> PreTrainedModel:
    """The decoder with adapters, lowest first. Each of several was trained on weights with those below merged in, so all are merged."""
    for adapter in chain:
        body = _adapt(model, adapter.folder, merge or len(chain) > 1)
    if len(chain) > 1:
        body.merged_chain = tuple(lasting_name(adapter.name) for adapter in chain)
    return body


def _adapt(model: Any, adapter: str, merge: bool) -> PreTrainedModel:
    from peft import PeftConfig, PeftModel
    from peft.mapping import PEFT_TYPE_TO_PREFIX_MAPPING
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import load_peft_weights

    body = body_of(model)
    try:
        config = PeftConfig.from_pretrained(adapter)
    except Exception as error:  # a KeyError names a kind of adapter that this version of peft does not know
        raise UnmaskError(f"The adapter '{adapter}' could not be loaded: {cause_of(error)}") from error
    require_repeatable(config, adapter)
    kind = getattr(config.peft_type, "value", config.peft_type)
    if config.is_prompt_learning or config.is_adaption_prompt:
        raise UnmaskError(
            f"The adapter '{adapter}' is of the kind {kind}, which adds trained vectors to the input of the layers and changes no layer "
            "of the decoder. unmask reads kinds that change layers, such as LoRA: use one of those, or the base model alone."
        )
    prefix = PEFT_TYPE_TO_PREFIX_MAPPING.get(config.peft_type, "")
    try:
        # most adapters use the module names of a model with its head; adapters of embedding models do not
        body_path = next(f"{name}." for name, module in model.named_modules() if module is body)
        weights = load_peft_weights(adapter, device="cpu")
        names = [name for name in weights if name.startswith("base_model.model.")]
        headless = bool(names) and not any(name.startswith(f"base_model.model.{body_path}") for name in names)
        if headless:
            config.task_type = None  # for "CAUSAL_LM", peft would look for the head's methods
        adapted = PeftModel.from_pretrained(body if headless else model, adapter, config=config)
        report = adapted.load_adapter(adapter, "default")
    except (UnmaskError, torch.OutOfMemoryError):
        raise
    except KeyError as error:
        raise UnmaskError(f"The adapter '{adapter}' is not complete: it has no weights for {error}.") from error
    except UnpicklingError as error:
        raise UnmaskError(
            f"The adapter '{adapter}' could not be loaded: its .bin file is damaged, or holds more than weights."
        ) from error
    except Exception as error:  # of any class, since the file of a user goes through code of each kind of adapter
        raise UnmaskError(f"The adapter '{adapter}' could not be loaded ({kind}): {cause_of(error)}") from error
    adapted_weights = list(adapted.named_parameters(remove_duplicate=False))
    loaded = {id(weight) for name, weight in adapted_weights if name not in report.missing_keys}
    shared = {name for name, weight in adapted_weights if id(weight) in loaded}  # VB-LoRA saves what its layers share once
    if set(report.missing_keys) - shared or any(prefix in name for name in report.unexpected_keys):
        # peft would leave layers without weights unchanged or random
        raise UnmaskError(f"The adapter '{adapter}' belongs to another model: its layers do not match this model's.")
    if not any(isinstance(module, BaseTunerLayer) or "modules_to_save" in name for name, module in body.named_modules()):
        raise UnmaskError(
            f"The adapter '{adapter}' ({kind}) changes no layer of the decoder, so its vectors would equal the base model's. Use the "
            "base model, or an adapter that was trained on layers of the decoder."
        )
    if merge:
        _untie(model, body)
        try:
            adapted.merge_and_unload()  # in place
        except Exception as error:  # of any class: each kind of adapter has its own
            raise UnmaskError(
                f"PEFT cannot merge the adapter '{adapter}' ({kind}) into the weights: {cause_of(error)} Load it alone on its base model, "
                "without merging."
            ) from error
        body.merged_adapter = adapter  # a later adapter lies over it, and saving that would name the plain base
    else:
        body.peft_config = adapted.peft_config  # peft keeps it with the whole model; saving looks for it in the body
        body.adapter_place = "" if headless else body_path  # prefix of the module names in the adapter's config
    return body  # type: ignore[no-any-return]


def require_repeatable(config: Any, adapter: str) -> None:
    """Raise UnmaskError for an adapter that has no effect here, or that is initialised at random on each load."""
    if getattr(config, "alora_invocation_tokens", None):
        raise UnmaskError(
            f"The adapter '{adapter}' is an aLoRA: it acts only after certain tokens in a chat, so it would change no vector."
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


def _why(name: str, path: str, part: str, error: Exception) -> str:
    """The reason of a failed load, and the way out."""
    from safetensors import SafetensorError

    folder = Path(path)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            return f"'{name}' is not a model: config.json is missing."
        small_files = (file for file in sorted(folder.iterdir()) if file.is_file() and file.stat().st_size < 1024)
        pointer = next((file for file in small_files if file.read_bytes().startswith(b"version https://git-lfs.")), None)
        if pointer is not None:
            return (
                f"'{name}' is not complete: {pointer.name} is a pointer of Git LFS and not the file itself. Run `git lfs pull` in the "
                "folder, or download the model again."
            )
        lacks_safetensors = not any(folder.glob("*.safetensors"))
    else:
        lacks_safetensors = "does not appear to have" in str(error) and "safetensors" in str(error)
    if part == "tokenizer":
        if isinstance(error, OSError) and not folder.is_dir():
            return hub_failure(name, error)
        # transformers reads the config first, to choose the class of the tokenizer
        return f"The tokenizer or the config of '{name}' could not be loaded: {cause_of(error)}"
    if lacks_safetensors:
        return (
            f"'{name}' has no *.safetensors file. Weights of other formats are not loaded, since they can run code. If you trust the "
            'files, convert them: python -c "from transformers import AutoModelForCausalLM as Model; '
            f"Model.from_pretrained('{name}').save_pretrained('CONVERTED')\". Copy the files of the tokenizer to CONVERTED, and give "
            "that folder."
        )
    if isinstance(error, OSError) and not folder.is_dir():
        return hub_failure(name, error)
    if isinstance(error, SafetensorError):
        return f"'{name}' is damaged or incomplete: {cause_of(error)}. Download or copy its *.safetensors files again."
    return f"'{name}' could not be loaded: {cause_of(error)}"


def dtype_name(model: nn.Module) -> str:
    """The precision of a model's weights, as `Source.dtype` spells it."""
    return str(next(model.parameters()).dtype).removeprefix("torch.")
