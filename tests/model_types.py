"""Every text model type of the installed transformers as a tiny random model, and what unmask does with it.

The sizes come from the type's own default configuration: each field named in SIZES is shrunk, and the layers are one of each kind. So a new
type needs nothing here, unless its defaults cannot be shrunk that way (CHANGES). `python -m tests.model_types` writes the page of the
documentation, against which tests/models/test_model_types.py compares.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from tests.families import make_loud
from unmask.designs.design import ATTENTIONS, Attention
from unmask.encoding.backbone import Backbone, HiddenRead, Read, RoutingRead, TokenBatch
from unmask.encoding.pooling import POOLINGS
from unmask.errors import UnmaskError
from unmask.models.decoder import sparse_limit, without_head

PAGE = Path(__file__).parents[1] / "docs/reference/model-types.md"
VOCABULARY, LONGEST = 128, 40
LENGTHS = (5, 29, LONGEST)
"""Tokens of the texts in a batch: shorter and longer than every window, chunk and block of the tiny models. The last one only pads."""


def _all(value: int, names: str) -> dict[str, int]:
    return dict.fromkeys(names.split(), value)


SIZES: dict[str, Any] = {
    **_all(VOCABULARY, "vocab_size vocab_size_per_layer_input"),
    **_all(32, "hidden_size d_model n_embd emb_dim embedding_dim embedding_size input_embedding_size output_embedding_size"),
    **_all(32, "word_embed_proj_dim attention_hidden_size lru_width"),
    **_all(4, "num_attention_heads n_head n_heads num_heads attention_heads swa_num_attention_heads encoder_attention_heads"),
    **_all(4, "decoder_attention_heads num_encoder_attention_heads num_decoder_attention_heads"),
    **_all(2, "num_key_value_heads swa_num_key_value_heads num_query_groups"),
    **_all(8, "head_dim dim_head d_head swa_head_dim kv_channels attention_head_size attention_head_dim"),
    **_all(
        48, "intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim ffn_hidden_size dff d_inner dim_ff feed_forward_size"
    ),
    **_all(48, "dense_intermediate_size intermediate_size_mlp prefix_dense_intermediate_size"),
    **_all(16, "moe_intermediate_size expert_ffn_hidden_size shared_expert_intermediate_size shared_experts_intermediate_size"),
    **_all(16, "shared_intermediate_size moe_shared_expert_intermediate_size"),
    **_all(2, "num_hidden_layers n_layer n_layers num_layers num_blocks encoder_layers decoder_layers num_encoder_layers"),
    **_all(2, "num_decoder_layers"),
    **_all(64, "max_position_embeddings n_positions max_seq_len n_ctx model_max_length context_length max_source_positions"),
    **_all(64, "max_target_positions"),
    **_all(8, "num_experts num_local_experts n_routed_experts moe_num_experts"),
    **_all(2, "num_experts_per_tok num_experts_per_token moe_k moe_topk top_k_experts"),
    **_all(1, "first_k_dense_replace n_shared_experts num_shared_experts moe_num_shared_experts n_group topk_group"),
    **_all(1, "num_expert_group num_dense_layers n_groups mamba_n_groups mamba_ngroups moe_layer_start_index"),
    **_all(0, "num_kv_shared_layers"),
    **_all(16, "kv_lora_rank q_lora_rank o_lora_rank"),
    **_all(
        8, "qk_nope_head_dim qk_rope_head_dim v_head_dim rotary_dim linear_key_head_dim linear_value_head_dim linear_head_dim"
    ),
    **_all(4, "linear_num_heads linear_num_value_heads n_mamba_heads"),
    **_all(2, "linear_num_key_heads"),
    **_all(16, "index_topk"),
    **_all(4, "index_n_heads index_block_size index_topk_blocks"),
    **_all(8, "index_head_dim"),
    **_all(8, "sliding_window attention_chunk_size window_size local_attention sliding_window_size attention_window_size"),
    **_all(8, "local_attention_window_len block_size"),
    **_all(8, "state_size mamba_d_state ssm_state_size chunk_size mamba_chunk_size mamba_n_heads mamba_num_heads"),
    **_all(8, "mamba_d_head mamba_head_dim mamba_headdim"),
    **_all(64, "mamba_d_ssm"),
    **_all(4, "time_step_rank mamba_dt_rank laurel_rank adapter_rank gated_norm_rank"),
    **_all(8, "hidden_size_per_layer_input router_hidden_size"),
    **_all(0, "pad_token_id"),
    **_all(1, "bos_token_id start_token_id decoder_start_token_id"),
    **_all(2, "eos_token_id sep_token_id eod_token_id forced_eos_token_id"),
    **_all(3, "unk_index cls_token_id mask_token_id"),
}
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_ROPE = {"rope_type": "default", "rope_theta": 1e4}
CHANGES: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "blt": {"encoder_hash_byte_group_vocab": 64, "patcher_config": {"hidden_size": 32, "num_hidden_layers": 1}},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"sliding_attention": _ROPE, "full_attention": _ROPE},
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4},
        "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 8, "moe_top_k": 2},
    },
    "deepseek_v2": {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "dots3_note_text": {"head_dim": 16},
    "gemma4_text": {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 16},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "longcat_flash": {"zero_expert_num": 4},
    "mamba2": {"num_heads": 8},
    "nemotron": {"num_key_value_heads": 2},
    "qwen4_exp_text": {
        "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 16, "indexer_compress_ratio": 4,
    },
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "reformer": {
        "axial_pos_embds_dim": [16, 16], "axial_pos_shape": [8, 8], "attn_layers": ["local", "lsh"], "local_attn_chunk_length": 8,
        "lsh_attn_chunk_length": 8, "num_buckets": 4,
    },
    "roc_bert": {
        "pronunciation_embed_dim": 8, "shape_embed_dim": 8, "shape_vocab_size": 32, "pronunciation_vocab_size": 32,
    },
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "attention_hidden_size": 64, "attention_head_dim": 16, "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
    },
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip
_OTHER_MODALITIES = {"text_config", "vision_config", "audio_config", "audio_encoder_config", "audio_encoder"}


def text_model_types() -> list[str]:
    """The types that AutoModelForCausalLM loads, without those that see or hear: their text decoder is a type of its own."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return [
        name
        for name in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
        if not _OTHER_MODALITIES & set(CONFIG_MAPPING[name].sub_configs)
    ]


def tiny_config(kind: type) -> Any:
    """The default configuration of a class, shrunk, with one layer of each kind."""
    default = kind()
    values, fields = default.to_dict(), set(kind.__dataclass_fields__)  # type: ignore[attr-defined]
    changes = {n: size for n, size in SIZES.items() if n in fields and (values.get(n) is not None or n == "head_dim")}
    if values.get("kv_lora_rank"):  # latent attention has keys and values for every head
        changes["num_key_value_heads"] = changes["num_attention_heads"]
    changes |= {name: tiny_config(type(getattr(default, name))).to_dict() for name in kind.sub_configs}  # type: ignore[attr-defined]
    own_changes = CHANGES.get(values["model_type"], {})
    depth = next((values[name] for name in LAYERS if values.get(name)), None)
    by_layer = {n: values[n] for n in fields if isinstance(values.get(n), (list, tuple)) and len(values[n]) == depth}
    if by_layer and not by_layer.keys() & own_changes.keys():
        chosen = _one_of_each_kind(by_layer)
        changes |= {name: [of_layers[k] for k in chosen] for name, of_layers in by_layer.items()}
        changes |= {name: len(chosen) for name in LAYERS if name in changes}
        settings = {int(k): special for k, special in (values.get("per_layer_config") or {}).items()}
        smaller = changes | own_changes
        if settings:
            changes["per_layer_config"] = {
                new: {name: smaller.get(name, value) for name, value in settings[k].items()}
                for new, k in enumerate(chosen)
                if k in settings
            }
    return kind(**(changes | own_changes))


def _one_of_each_kind(by_layer: dict[str, Any]) -> list[int]:
    """The first layer with each string that a list of the configuration has, and two layers at least."""
    seen: set[tuple[str, str]] = set()
    chosen = []
    for layer, kinds in enumerate(zip(*by_layer.values(), strict=True)):
        new = {(name, kind) for name, kind in zip(by_layer, kinds, strict=True) if isinstance(kind, str)} - seen
        if new:
            chosen.append(layer)
            seen |= new
    return chosen if len(chosen) > 1 else [0, 1]


def build(model_type: str) -> Any:
    """A random model without head, as `load_decoder` gives it. Raises UnmaskError if AutoModel does not know the type."""
    from transformers import CONFIG_MAPPING, MODEL_MAPPING, AutoModel

    if CONFIG_MAPPING[model_type] not in MODEL_MAPPING:
        raise UnmaskError("AutoModel does not load it.")
    config = tiny_config(CONFIG_MAPPING[model_type])
    torch.manual_seed(0)
    return without_head(make_loud(AutoModel.from_config(config), torch.float32))


def status(model_type: str) -> tuple[str, str, str, str]:
    """Cells of the table: causal, bidirectional, routing, and the length of texts."""
    try:
        model = build(model_type)
    except Exception as error:  # a new type, whose defaults SIZES does not make small
        cell = str(error) if isinstance(error, UnmaskError) else f"The tests cannot build it: {error!r}."
        return cell, cell, "", ""
    cells = {attention: _cell(model, attention) for attention in ATTENTIONS}
    loaded = next((backbone for _, backbone in cells.values() if backbone), None)
    routing = ("yes" if loaded.routers else "dense") if loaded else ""
    length = ("up to the indexer's top-k" if sparse_limit(model) else "any") if loaded else ""
    return cells["causal"][0], cells["bidirectional"][0], routing, length


def _cell(model: Any, attention: Attention) -> tuple[str, Backbone | None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            before = model.config._attn_implementation
            backbone = Backbone(model, attention)
        except UnmaskError as error:
            name = type(model).__name__
            return str(error).replace(f"This model ({name})", "It").replace(name, "It"), None
        except Exception as error:
            return f"It fails, which is a fault of unmask: {error!r}.", None
    limit = sparse_limit(model)
    if limit is None and any("indexer" in name for name, _ in model.named_modules()):
        return "It has an indexer, and nothing says how many tokens that selects.", None
    if difference := largest_difference(backbone, limit or LONGEST):
        return f"A text depends on its batch: {difference:.0e}.", None
    cell = "yes"
    if model.config._attn_implementation != before:
        cell += ", with eager attention"
    if backbone.proof.hybrid:
        cell = cell.replace("yes", "partly")
    return cell, backbone


def largest_difference(backbone: Backbone, longest: int) -> float:
    """How far texts in a batch are from the same texts alone, relative to the median element. 0 if it is rounding."""
    reads: list[Read] = [HiddenRead(backbone.depth, POOLINGS[pool]) for pool in ("last", "mean")]
    reads += [RoutingRead("softmax", POOLINGS["mean"])] * bool(backbone.routers)
    lengths = [min(length, longest - 3 * (length < LONGEST)) for length in LENGTHS]
    texts = [(torch.arange(length) * 7919 + length) % (VOCABULARY - 3) + 3 for length in lengths]
    ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=7)
    mask = torch.arange(ids.shape[1]) < torch.tensor([[len(text)] for text in texts])
    with torch.inference_mode():
        together = backbone.read(TokenBatch(ids, mask, mask), reads)
        largest = 0.0
        for row, text in enumerate(texts[:-1]):
            whole = torch.ones(1, len(text), dtype=torch.bool)
            alone = backbone.read(TokenBatch(text[None], whole, whole), reads)
            changes = [(together[read][row] - alone[read][0]).abs().max() / alone[read].abs().median() for read in reads]
            largest = max(largest, *map(float, changes))
    return largest if largest > 1e-3 else 0.0


def page() -> str:
    """The page of the documentation."""
    rows = [(name, *status(name)) for name in text_model_types()]
    refusals = list(dict.fromkeys(cell for row in rows for cell in row[1:3] if not cell.startswith(_WORKS)))
    return "\n".join([*_INTRODUCTION, *_table(rows, refusals), "", *_reasons(refusals), ""])


_INTRODUCTION = (
    "# Model types",
    "",
    "What unmask does with every text model type of transformers that `AutoModelForCausalLM` loads. The page is generated from tiny random",
    "models of the pinned version (`python -m tests.model_types`), and a test fails when a type is new or behaves differently.",
    "",
    '"Yes" means that every layer was proven to attend as asked, and that a text, short or long, has the same embedding and the same',
    'routing weights alone and in a batch. "Partly" means that the attention looks ahead, while state spaces, convolutions and linear',
    "attention, in other layers or beside it, stay causal. A multimodal model is read through its text decoder, which mostly has a row of",
    "its own.",
    "",
)


_WORKS = ("yes", "partly")


def _table(rows: list[tuple[str, str, str, str, str]], refusals: list[str]) -> Iterator[str]:
    yield "| type | causal | bidirectional | routing | length of texts |"
    yield "|---|---|---|---|---|"
    for name, *attentions, routing, length in rows:
        cells = [cell if cell.startswith(_WORKS) else f"no ({refusals.index(cell) + 1})" for cell in attentions]
        yield f"| `{name}` | {' | '.join(cells)} | {routing} | {length} |"


def _reasons(refusals: list[str]) -> Iterator[str]:
    yield "Reasons for a refusal, as unmask states them:"
    yield ""
    yield from (f"{number}. {cell}" for number, cell in enumerate(refusals, start=1))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
