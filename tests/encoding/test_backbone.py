"""Backbone: what is read is what the model computes, whatever the padding, and nothing more is computed or kept."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Sequence
from functools import cache
from inspect import signature
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.families import EACH_KIND, FAMILIES, Family
from tests.proofs import ALL
from unmask.designs.design import Attention
from unmask.encoding.backbone import Backbone, HiddenRead, Read, RoutingRead, TokenBatch
from unmask.encoding.pooling import POOLINGS
from unmask.models.attention import hidden_of
from unmask.models.routers import ROUTINGS

DEPTH, LENGTHS = 3, (5, 12, 20, 1)
LAST = POOLINGS["last"]
MOE = [name for name, family in FAMILIES.items() if family.experts]
TOPK = [name for name in MOE if name not in ("dbrx", "llama4")]  # the experts of these are not given the weights
FIRST_STATE = {"mamba": -1}  # place of layer 0 in `hidden_states`: Mamba leaves the embeddings out
USABLE: list[tuple[str, Attention]] = [(name, "causal") for name in FAMILIES]
USABLE += [(name, "bidirectional") for name, family in FAMILIES.items() if family.bidirectional != "no"]
every_usable = pytest.mark.parametrize(("name", "attention"), USABLE)
ENCODERS = [
    Family(
        kind,
        kind,
        {"pad_token_id": 1, "bos_token_id": 0, "max_position_embeddings": 34},
        base={"vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4},
    )
    for kind in ("xlm-roberta", "mpnet", "ibert")
]
"""Encoders that count positions themselves, from the one after their padding's."""
TOWER = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}


def load(name: str, attention: Attention = "causal") -> Backbone:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Backbone(FAMILIES[name].build(), attention)


loaded = cache(load)  # for tests that only read


def texts(lengths: Sequence[int] = LENGTHS) -> list[Tensor]:
    return [torch.randint(3, 512, (length,)) for length in lengths]


def padded(tokens: Sequence[Tensor], side: str = "right", longest: int = max(LENGTHS) + 3, pad: int = 7) -> TokenBatch:
    """A batch whose padding holds a token that texts hold too."""
    batch = TokenBatch(
        torch.full((len(tokens), longest), pad),
        torch.zeros(len(tokens), longest, dtype=torch.bool),
        torch.zeros(len(tokens), longest, dtype=torch.bool),
    )
    for row, text in enumerate(tokens):
        where = slice(0, len(text)) if side == "right" else slice(longest - len(text), longest)
        batch.ids[row, where] = text
        batch.attention_mask[row, where] = batch.pooling_mask[row, where] = True
    return batch


def alone(text: Tensor) -> TokenBatch:
    return padded([text], longest=len(text))


def hidden_reads() -> list[HiddenRead]:
    return [HiddenRead(layer, pool) for layer in range(1, DEPTH + 1) for pool in POOLINGS.values()]


def one(backbone: Backbone, batch: TokenBatch, read: Read) -> Tensor:
    return backbone.read(batch, [read])[read]


def at_last(states: Tensor, batch: TokenBatch) -> Tensor:
    """States (text, token, dim) or rows (text x token, dim) at the last real token of each text."""
    return states.reshape(*batch.ids.shape, -1)[torch.arange(len(batch.ids)), batch.attention_mask.sum(dim=1) - 1]


def run(backbone: Backbone, batch: TokenBatch, **options: Any) -> Any:
    """The model as transformers calls it."""
    inputs: dict[str, Any] = {"input_ids": batch.ids, "attention_mask": batch.attention_mask.long(), "use_cache": False}
    if "position_ids" in signature(backbone.model.forward).parameters:
        inputs["position_ids"] = (batch.attention_mask.cumsum(dim=1) - 1).clamp_min(0)
    with torch.inference_mode():
        return backbone.model(**inputs, **options)


# ---- padding ------------------------------------------------------------------------------------------------------------------


def require_same_alone_and_padded(backbone: Backbone, pads: tuple[int, int] = (7, 400)) -> None:
    tokens = texts()
    reads: list[Read] = [*hidden_reads(), *(RoutingRead("softmax", POOLINGS[pool]) for pool in POOLINGS if backbone.routers)]
    apart = [backbone.read(alone(text), reads) for text in tokens]
    for side, pad in zip(("right", "left"), pads, strict=True):
        together = backbone.read(padded(tokens, side, pad=pad), reads)
        for read in reads:
            expected = torch.cat([values[read] for values in apart])
            torch.testing.assert_close(together[read], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.sample(34)
@every_usable
def test_states_do_not_depend_on_padding(name: str, attention: Attention) -> None:
    require_same_alone_and_padded(loaded(name, attention))


@pytest.mark.parametrize("family", ENCODERS, ids=lambda family: family.name)
def test_encoders_that_count_positions_from_their_padding(family: Family) -> None:
    """An encoder of RoBERTa's kind uses 32 of 34 positions: the first two are those of padding and below."""
    backbone = Backbone(family.build(), "bidirectional")
    require_same_alone_and_padded(backbone, pads=(1, 1))
    assert backbone.within_positions(20) == 20 and backbone.within_positions(1000) == 32
    assert one(backbone, alone(texts([32])[0]), HiddenRead(DEPTH, LAST)).isfinite().all()
    with pytest.raises((IndexError, RuntimeError)):
        one(backbone, alone(texts([33])[0]), HiddenRead(DEPTH, LAST))


# ---- layers -------------------------------------------------------------------------------------------------------------------


@every_usable
def test_every_layer_is_what_transformers_reports(name: str, attention: Attention) -> None:
    backbone, batch = loaded(name, attention), padded(texts())
    theirs = run(backbone, batch, output_hidden_states=True)
    values = backbone.read(batch, [HiddenRead(layer, LAST) for layer in range(1, DEPTH + 1)])
    for layer in range(1, DEPTH):
        expected = theirs.hidden_states[layer + FIRST_STATE.get(name, 0)]
        assert torch.equal(values[HiddenRead(layer, LAST)], at_last(expected, batch))
    assert torch.equal(values[HiddenRead(DEPTH, LAST)], at_last(theirs.last_hidden_state, batch))


def test_an_image_tower_as_deep_as_the_text_model_is_not_read() -> None:
    vision: dict[str, Any] = {"model_type": "siglip_vision_model", "num_hidden_layers": DEPTH, **TOWER}
    configs: dict[str, Any] = {"text_config": FAMILIES["gemma3"].config, "vision_config": vision, "mm_tokens_per_image": 4}
    model, batch, reads = Family("gemma3-images", "gemma3", configs, base={}).build(), padded(texts()), hidden_reads()
    together, text = Backbone(model, "causal"), Backbone(model.language_model, "causal")
    assert together.layers is text.layers
    values, expected = together.read(batch, reads), text.read(batch, reads)
    for read in reads:
        torch.testing.assert_close(values[read], expected[read], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("deepest", "routing", "expected"), [(1, False, 1), (2, False, 2), (3, False, 3), (1, True, 3)])
def test_layers_above_the_deepest_that_is_read_do_not_run(deepest: int, routing: bool, expected: int) -> None:
    backbone, ran = load("olmoe"), []
    for layer in backbone.layers:
        layer.register_forward_pre_hook(lambda *_: ran.append(1))
    backbone.read(padded(texts()), [HiddenRead(deepest, LAST), *([RoutingRead("softmax", LAST)] if routing else [])])
    assert len(ran) == expected


# ---- routing ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "attention"), [usable for usable in USABLE if usable[0] in MOE])
def test_routing_weights_are_the_softmax_of_what_transformers_reports(name: str, attention: Attention) -> None:
    backbone, batch = loaded(name, attention), padded(texts())
    theirs = run(backbone, batch, output_router_logits=True).router_logits
    expected = [at_last(scores, batch).float() for scores in theirs]
    torch.testing.assert_close(one(backbone, batch, RoutingRead("logits", LAST)), torch.cat(expected, dim=1))
    softmax = torch.cat([scores.softmax(dim=-1) for scores in expected], dim=1)
    torch.testing.assert_close(one(backbone, batch, RoutingRead("softmax", LAST)), softmax, rtol=0, atol=1e-6)
    sigmoid = torch.cat([scores.sigmoid() for scores in expected], dim=1)
    torch.testing.assert_close(one(backbone, batch, RoutingRead("sigmoid", LAST)), sigmoid, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", TOPK)
def test_topk_is_what_the_model_applies_to_exactly_k_experts(name: str) -> None:
    backbone, batch, family = load(name), padded(texts()), FAMILIES[name]
    applied: list[Tensor] = []

    def note(_: Any, args: tuple[Tensor, ...]) -> None:
        _, indices, weights = args
        applied.append(torch.zeros(len(indices), family.experts).scatter(1, indices, weights))

    for module in backbone.model.modules():
        if type(module).__name__.endswith("Experts"):
            module.register_forward_pre_hook(note)
    weights = one(backbone, batch, RoutingRead("topk", LAST))
    chosen = (weights != 0).unflatten(1, (-1, family.experts)).sum(dim=-1)
    assert chosen.tolist() == [[2] * family.moe_layers] * len(LENGTHS)
    torch.testing.assert_close(weights, torch.cat([at_last(layer, batch) for layer in applied], dim=1))


# ---- cost ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "olmoe"])
def test_the_states_of_a_layer_are_freed_while_later_ones_run(name: str) -> None:
    backbone, states = load(name), list[weakref.ref[Tensor]]()

    def note(_: Any, __: Any, output: Any) -> None:
        assert sum(state() is not None for state in states) <= 1, "only the input of this layer"
        states.append(weakref.ref(hidden_of(output)))

    for layer in backbone.layers:
        layer.register_forward_hook(note)
    reads: list[Read] = [*hidden_reads(), *([RoutingRead("softmax", LAST)] if backbone.routers else [])]
    with torch.inference_mode():
        values = backbone.read(padded(texts()), reads)
    assert len(states) == DEPTH and all(value.is_inference() for value in values.values())


def test_low_precision_states_are_pooled_in_fp32() -> None:
    backbone = Backbone(FAMILIES["olmoe"].build(dtype=torch.bfloat16), "causal")
    values = backbone.read(padded(texts()), [*hidden_reads(), *(RoutingRead(kind, LAST) for kind in ROUTINGS)])
    assert {value.dtype for value in values.values()} == {torch.float32}


@pytest.mark.parametrize("name", FAMILIES if ALL else EACH_KIND)
def test_no_key_value_cache_is_built(name: str) -> None:
    backbone, caches = load(name), []
    hook = backbone.model.register_forward_hook(
        lambda _, __, output: caches.append([output.get("past_key_values"), output.get("cache_params")])
    )
    for batch in (padded(texts()), alone(texts()[1])):
        one(backbone, batch, HiddenRead(DEPTH, LAST))
    hook.remove()
    assert caches == [[None, None]] * 2
