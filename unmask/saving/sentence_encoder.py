"""Trained sentence encoders: a folder that sentence-transformers saved says how its model is read, which gives a design."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unmask.designs.design import Attention, Design, Pooling
from unmask.encoding.features import Fit
from unmask.encoding.heads import Head
from unmask.encoding.tokenization import MAX_LENGTH
from unmask.errors import UnmaskError
from unmask.io.seals import load_tensors

MODULES, ST_CONFIG = "modules.json", "config_sentence_transformers.json"
POOLINGS: dict[str, Pooling] = {
    "cls": "first",
    "mean": "mean",
    "max": "max",
    "lasttoken": "last",
    "weightedmean": "weighted-mean",
}
"""Poolings of sentence-transformers that it computes as we do, by its names. The older spelling is `pooling_mode_mean_tokens`."""


@dataclass(frozen=True)
class SentenceEncoder:
    """How a published model is read: design, limit of tokens, prompts by name, and the product of its linear layers.

    head: reads the trained pooling from its files, for a decoder of this many layers. base: the folder of an adapter that names the
    decoder, if the model holds none.
    """

    design: Design
    max_length: int
    prompts: dict[str, str]
    fit: Fit | None = None
    head: Callable[[int], Head] | None = None
    base: Path | None = None


def read_sentence_encoder(folder: Path) -> SentenceEncoder:
    """Read `modules.json` and the files that it names.

    A last module that scales vectors to unit length is left out: it changes no cosine. Raises UnmaskError, saying what to do, if the
    modules compute something that a design cannot express.
    """
    modules = _json(folder / MODULES)
    kinds = [str(module.get("type")).rpartition(".")[2] for module in modules] if isinstance(modules, list) else []
    dense = [folder / str(module.get("path")) for module, kind in zip(modules, kinds, strict=False) if kind == "Dense"]
    if kinds[: 2 + len(dense)] != ["Transformer", "Pooling", *["Dense"] * len(dense)] or kinds[2 + len(dense) :] not in (
        [],
        ["Normalize"],
    ):
        raise _unlike(folder, f"its modules are {', '.join(kinds) or 'none'}")
    subfolder, pooling_folder = (str(module.get("path", "")) for module in modules[:2])
    settings, pooling = _json(folder / "sentence_bert_config.json"), _json(folder / pooling_folder / "config.json")
    if settings.get("do_lower_case") or settings.get("processing_kwargs"):
        raise _unlike(folder, "sentence_bert_config.json changes texts before they are tokenized")
    if "message" in (settings.get("modality_config") or {}) and _has_chat_template(folder / subfolder):
        raise _unlike(folder, "it makes a chat of each text")
    flags = [name.removeprefix("pooling_mode_") for name, used in pooling.items() if name.startswith("pooling_mode_") and used]
    older = [name.removesuffix("_tokens").removesuffix("_token") for name in flags]
    modes = [pooling["pooling_mode"]] if "pooling_mode" in pooling else older
    mode = modes[0] if len(modes) == 1 and isinstance(modes[0], str) else ""
    if mode not in POOLINGS:
        raise _unlike(folder, f"it pools by {' and '.join(map(str, modes)) or 'nothing'}")
    stored = _json(folder / ST_CONFIG)
    prompts = {str(name): str(prompt) for name, prompt in (stored.get("prompts") or {}).items() if prompt}
    if prompts and not pooling.get("include_prompt", True) and mode not in ("lasttoken", "cls"):
        raise _unlike(folder, "its pooling leaves out the prompt")
    if prompts.get(stored.get("default_prompt_name") or ""):
        raise _unlike(folder, f"it puts the prompt '{stored['default_prompt_name']}' before every text")
    transformer = folder / subfolder
    limits = (settings.get("max_seq_length"), _json(transformer / "tokenizer_config.json").get("model_max_length"))
    limit = next((int(limit) for limit in limits if isinstance(limit, int | float) and limit < 10**6), MAX_LENGTH)
    prompt = "full-instruction" if prompts else "full"
    attention = _attention(_json(transformer / "config.json"))
    design = Design(attention, prompt, POOLINGS[mode], transforms=("dense",) if dense else ())
    return SentenceEncoder(design, limit, prompts, _product(folder, dense) if dense else None)


def _product(folder: Path, layers: Sequence[Path]) -> Fit:
    """Linear layers one after the other, as one. Raises UnmaskError if something else is between them."""
    weight, bias = torch.ones((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for layer in layers:
        config = _json(layer / "config.json")
        if not config.get("activation_function", "").endswith("Identity") or config.get("use_residual"):
            raise _unlike(folder, f"its Dense module has the activation {config.get('activation_function')}")
        if not (layer / "model.safetensors").is_file():
            raise _unlike(folder, "its Dense module has no model.safetensors")
        tensors = {name: tensor.double() for name, tensor in load_tensors(layer / "model.safetensors").items()}
        matrix = tensors["linear.weight"].T
        weight = weight @ matrix if weight.ndim else matrix
        bias = (bias @ matrix if bias.ndim else bias) + tensors.get("linear.bias", torch.zeros((), dtype=torch.float64))
    return Fit(dense=weight.float().contiguous(), dense_bias=bias.float() if bias.any() else None)


def _has_chat_template(folder: Path) -> bool:
    return (folder / "chat_template.jinja").is_file() or bool(_json(folder / "tokenizer_config.json").get("chat_template"))


def _attention(config: dict[str, Any]) -> Attention:
    """Bidirectional for encoders, and for decoders whose config says so. Loading proves it."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    is_encoder = config.get("model_type") in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not config.get("is_decoder")
    says_so = config.get("is_causal") is False or config.get("use_bidirectional_attention")
    return "bidirectional" if is_encoder or says_so else "causal"


def _json(file: Path) -> Any:
    if not file.is_file():
        return {}
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UnmaskError(f"'{file}' is not JSON: {error}.") from error


def _unlike(folder: Path, reason: str) -> UnmaskError:
    return UnmaskError(
        f"'{folder}' is a sentence-transformers model that no design reads as it was trained: {reason}. To read its model another way, "
        'name a design, such as -d bidirectional/full/mean (in Python: design="bidirectional/full/mean").'
    )
