"""Published LLM2Vec-Gen models (arXiv 2603.10913): a folder with the trained tokens and two linear layers over a frozen base model.

Written by the package llm2vec-gen: `encoder/` is a PEFT adapter of trained tokens that names the base, `reconstruction_mlp` and
`alignment_mlp` are files of torch, and `encoder_decoder_config.json` says how many of the tokens are read.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.encoding.heads import CompressionTokens, HeadOptions
from unmask.errors import UnmaskError
from unmask.io.seals import load_tensors
from unmask.models.source import adapter_weights, is_adapter

ENCODER, ALIGNMENT = "encoder", "alignment_mlp"
_SETTINGS = "encoder_decoder_config.json"
_DELTA = ".trainable_tokens_delta"


@dataclass(frozen=True)
class PublishedTokens:
    """Trained tokens and linear layers. adapter: the folder whose adapter_config.json names the base model."""

    adapter: Path
    head: CompressionTokens


def read_published_tokens(folder: Path) -> PublishedTokens | None:
    """The trained parts of a published folder; None for any other folder.

    Raises UnmaskError for weights of another form: LoRA beside the trained tokens, or other layers than two linear ones.
    """
    if not ((folder / ALIGNMENT).is_file() and is_adapter(folder / ENCODER)):
        return None
    weights = adapter_weights(folder / ENCODER)
    tensors = load_tensors(weights) if weights is not None and weights.suffix == ".safetensors" else {}
    trained = [tensor for name, tensor in tensors.items() if name.endswith(_DELTA)]
    if len(trained) != 1 or any("lora_" in name for name in tensors):
        raise UnmaskError(
            f"'{folder}' is a model of LLM2Vec-Gen that trains more than tokens: unmask reads those whose LLM is frozen."
        )
    settings = json.loads((folder / _SETTINGS).read_text(encoding="utf-8")) if (folder / _SETTINGS).is_file() else {}
    mode = re.fullmatch(r"last_(\d+)_tokens", settings.get("encoding_mode", "last_10_tokens"))
    layers = {name: _linear(folder / f"{name}_mlp") for name in ("reconstruction", "alignment")}
    if mode is None:
        raise UnmaskError(f"'{folder}' reads its tokens by '{settings['encoding_mode']}', and unmask reads the last ones.")
    (count, hidden), dim = trained[0].shape, len(layers["alignment"]["bias"])
    head = CompressionTokens(hidden, 1, HeadOptions(latents=count, read=int(mode[1]), dim=dim))
    head.load_state_dict(
        {"latents": trained[0]} | {f"{name}.{part}": value for name, layer in layers.items() for part, value in layer.items()}
    )
    return PublishedTokens(folder / ENCODER, head)


def _linear(file: Path) -> dict[str, Tensor]:
    """Weight and bias of a linear layer. weights_only: torch then runs no code of the file."""
    try:
        saved: Any = torch.load(file, map_location="cpu", weights_only=True)
        state, settings = saved["state_dict"], saved["config"]
        layer = {name: state[f"projection.{name}"] for name in ("weight", "bias")}
    except Exception as error:  # of any class: the file is a user's
        raise UnmaskError(f"'{file}' holds no linear layer of LLM2Vec-Gen: {error}.") from error
    if settings.get("pooling_mode", "linear") != "linear":
        raise UnmaskError(f"'{file}' pools by '{settings['pooling_mode']}', and unmask reads 'linear'.")
    return layer
