"""NV-Embed (arXiv 2405.17428): its published folders hold a Mistral decoder and a head, behind a config that only its own code reads.

transformers can read neither without that code, which was written for an old version. So the decoder is loaded as what it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unmask.errors import UnmaskError
from unmask.models.bundled import resolve
from unmask.models.source import Source, file_of, read_json

if TYPE_CHECKING:
    from torch import Tensor

_HEAD = "latent_attention_model."


def nv_embed_config(path: str, revision: str | None) -> dict[str, Any] | None:
    """The config of a model in a folder or on the hub, if it is of NV-Embed."""
    file = file_of(path, "config.json", revision)
    config = read_json(file) if file else {}
    return config if config.get("model_type") == "nvembed" else None


def decoder_options(config: dict[str, Any], part: str) -> dict[str, Any]:
    """The arguments by which `from_pretrained` finds the decoder, alone or inside a causal language model."""
    from transformers import MistralConfig

    described = {name: value for name, value in config["text_config"].items() if name not in ("model_type", "auto_map")}
    # its code shows every token to every other one, whatever window the config names
    decoder = MistralConfig.from_dict({**described, "sliding_window": None})
    return {"config": decoder, "key_mapping": {r"^embedding_model\.": "" if part == "decoder" else "model."}}


def head_weights(source: Source) -> dict[str, Tensor]:
    """The weights of the head in fp32, by the names of their files without the prefix. Raises UnmaskError."""
    from safetensors import safe_open

    path = resolve(source.model)
    index = file_of(path, "model.safetensors.index.json", source.revision)
    weight_map = read_json(index)["weight_map"] if index else {_HEAD: "model.safetensors"}
    weights: dict[str, Tensor] = {}
    for name in sorted({file for weight, file in weight_map.items() if weight.startswith(_HEAD)}):
        if (file := file_of(path, name, source.revision)) is None:
            raise UnmaskError(f"'{source.model}' is not complete: {name} is missing.")
        with safe_open(file, "pt") as tensors:
            names = [key for key in tensors.keys() if key.startswith(_HEAD)]  # noqa: SIM118
            weights |= {key.removeprefix(_HEAD): tensors.get_tensor(key).float() for key in names}
    return weights
