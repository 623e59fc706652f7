"""NV-Embed: its published folders as a design, with their head as `latent-attention`, without running their code."""

from __future__ import annotations

from unmask.designs.design import as_design
from unmask.encoding.heads import Head, HeadOptions, load_head
from unmask.errors import UnmaskError
from unmask.models.bundled import resolve
from unmask.models.nv_embed import head_weights, nv_embed_config
from unmask.models.source import Source, file_of, read_json
from unmask.saving.sentence_encoder import SentenceEncoder

_MAX_LENGTH = 4096
"""Tokens that the code of NV-Embed reads of a text, unless told otherwise."""
_LAYERS = {"state_norm": "0.norm", "latent_norm": "0.norm_context", "mlp.norm": "1.norm", "mlp.down": "1.fn.net.2"}
"""Layers with a bias by their names here and there."""


def read_nv_embed(model: str, revision: str | None) -> SentenceEncoder | None:
    """How NV-Embed reads a text, if a model is of NV-Embed. Raises UnmaskError for a variant that its own code reads otherwise."""
    config = nv_embed_config(resolve(model), revision) if model else None
    if config is None:
        return None
    if not config.get("is_mask_instruction", True) or config.get("padding_side", "right") != "right":
        raise UnmaskError(
            f"'{model}' is a variant of NV-Embed that pools its instruction (is_mask_instruction, padding_side), which no design does. "
            "To read its decoder another way, name a design, such as -d bidirectional/full/mean."
        )
    settings = file_of(resolve(model), "sentence_bert_config.json", revision)
    limit = read_json(settings).get("max_seq_length") if settings else None
    heads = config.get("latent_attention_config", {}).get("num_cross_heads", 8)
    source = Source(model, revision)
    return SentenceEncoder(as_design("nv-embed"), limit or _MAX_LENGTH, {}, head=lambda depth: _head(source, heads, depth))


def _head(source: Source, heads: int, depth: int) -> Head:
    theirs = head_weights(source)
    try:
        weights = {"latents": theirs["latents"]}
        for ours, name in _LAYERS.items():
            weights |= {f"{ours}.{part}": theirs[f"cross_attend_blocks.{name}.{part}"] for part in ("weight", "bias")}
        key_value, up_gate = (
            "cross_attend_blocks.0.fn.to_kv",
            "cross_attend_blocks.1.fn.net.0",
        )  # its GEGLU gates by the second half
        weights["attend.key.weight"], weights["attend.value.weight"] = theirs[f"{key_value}.weight"].chunk(2)
        for part in ("weight", "bias"):
            weights[f"mlp.up.{part}"], weights[f"mlp.gate.{part}"] = theirs[f"{up_gate}.{part}"].chunk(2)
        weights["attend.query.weight"] = theirs["cross_attend_blocks.0.fn.to_q.weight"]
        weights["attend.output.weight"] = theirs["cross_attend_blocks.0.fn.to_out.weight"]
        latents, hidden = weights["latents"].shape
        dim, width = len(weights["attend.query.weight"]), len(weights["mlp.up.bias"])
        options = HeadOptions(latents=latents, heads=heads, dim=dim, mlp=width / hidden, mlp_bias=True)
        return load_head("latent-attention", hidden, depth, options, weights)
    except (KeyError, RuntimeError) as error:
        raise UnmaskError(
            f"The latent attention of '{source.model}' has other weights than that of NV-Embed: {error}."
        ) from error
