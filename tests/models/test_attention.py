"""Attention: every family is proven to attend as asked, and a model that does not is refused by name and layer."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.families import FAMILIES, Family
from tests.model_types import LONGEST, build, largest_difference
from unmask.designs.design import ATTENTIONS, Attention
from unmask.encoding.backbone import Backbone
from unmask.errors import AttentionError, UnmaskError
from unmask.models.attention import prove_attention, set_attention
from unmask.models.identity import attention_implementation

FP32, BF16 = torch.float32, torch.bfloat16
LLAMA4 = FAMILIES["llama4"]
MIXED_LLAMA4 = replace(
    LLAMA4, changes={**LLAMA4.changes, "layer_types": ["chunked_attention", "full_attention", "chunked_attention"]}
)
BART_PART = {"layers": 3, "attention_heads": 4, "ffn_dim": 96}
SLIDING: dict[str, Any] = {"sliding_window": 8, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}
ENCODER_DECODERS = [
    Family("t5", "t5", base={"vocab_size": 512, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 3, "num_heads": 4}),
    Family(
        "bart",
        "bart",
        {f"{part}_{name}": size for part in ("encoder", "decoder") for name, size in BART_PART.items()},
        base={"vocab_size": 512, "d_model": 64, "max_position_embeddings": 64},
    ),
]
MOBILEBERT = Family(
    "mobilebert",
    "mobilebert",
    base={"vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4},
)
OBEYING = [name for name, family in FAMILIES.items() if family.bidirectional == "yes"]
REFUSED = [name for name, family in FAMILIES.items() if family.bidirectional == "no"]
IN_BF16 = ("llama", "gemma2", "gpt2", "bloom", "olmoe", "deepseek-v3", "gpt-oss", "dbrx", "qwen3-next", "mamba", "llama4")
CASES = [(name, FP32) for name in FAMILIES] + [(name, BF16) for name in IN_BF16]
every_case = pytest.mark.parametrize(("name", "dtype"), CASES, ids=lambda value: str(value).removeprefix("torch."))
Mask = Callable[[int, int], Tensor]


def load(family: Family, attention: Attention, dtype: torch.dtype = FP32) -> Backbone:
    """A backbone without the warning that a hybrid gives."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Backbone(family.build(dtype=dtype), attention)


def ids(length: int = 24) -> Tensor:
    """Two texts, longer than the sliding windows and chunks of the families."""
    return torch.randint(3, 512, (2, length))


def run(model: Any, tokens: Tensor, pads: int = 0, **options: Any) -> Any:
    mask = torch.ones(len(tokens), tokens.shape[1] + pads, dtype=torch.long)
    mask[:, tokens.shape[1] :] = 0
    inputs = {"input_ids": torch.nn.functional.pad(tokens, (0, pads)), "attention_mask": mask if pads else None}
    with torch.inference_mode():
        return model(**inputs, use_cache=False, **options)


def states(model: Any, tokens: Tensor, pads: int = 0) -> Tensor:
    """Final states of the real tokens."""
    return run(model, tokens, pads).last_hidden_state[:, : tokens.shape[1]]  # type: ignore[no-any-return]


def moves(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() > 1e-3)


def another_last_token(tokens: Tensor) -> Tensor:
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 512
    return changed


@pytest.mark.parametrize(("change", "dtype"), [(0.024, BF16), (0.012, BF16), (5e-7, torch.float64)])
def test_a_layer_that_hardly_looks_ahead_is_not_taken_for_causal(change: float, dtype: torch.dtype) -> None:
    """Training can make the attention of one layer weak: after contrastive stages, layers of SmolLM2 fell to 0.026 and 0.013."""
    backbone = load(FAMILIES["llama"], "bidirectional", dtype)
    output = backbone.layers[1].self_attn.o_proj.weight
    for _ in range(5):  # the change of the layer's output is nearly proportional to these weights
        seen = prove_attention(backbone.model, backbone.layers, "bidirectional").unpadded[1]
        with torch.no_grad():
            output.mul_(change / seen)
    proof = prove_attention(backbone.model, backbone.layers, "bidirectional")
    assert 0.7 * change < proof.unpadded[1] < 1.3 * change and not proof.causal_layers


# ---- what the families do -----------------------------------------------------------------------------------------------------


@every_case
def test_causal_is_proven(name: str, dtype: torch.dtype) -> None:
    proof = load(FAMILIES[name], "causal", dtype).proof
    assert proof.causal_layers == (1, 2, 3) and not proof.hybrid
    assert proof.summary == "causal, proven in 3 layers with and without padding"


@pytest.mark.parametrize(
    ("name", "dtype"), [case for case in CASES if case[0] in OBEYING], ids=lambda value: str(value).removeprefix("torch.")
)
def test_bidirectional_is_proven_in_every_layer(name: str, dtype: torch.dtype) -> None:
    proof = load(FAMILIES[name], "bidirectional", dtype).proof
    assert proof.causal_layers == () and not proof.hybrid
    assert min(*proof.unpadded, *proof.padded) > 0.1 and max(proof.leak) < 1e-4


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
@pytest.mark.parametrize("name", REFUSED)
def test_a_family_that_cannot_look_ahead_is_refused(name: str, dtype: torch.dtype) -> None:
    with pytest.raises(AttentionError, match=r"stays causal in every layer.*Use a causal design"):
        load(FAMILIES[name], "bidirectional", dtype)


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_family_whose_texts_change_each_other_is_refused(attention: Attention, dtype: torch.dtype) -> None:
    """Doge's experts are chosen by router logits that are mixed over all tokens of a batch."""
    family = Family("doge-moe", "doge", {"is_moe": True, "num_experts": 16, "num_experts_per_tok": 4})
    with pytest.raises(AttentionError, match="DogeModel lets padding or other texts change a text in layers 1-3"):
        load(family, attention, dtype)


def test_a_family_that_breaks_without_a_causal_mask_is_refused() -> None:
    family = Family("mpt", "mpt", base={"vocab_size": 512, "d_model": 64, "n_heads": 4, "n_layers": 3, "max_seq_len": 512})
    assert load(family, "causal").proof.causal_layers == (1, 2, 3)
    with pytest.raises(AttentionError, match=r"MptModel does not run with bidirectional attention .*Use the other attention"):
        load(family, "bidirectional")


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_family_that_keeps_several_states_for_a_token_is_refused(attention: Attention) -> None:
    """Gemma 3n gives its layers four states for each token."""
    changes: dict[str, Any] = {"head_dim": 16, **SLIDING, "laurel_rank": 8, "num_kv_shared_layers": 0}
    changes |= {"vocab_size_per_layer_input": 512, "hidden_size_per_layer_input": 8}
    with pytest.raises(AttentionError, match="Gemma3nTextModel keeps several states for each token"):
        load(Family("gemma3n", "gemma3n_text", changes), attention)


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("family", ENCODER_DECODERS, ids=lambda family: family.name)
def test_an_encoder_decoder_is_refused(family: Family, attention: Attention) -> None:
    """BART runs without tokens for its decoder, and each layer there looks back only. But all of them see all states of the encoder."""
    with pytest.raises(AttentionError, match=r"Model is an encoder-decoder: .*Use a decoder or an encoder"):
        load(family, attention)


@pytest.mark.parametrize(
    "error", [ValueError("give an image\nor two"), RuntimeError("give an image"), KeyError("give an image")]
)
def test_a_model_that_does_not_run_is_refused_with_its_reason(error: Exception) -> None:
    with pytest.raises(AttentionError, match=r"LlamaModel does not run with causal attention \('?give an image'?\)\. Use"):
        Backbone(failing(error), "causal")


def failing(error: Exception) -> Any:
    """A model whose second layer raises an error."""

    def fail(*_: Any) -> None:
        raise error

    model = FAMILIES["llama"].build()
    model.layers[1].register_forward_pre_hook(fail)
    return model


def test_a_hybrid_names_the_layers_that_stay_causal() -> None:
    with pytest.warns(
        UserWarning, match=r"Qwen3NextModel is bidirectional.*layers 1-2 have no attention to set and stay causal"
    ):
        backbone = Backbone(FAMILIES["qwen3-next"].build(), "bidirectional")
    assert backbone.proof.hybrid and backbone.proof.causal_layers == (1, 2)


def test_a_branch_that_stays_causal_beside_the_attention_is_named() -> None:
    with pytest.warns(
        UserWarning, match=r"FalconH1Model is bidirectional.*in layers 1-2 a state space or convolution next to the att"
    ):
        proof = Backbone(build("falcon_h1"), "bidirectional").proof
    assert proof.hybrid and proof.causal_layers == () and proof.causal_branches == (1, 2)
    assert not Backbone(build("llama"), "bidirectional").proof.hybrid


def test_a_model_that_is_bidirectional_with_eager_attention_alone_uses_it() -> None:
    model = build("stablelm")
    assert Backbone(model, "causal").model.config._attn_implementation == "sdpa"
    with pytest.warns(UserWarning, match="StableLmModel is bidirectional only with eager attention.*--attn eager"):
        backbone = Backbone(model, "bidirectional")
    assert attention_implementation(model) == "eager" and not largest_difference(backbone, LONGEST)


def test_a_text_is_not_longer_than_an_indexer_reads_in_full() -> None:
    """The indexer of DeepSeek-V3.2 selects keys by their scores; rounding and ties then decide, and both differ with the batch."""
    backbone = Backbone(build("deepseek_v32"), "bidirectional")
    with pytest.warns(UserWarning, match=r"DeepseekV32Model reads at most 16 tokens of a text, not 40:"):
        limit = backbone.within_positions(40)
    assert limit == 16 and not largest_difference(backbone, limit)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert backbone.within_positions(16) == 16


def test_a_model_that_runs_a_layer_several_times_is_refused() -> None:
    from transformers import AutoModel, HrmTextConfig

    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8, "intermediate_size": 48}
    config = HrmTextConfig(**sizes, vocab_size=128, num_hidden_layers=2, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    with pytest.raises(UnmaskError, match=r"HrmTextModel counts 16 layers in its config, but its longest list of layers has 2"):
        Backbone(AutoModel.from_config(config), "causal")
    config.num_hidden_layers = 2  # as a config that counts each layer once
    with pytest.raises(AttentionError, match=r"HrmTextModel has 2 layers but calls them 12 times in a forward pass"):
        Backbone(AutoModel.from_config(config), "causal")


@pytest.mark.parametrize("name", OBEYING)
def test_switching_back_restores_the_causal_states_bit_for_bit(name: str) -> None:
    backbone, tokens = load(FAMILIES[name], "causal"), ids()
    before = states(backbone.model, tokens, pads=3)
    backbone.set_attention("bidirectional")
    between = states(backbone.model, tokens, pads=3)
    backbone.set_attention("causal")
    assert moves(before, between) and backbone.attention == "causal"
    assert torch.equal(before, states(backbone.model, tokens, pads=3))


def test_the_proof_costs_five_passes_of_two_short_texts_whatever_the_depth() -> None:
    model = FAMILIES["llama"].build()
    passes: list[tuple[int, ...]] = []
    model.register_forward_pre_hook(lambda _, __, given: passes.append(tuple(given["input_ids"].shape)), with_kwargs=True)
    prove_attention(model, model.layers, "causal")
    assert passes == [(2, 8)] * 2 + [(2, 11)] * 3


def test_a_layer_that_changes_its_input_in_place_is_proven_like_any_other() -> None:
    """The proof gives each layer the input that it had in an undisturbed pass."""
    plain, other = FAMILIES["llama"].build(), FAMILIES["llama"].build()

    def in_place(module: Any, args: tuple[Any, ...], output: Any) -> None:
        args[0].mul_(0)  # what the layer was given is spoilt after its work

    for layer in other.layers:
        layer.register_forward_hook(in_place)
    proofs = [prove_attention(model, model.layers, "causal") for model in (plain, other)]
    assert proofs[0].unpadded == proofs[1].unpadded and proofs[0].padded == proofs[1].padded


# ---- the proof against another method -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_the_proof_agrees_with_changing_the_last_token(name: str) -> None:
    model, tokens = FAMILIES[name].build(), ids()
    for attention in ATTENTIONS:
        set_attention(model, attention)
        for pads in (0, 5):
            looks_ahead = moves(states(model, tokens, pads)[:, :-1], states(model, another_last_token(tokens), pads)[:, :-1])
            assert looks_ahead == (attention == "bidirectional" and name not in REFUSED), f"{attention}, {pads} pads"


# ---- models that do not obey --------------------------------------------------------------------------------------------------


def sabotage(model: Any, layer: int, mask: Mask) -> None:
    """Let the attention of one layer (from 1) use a mask of its own, (queries, keys) -> bool, whatever the config says."""
    attention = model.layers[layer - 1].self_attn
    honest = attention.forward

    def forward(hidden_states: Tensor, *args: Any, **options: Any) -> Any:
        length, padded = hidden_states.shape[1], options.get("attention_mask") is not None
        own = mask(length, 8 if padded else length)
        if own.any():  # a mask that allows nothing stands for: as asked
            mask_added = torch.zeros_like(own, dtype=hidden_states.dtype).masked_fill(
                ~own, torch.finfo(hidden_states.dtype).min
            )
            options["attention_mask"] = mask_added.expand(len(hidden_states), 1, length, length)
        return honest(hidden_states, *args, **options)

    attention.forward = forward


def only_back(length: int, real: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril() & (torch.arange(length) < real)


def everything(length: int, real: int) -> Tensor:
    return (torch.arange(length) < real).expand(length, length)


def padding_too(length: int, _: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool)


def only_back_without_padding(length: int, real: int) -> Tensor:
    return only_back(length, real) & (length == real)


@pytest.mark.parametrize(
    ("attention", "mask", "message"),
    [
        ("bidirectional", only_back, "its attention in layers 2 stays causal"),
        ("bidirectional", only_back_without_padding, "attends differently with and without padding in layers 2,"),
        ("bidirectional", padding_too, r"lets padding or other texts change a text in layers 2, so"),
        ("causal", everything, "was set to causal, but layers 2 look ahead"),
    ],
)
@pytest.mark.parametrize(("name", "dtype"), [("llama", FP32), ("llama", BF16), ("qwen3", FP32), ("olmoe", BF16)])
def test_one_layer_that_disobeys_is_refused_by_its_number(
    name: str, dtype: torch.dtype, attention: Attention, mask: Mask, message: str
) -> None:
    model = FAMILIES[name].build(dtype=dtype)
    sabotage(model, 2, mask)
    with pytest.raises(AttentionError, match=message):
        Backbone(model, attention)


@pytest.mark.parametrize(("attention", "mask"), [("causal", only_back), ("bidirectional", everything)])
def test_a_mask_of_its_own_that_does_what_was_asked_is_accepted(attention: Attention, mask: Mask) -> None:
    model = FAMILIES["llama"].build()
    sabotage(model, 2, mask)
    assert Backbone(model, attention).proof.attention == attention


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
def test_an_encoder_whose_embeddings_see_their_neighbours_is_refused(dtype: torch.dtype) -> None:
    """MobileBERT gives its first layer each token with those beside it, so the last token of a text sees the padding."""
    with pytest.raises(AttentionError, match="MobileBertModel lets padding or other texts change a text in its embeddings, so"):
        Backbone(MOBILEBERT.build(dtype=dtype), "bidirectional")


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize(
    ("place", "where"), [("embed_tokens", "its embeddings"), ("norm", "layers 3"), ("layers.1", "layers 2")]
)
def test_what_lets_the_last_token_see_padding_is_refused_wherever_it_is(place: str, where: str, attention: Attention) -> None:
    model = FAMILIES["llama"].build()
    model.get_submodule(place).register_forward_hook(lambda _, __, states: states + 0.1 * states.roll(-1, dims=1))
    with pytest.raises(AttentionError, match=f"change a text in {where}, so"):
        Backbone(model, attention)


def test_a_mixed_llama4_is_refused_by_its_chunked_layers() -> None:
    with pytest.raises(AttentionError, match=r"in layers 1, 3 stays causal"):
        Backbone(MIXED_LLAMA4.build(), "bidirectional")
    assert Backbone(MIXED_LLAMA4.build(), "causal").proof.causal_layers == (1, 2, 3)


# ---- models as training leaves them -------------------------------------------------------------------------------------------


def with_massive_activation(model: Any) -> Any:
    """Trained models carry one dimension that is thousands of times larger than the others."""

    def enlarge(_: Any, __: Any, embedded: Tensor) -> Tensor:
        return embedded + 1e4 * (torch.arange(embedded.shape[-1]) == 5).to(embedded.dtype)

    model.get_input_embeddings().register_forward_hook(enlarge)
    return model


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "bloom", "olmoe", "mixtral-sliding", "gpt-oss"])
def test_a_massive_activation_does_not_hide_what_attention_does(name: str, dtype: torch.dtype) -> None:
    model = with_massive_activation(FAMILIES[name].build(dtype=dtype))
    assert Backbone(model, "causal").proof.causal_layers == (1, 2, 3)
    assert Backbone(model, "bidirectional").proof.causal_layers == ()


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
def test_a_massive_activation_does_not_excuse_a_layer_that_disobeys(dtype: torch.dtype) -> None:
    model = with_massive_activation(FAMILIES["llama"].build(dtype=dtype))
    sabotage(model, 3, only_back)
    set_attention(model, "bidirectional")
    with pytest.raises(AttentionError, match="in layers 3 stays causal"):
        prove_attention(model, model.layers, "bidirectional")
