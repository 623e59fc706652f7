"""Tiny random models of the decoder families that the contracts are tested on: 3 layers of 64, 8 experts where there are any."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn

_WIDE: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
_TOKENS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_SLIDING: dict[str, Any] = {"sliding_window": 8, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}
_EXPERTS: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 2}
_LOCAL_EXPERTS: dict[str, Any] = {"num_local_experts": 8, "num_experts_per_tok": 2}
_SPARSE: dict[str, Any] = {**_EXPERTS, "moe_intermediate_size": 32, "decoder_sparse_step": 1, "mlp_only_layers": []}
_SHARED: dict[str, Any] = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "topk_group": 1,
}
_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "n_group": 2,
}


@dataclass(frozen=True)
class Family:
    """A configuration: its model type, how it differs from the common one, and what it is known to do."""

    name: str
    model_type: str
    changes: dict[str, Any] = field(default_factory=dict)
    bidirectional: Literal["yes", "partly", "no"] = "yes"
    experts: int = 0
    moe_layers: int = 3
    base: dict[str, Any] = field(default_factory=lambda: _WIDE)

    def build(self, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
        """A model without head, with weights large enough that they matter and that routers are not flat."""
        from transformers import AutoModel

        torch.manual_seed(seed)
        return make_loud(AutoModel.from_config(self.config), dtype)

    def build_language_model(self, seed: int = 0) -> Any:
        """The whole language model, with its head."""
        from transformers import AutoModelForCausalLM

        torch.manual_seed(seed)
        return make_loud(AutoModelForCausalLM.from_config(self.config), torch.float32)

    @property
    def config(self) -> Any:
        """The configuration of transformers."""
        from transformers import AutoConfig

        return AutoConfig.for_model(self.model_type, **{**self.base, **_TOKENS, **self.changes})


def make_loud(model: Any, dtype: torch.dtype) -> Any:
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.15)
    nn.init.normal_(model.get_input_embeddings().weight, std=1.0)
    return model.to(dtype).eval()


def _moe(name: str, model_type: str, changes: dict[str, Any], **known: Any) -> Family:
    return Family(name, model_type, changes, experts=8, **known)


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family("llama", "llama"),
        Family("mistral", "mistral", {"sliding_window": None}),
        Family("mistral-sliding", "mistral", {"sliding_window": 8}),
        Family("qwen2", "qwen2"),
        Family("qwen2-sliding", "qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
        Family("qwen3", "qwen3", {"head_dim": 16}),
        Family("gemma", "gemma", {"head_dim": 16}),
        Family("gemma2", "gemma2", {"head_dim": 16, "sliding_window": 8}),
        Family("gemma3", "gemma3_text", {"head_dim": 16, **_SLIDING}),
        Family("phi3", "phi3", {"sliding_window": None}),
        Family("phi3-sliding", "phi3", {"sliding_window": 8}),
        Family("olmo2", "olmo2"),
        Family("olmo3", "olmo3", _SLIDING),
        Family("granite", "granite"),
        Family("smollm3", "smollm3"),
        Family("gpt-neox", "gpt_neox"),
        Family("gpt2", "gpt2", base={"vocab_size": 512, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 512}),
        Family("falcon", "falcon"),
        Family("bloom", "bloom", base={"vocab_size": 512, "hidden_size": 64, "n_layer": 3, "n_head": 4}),
        Family("opt", "opt", {"ffn_dim": 96, "word_embed_proj_dim": 64}),
        _moe("olmoe", "olmoe", _EXPERTS),
        _moe("mixtral", "mixtral", _LOCAL_EXPERTS),
        _moe("mixtral-sliding", "mixtral", {**_LOCAL_EXPERTS, "sliding_window": 8}),
        _moe("qwen2-moe", "qwen2_moe", {**_SPARSE, "shared_expert_intermediate_size": 48}),
        _moe("qwen3-moe", "qwen3_moe", {**_SPARSE, "head_dim": 16}),
        _moe("qwen3-moe-first-dense", "qwen3_moe", {**_SPARSE, "head_dim": 16, "mlp_only_layers": [0]}, moe_layers=2),
        _moe("deepseek-v2", "deepseek_v2", {**_SHARED, **_LATENT, "topk_method": "greedy"}, moe_layers=2),
        _moe("deepseek-v3", "deepseek_v3", {**_SHARED, **_LATENT}, moe_layers=2),
        _moe("gpt-oss", "gpt_oss", {**_LOCAL_EXPERTS, **_SLIDING, "head_dim": 16}),
        _moe("granitemoe", "granitemoe", _LOCAL_EXPERTS),
        _moe("phimoe", "phimoe", _LOCAL_EXPERTS),
        _moe("glm4-moe", "glm4_moe", {**_SHARED, "n_group": 1, "head_dim": 16}, moe_layers=2),
        _moe(
            "dbrx",
            "dbrx",
            {
                "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
                "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 8, "moe_top_k": 2},
            },
            base={"vocab_size": 512, "d_model": 64, "n_heads": 4, "n_layers": 3, "max_seq_len": 512},
        ),
        _moe(
            "llama4",
            "llama4_text",
            {
                "num_local_experts": 8,
                "num_experts_per_tok": 1,
                "interleave_moe_layer_step": 1,
                "intermediate_size_mlp": 96,
                "head_dim": 16,
                "attention_chunk_size": 8,
            },
            bidirectional="no",
        ),
        _moe(
            "qwen3-next",
            "qwen3_next",
            {
                **_SPARSE,
                "shared_expert_intermediate_size": 32,
                "head_dim": 16,
                "linear_num_value_heads": 4,
                "linear_num_key_heads": 2,
                "linear_key_head_dim": 16,
                "linear_value_head_dim": 16,
                "layer_types": ["linear_attention", "linear_attention", "full_attention"],
            },
            bidirectional="partly",
        ),
        Family(
            "mamba",
            "mamba",
            {"state_size": 8},
            bidirectional="no",
            base={"vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 3},
        ),
    )
}

EACH_KIND = (
    "llama",  # full attention, rotary positions
    "mistral-sliding",  # a window in every layer
    "gemma2",  # a window in every other layer, scores that are capped
    "gemma3",  # two sets of rotary frequencies
    "phi3-sliding",  # queries, keys and values from one map
    "gpt-neox",  # rotary positions of a part of each head, attention beside the feed-forward layer
    "gpt2",  # learned positions
    "falcon",  # one head of keys and values for all queries
    "bloom",  # ALiBi
    "opt",  # learned positions, counted from the mask
    "olmoe",  # experts
    "mixtral-sliding",  # experts behind a window
    "deepseek-v3",  # latent keys and values, shared experts, groups of experts
    "gpt-oss",  # attention sinks, scaled rotary positions
    "llama4",  # attention in chunks, one expert a token
    "qwen3-next",  # layers of linear attention
    "mamba",  # a state and no attention
)
"""A family of each mechanism of mask, position, cache and experts: `make test` tries these, `make test-all` every family.

Whether a type of model can be read at all is tested for every type of transformers (models/test_model_types.py).
"""
