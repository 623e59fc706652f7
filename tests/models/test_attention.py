"""Attention: every family is proven to attend as asked, and a model that does not is refused by name and layer."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.families import FAMILIES, Family
from tests.model_types import LONGEST, build, largest_difference
from unmask.designs.design import ATTENTIONS, Attention
from unmask.encoding.backbone import Backbone
from unmask.errors import AttentionError
from unmask.models.attention import prove_attention
from unmask.models.identity import attention_implementation

FP32, BF16 = torch.float32, torch.bfloat16
BART_PART = {"layers": 3, "attention_heads": 4, "ffn_dim": 96}
BART = Family(
    "bart",
    "bart",
    {f"{part}_{name}": size for part in ("encoder", "decoder") for name, size in BART_PART.items()},
    base={"vocab_size": 512, "d_model": 64, "max_position_embeddings": 64},
)
REFUSED = [name for name, family in FAMILIES.items() if family.bidirectional == "no"]
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


@pytest.mark.parametrize(("change", "dtype"), [(0.012, BF16), (5e-7, torch.float64)])
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


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, FP32) for name in FAMILIES), *((name, BF16) for name in ("llama", "olmoe", "gpt-oss", "llama4"))],
    ids=lambda value: str(value).removeprefix("torch."),
)
def test_every_family_is_proven_or_refused(name: str, dtype: torch.dtype) -> None:
    family = FAMILIES[name]
    backbone = load(family, "causal", dtype)
    proof = backbone.proof
    assert proof.causal_layers == (1, 2, 3) and not proof.hybrid
    assert proof.summary == "causal, proven in 3 layers with and without padding"
    if family.bidirectional == "no":
        with pytest.raises(AttentionError, match=r"stays causal in every layer.*Use a causal design"):
            load(family, "bidirectional", dtype)
    if family.bidirectional == "yes":
        tokens = ids()
        before = states(backbone.model, tokens, pads=3)
        backbone.set_attention("bidirectional")
        proof = backbone.proof
        assert proof.causal_layers == () and not proof.hybrid
        assert min(*proof.unpadded, *proof.padded) > 0.1 and max(proof.leak) < 1e-4
        assert moves(before, states(backbone.model, tokens, pads=3))
        for pads in (0, 5):  # the proof against another method
            other = states(backbone.model, another_last_token(tokens), pads)[:, :-1]
            assert moves(states(backbone.model, tokens, pads)[:, :-1], other)
        backbone.set_attention("causal")
        assert torch.equal(before, states(backbone.model, tokens, pads=3))


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_family_whose_texts_change_each_other_is_refused(attention: Attention) -> None:
    """Doge's experts are chosen by router logits that are mixed over all tokens of a batch."""
    family = Family("doge-moe", "doge", {"is_moe": True, "num_experts": 16, "num_experts_per_tok": 4})
    with pytest.raises(AttentionError, match="DogeModel lets padding or other texts change a text in layers 1-3"):
        load(family, attention)


def test_an_encoder_decoder_is_refused() -> None:
    """BART runs without tokens for its decoder, and each layer there looks back only. But all of them see all states of the encoder."""
    with pytest.raises(AttentionError, match=r"Model is an encoder-decoder: .*Use a decoder or an encoder"):
        load(BART, "bidirectional")


@pytest.mark.parametrize("error", [ValueError("give an image\nor two"), KeyError("give an image")])
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
@pytest.mark.parametrize(("name", "dtype"), [("llama", FP32), ("olmoe", BF16)])
def test_one_layer_that_disobeys_is_refused_by_its_number(
    name: str, dtype: torch.dtype, attention: Attention, mask: Mask, message: str
) -> None:
    model = FAMILIES[name].build(dtype=dtype)
    sabotage(model, 2, mask)
    with pytest.raises(AttentionError, match=message):
        Backbone(model, attention)


@pytest.mark.parametrize(
    ("place", "where"), [("embed_tokens", "its embeddings"), ("norm", "layers 3"), ("layers.1", "layers 2")]
)
def test_what_lets_the_last_token_see_padding_is_refused_wherever_it_is(place: str, where: str) -> None:
    model = FAMILIES["llama"].build()
    model.get_submodule(place).register_forward_hook(lambda _, __, states: states + 0.1 * states.roll(-1, dims=1))
    with pytest.raises(AttentionError, match=f"change a text in {where}, so"):
        Backbone(model, "bidirectional")


# ---- models as training leaves them -------------------------------------------------------------------------------------------


def with_massive_activation(model: Any) -> Any:
    """Trained models carry one dimension that is thousands of times larger than the others."""

    def enlarge(_: Any, __: Any, embedded: Tensor) -> Tensor:
        return embedded + 1e4 * (torch.arange(embedded.shape[-1]) == 5).to(embedded.dtype)

    model.get_input_embeddings().register_forward_hook(enlarge)
    return model


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
@pytest.mark.parametrize("name", ["llama", "gemma3", "olmoe"])
def test_a_massive_activation_does_not_hide_what_attention_does(name: str, dtype: torch.dtype) -> None:
    model = with_massive_activation(FAMILIES[name].build(dtype=dtype))
    assert Backbone(model, "causal").proof.causal_layers == (1, 2, 3)
    assert Backbone(model, "bidirectional").proof.causal_layers == ()
