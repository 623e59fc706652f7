"""LLM2Vec-Gen: its published folders as a design, with their trained tokens and linear layers as the head `compression-tokens`.

The package llm2vec-gen writes them: `encoder/` is a PEFT adapter of trained tokens that names the frozen base model, `reconstruction_mlp`
and `alignment_mlp` are files of torch, and `encoder_decoder_config.json` says how many of the tokens are read.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.designs.design import as_design
from unmask.encoding.heads import CompressionTokens, HeadOptions, load_head
from unmask.encoding.tokenization import MAX_LENGTH
from unmask.errors import UnmaskError
from unmask.io.seals import load_tensors
from unmask.models.bundled import resolve
from unmask.models.source import file_of, read_json
from unmask.saving.sentence_encoder import SentenceEncoder

_LAYERS = ("reconstruction", "alignment")


def read_llm2vec_gen(model: str, revision: str | None) -> SentenceEncoder | None:
    """How LLM2Vec-Gen reads a text, if a model is of LLM2Vec-Gen.

    Raises UnmaskError for weights of another form: LoRA beside the trained tokens, or other layers than two linear ones.
    """
    if not model:
        return None
    path = resolve(model)
    files = {name: file_of(path, f"{name}_mlp", revision) for name in _LAYERS}
    adapter = file_of(path, "encoder/adapter_config.json", revision) if all(files.values()) else None
    if adapter is None:
        return None
    trained = file_of(path, "encoder/adapter_model.safetensors", revision)
    tensors = load_tensors(trained) if trained else {}
    tokens = [tensor for name, tensor in tensors.items() if name.endswith(".trainable_tokens_delta")]
    if len(tokens) != 1 or any("lora_" in name for name in tensors):
        raise UnmaskError(
            f"'{model}' is a model of LLM2Vec-Gen that trains more than tokens: unmask reads those whose LLM is frozen."
        )
    weights = {"latents": tokens[0].float()}
    for name, file in files.items():
        assert file is not None
        weights |= {f"{name}.{part}": value.float() for part, value in _linear(file).items()}
    settings = file_of(path, "encoder_decoder_config.json", revision)
    mode = (read_json(settings) if settings else {}).get("encoding_mode", "last_10_tokens")
    read = re.fullmatch(r"last_(\d+)_tokens", mode)
    if read is None:
        raise UnmaskError(f"'{model}' reads its tokens by '{mode}', and unmask reads the last ones.")
    (count, hidden), dim = tokens[0].shape, len(weights["alignment.bias"])
    head = load_head(CompressionTokens.kind, hidden, 1, HeadOptions(latents=count, read=int(read[1]), dim=dim), weights)
    return SentenceEncoder(as_design("llm2vec-gen"), MAX_LENGTH - count, {}, head=lambda _: head, base=adapter.parent)


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
