"""Export to GGUF: llama.cpp's format, for architectures, poolings and tokenizers that llama.cpp has.

The file says how to pool and whether attention is causal. Ids of the prompt come from the reader in the same folder; llama.cpp's own
tokenizer is checked too, with the same texts inside their prompt.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from unmask.designs.design import Design, plain_attention
from unmask.encoding.tokenization import starts_with_bos
from unmask.errors import UnmaskError
from unmask.models.identity import loaded_from
from unmask.models.source import short_name
from unmask.saving.exports.onnx import load_reader, pools_a_part, reader_usage, write_reader
from unmask.saving.exports.target import INSTRUCTION, Checked, Exportable, Target, check_texts, check_vectors
from unmask.saving.folder import adapted, mixture_of

_TOLERANCE = 1e-4
# model type -> whether llama.cpp rotates queries and keys in pairs of neighbours, so that their rows are interleaved
_ARCHITECTURES = {"llama": True, "mistral": True, "qwen2": False, "qwen3": False}
_POOLINGS = {"mean": "MEAN", "last": "LAST"}
# how tokenizer.json cuts a text into words -> what llama.cpp calls that
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_WORDS = {
    ("ByteLevel",): "gpt-2",
    ("Digits", "ByteLevel"): "smollm",
    (_LLAMA3, "ByteLevel"): "llama-bpe",
    (_LLAMA3.replace("{1,3}", ""), "ByteLevel"): "qwen2",
}


def _refusal(embedder: Exportable) -> str | None:
    """Why llama.cpp cannot compute an embedder, and the nearest design that it can."""
    kind = embedder.backbone.model.config.get_text_config(decoder=True).model_type
    if mixture_of(embedder) is not None:
        return (
            "GGUF holds plain weights, and this model is a mixture, whose router chooses for each token: export it to onnx. Its experts "
            "merged without the router (`unmask merge MODEL/experts/*`) can be exported, but they are another model."
        )
    if adapted(embedder):
        return (
            "GGUF holds plain weights, and this model is a base with an unmerged adapter. Merge them first, by "
            "Embedder.from_pretrained(MODEL, merge=True).save_pretrained(FOLDER), and export FOLDER."
        )
    if kind not in _ARCHITECTURES:
        return f"GGUF is written for models of type {', '.join(_ARCHITECTURES)}, not for '{kind}': export it to onnx."
    if reason := _unlike_llama_cpp(embedder.backbone.model.config.get_text_config(decoder=True)):
        return f"llama.cpp computes this model differently: {reason}. Export it to onnx."
    if embedder.tokenizer.split_special_tokens:
        return (
            "The tokenizer of this model reads the name of a special token in a text as letters (split_special_tokens), and llama.cpp "
            "reads it as the token: export it to onnx."
        )
    if _words(_tokenizer_json(embedder)) is None:
        return "llama.cpp does not have the tokenizer of this model, as far as this program knows it: export it to onnx."
    nearest = _nearest(embedder)
    if nearest != embedder.design:
        return f"llama.cpp cannot compute '{embedder.design.name}'; the nearest design that it can is '{nearest.name}'."
    return None


def _nearest(embedder: Exportable) -> Design:
    """The design itself, if llama.cpp has all of it; else the nearest one. llama.cpp's mean is over all tokens."""
    design = embedder.design
    pooling = design.pooling if design.pooling in _POOLINGS and not pools_a_part(embedder) else "last"
    if design.layer == embedder.backbone.depth:
        return Design(plain_attention(design.attention), design.prompt, pooling, design.layer)
    return Design(plain_attention(design.attention), design.prompt, pooling)


def _unlike_llama_cpp(config: Any) -> str | None:
    """What of a config llama.cpp would compute in another way, in words."""
    if (config.rope_parameters or {}).get("rope_type", "default") != "default":
        return f"its positions are scaled ({config.rope_parameters['rope_type']})"
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        return "it has a sliding window"
    if config.hidden_act not in ("silu", "swish"):
        return f"its activation is {config.hidden_act}"
    return None


def _write(embedder: Exportable, folder: Path) -> None:
    """Write model.gguf and the reader. Raises UnmaskError for a weight that llama.cpp's architecture does not have."""
    import gguf

    model: Any = embedder.backbone.model
    config = model.config.get_text_config(decoder=True)
    architecture = "llama" if config.model_type == "mistral" else config.model_type
    writer = gguf.GGUFWriter(str(folder / "model.gguf"), architecture)
    writer.add_name(short_name(loaded_from(model, embedder.source).model))
    _write_settings(writer, embedder, config)
    _write_vocabulary(writer, embedder, config.vocab_size)
    key = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(key, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        gguf_name = names.get_name(f"model.{name}", try_suffixes=(".weight", ".bias"))
        if gguf_name is None:
            raise UnmaskError(f"llama.cpp's architecture '{architecture}' has no weight '{name}': export the model to onnx.")
        writer.add_tensor(gguf_name, _rotated(name, weight, config).float().cpu().contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    write_reader(embedder, folder)


def _write_settings(writer: Any, embedder: Exportable, config: Any) -> None:
    import gguf

    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    # llama.cpp takes texts that are shorter than the context
    writer.add_context_length(max(config.max_position_embeddings, embedder.prompt.max_length + 1))
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_causal_attention(embedder.design.attention == "causal")
    writer.add_pooling_type(gguf.PoolingType[_POOLINGS[embedder.design.one_pooling]])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)


def _write_vocabulary(writer: Any, embedder: Exportable, rows: int) -> None:
    """The entries in the order of their ids; unused rows of the embeddings get unique names."""
    import gguf

    tokenizer: Any = embedder.tokenizer
    content = _tokenizer_json(embedder)
    added = {entry["id"]: entry for entry in content["added_tokens"]}
    by_id = {id_: token for token, id_ in tokenizer.get_vocab().items()}
    tokens = [by_id.get(id_, f"[unused {id_}]") for id_ in range(rows)]
    kinds = [
        (gguf.TokenType.CONTROL if added[id_]["special"] else gguf.TokenType.USER_DEFINED)
        if id_ in added
        else gguf.TokenType.NORMAL
        if id_ in by_id
        else gguf.TokenType.UNUSED
        for id_ in range(rows)
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_words(content))
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    merges = content["model"]["merges"]
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    for name in ("bos", "eos", "pad"):
        if (id_ := getattr(tokenizer, f"{name}_token_id")) is not None:
            getattr(writer, f"add_{name}_token_id")(id_)
    writer.add_add_bos_token(starts_with_bos(tokenizer))
    writer.add_add_eos_token(False)


def _rotated(name: str, weight: Tensor, config: Any) -> Tensor:
    """The rows of queries and keys, interleaved where llama.cpp rotates neighbours and transformers halves."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
    if heads is None or not _ARCHITECTURES[config.model_type]:
        return weight
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def _tokenizer_json(embedder: Exportable) -> dict[str, Any]:
    return dict(json.loads(embedder.tokenizer.backend_tokenizer.to_str()))


def _words(content: dict[str, Any]) -> str | None:
    """llama.cpp's name of a tokenizer: a byte-level BPE without normaliser, by how it cuts a text into words. None if it is another."""
    if content["model"]["type"] != "BPE" or content["normalizer"] or not content["pre_tokenizer"]:
        return None
    parts = content["pre_tokenizer"].get("pretokenizers", [content["pre_tokenizer"]])
    if any(part.get("add_prefix_space") for part in parts):
        return None
    return _WORDS.get(tuple(part["pattern"].get("Regex", "") if part["type"] == "Split" else part["type"] for part in parts))


def _check(embedder: Exportable, folder: Path) -> Checked:
    """Compare vectors by ids, which our reader makes, and by texts, which llama.cpp tokenizes itself. It neither cuts nor takes ""."""
    reader = load_reader(folder)
    by_ids = check_vectors(embedder, reader.encode, _TOLERANCE)
    full = [text for text in check_texts(embedder) if text and fits(reader, text, INSTRUCTION)]
    by_texts = check_vectors(embedder, lambda texts, instruction: by_text(reader, texts, instruction), _TOLERANCE, full)
    return Checked(
        f"{by_ids.line}; by llama.cpp's own tokenizer, {by_texts.line}",
        f"Token ids from `embed.py`. {by_ids.details}\nTexts in their prompt, by llama.cpp's own tokenizer. {by_texts.details}",
    )


def by_text(reader: Any, texts: Sequence[str], instruction: str | None) -> Any:
    """Vectors by llama.cpp's own tokenizer: the prompt around each text, and the end-of-sequence token where the prompt has it."""
    end = "".join(map(reader.tokenizer.id_to_token, reader.layout["end"]))
    return np.concatenate([reader.run.vectors([reader.render(text, instruction)[0] + end]) for text in texts])


def fits(reader: Any, text: str, instruction: str | None) -> bool:
    """Whether a text with its prompt is within the limit, so that nothing is cut."""
    takes = reader.layout["prompt_with_instruction"] is not None
    return len(reader.tokenize(text, instruction if takes else None)[0]) < int(reader.layout["max_length"])


GGUF = Target(
    name="gguf",
    meaning="llama.cpp, and what builds on it (ollama, LM Studio)",
    precision="float32",
    writes=("gguf",),
    checks=("xllamacpp",),
    refusal=_refusal,
    write=_write,
    check=_check,
    usage=reader_usage,
)
