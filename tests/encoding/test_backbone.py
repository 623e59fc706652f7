"""Backbone: what is read is what the model computes, whatever the padding, and nothing more is computed or kept."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from inspect import signature
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.families import EACH_KIND, FAMILIES, Family
from tests.proofs import ALL
from unmask.designs.design import Attention, Design
from unmask.embedder import Embedder
from unmask.encoding.backbone import Backbone, HiddenRead, Read, RoutingRead, TokenBatch
from unmask.encoding.pooling import POOLINGS
from unmask.errors import UnmaskError
from unmask.models.routers import ROUTINGS

DEPTH, LENGTHS = 3, (5, 12, 20, 1)
LAST = POOLINGS["last"]
MOE = [name for name, family in FAMILIES.items() if family.experts]
TOPK = [name for name in MOE if name != "dbrx"]
CHOSEN = {"llama4": 1}  # experts that a token chooses; 2 elsewhere
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
MPT = Family("mpt", "mpt", base={"vocab_size": 512, "d_model": 64, "n_heads": 4, "n_layers": 3, "max_seq_len": 64})
TOWER = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}


def load(name: str, attention: Attention = "causal") -> Backbone:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Backbone(FAMILIES[name].build(), attention)


loaded = cache(load)  # for tests that only read


def texts(lengths: Sequence[int] = LENGTHS) -> list[Tensor]:
    return [torch.randint(3, 512, (length,)) for length in lengths]


def padded(tokens: Sequence[Tensor], side: str = "right", longest: int = max(LENGTHS) + 3) -> TokenBatch:
    """A batch whose padding holds a token that texts hold too."""
    batch = TokenBatch(
        torch.full((len(tokens), longest), 7),
        torch.zeros(len(tokens), longest, dtype=torch.bool),
        torch.zeros(len(tokens), longest, dtype=torch.bool),
    )
    for row, text in enumerate(tokens):
        where = slice(0, len(text)) if side == "right" else slice(longest - len(text), longest)
        batch.ids[row, where] = text
        batch.real[row, where] = batch.embed[row, where] = True
    return batch


def alone(text: Tensor) -> TokenBatch:
    return padded([text], longest=len(text))


def hidden_reads() -> list[HiddenRead]:
    return [HiddenRead(layer, pool) for layer in range(1, DEPTH + 1) for pool in POOLINGS.values()]


def one(backbone: Backbone, batch: TokenBatch, read: Read) -> Tensor:
    return backbone.read(batch, [read])[read]


def at_last(states: Tensor, batch: TokenBatch) -> Tensor:
    """States (text, token, dim) or rows (text x token, dim) at the last real token of each text."""
    return states.reshape(*batch.ids.shape, -1)[torch.arange(len(batch.ids)), batch.real.sum(dim=1) - 1]


def run(backbone: Backbone, batch: TokenBatch, **options: Any) -> Any:
    """The model as transformers calls it."""
    inputs: dict[str, Any] = {"input_ids": batch.ids, "attention_mask": batch.real.long(), "use_cache": False}
    if "position_ids" in signature(backbone.model.forward).parameters:
        inputs["position_ids"] = (batch.real.cumsum(dim=1) - 1).clamp_min(0)
    with torch.inference_mode():
        return backbone.model(**inputs, **options)


# ---- padding ------------------------------------------------------------------------------------------------------------------


@pytest.mark.sample(34)
@every_usable
def test_states_do_not_depend_on_padding(name: str, attention: Attention) -> None:
    backbone, tokens = loaded(name, attention), texts()
    reads: list[Read] = [*hidden_reads(), *(RoutingRead("softmax", POOLINGS[pool]) for pool in POOLINGS if backbone.routers)]
    right, left = (backbone.read(padded(tokens, side), reads) for side in ("right", "left"))
    apart = [backbone.read(alone(text), reads) for text in tokens]
    for read in reads:
        expected = torch.cat([values[read] for values in apart])
        torch.testing.assert_close(right[read], expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(left[read], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "gpt2", "mamba"])
def test_what_the_padding_holds_is_not_read(name: str) -> None:
    backbone, batch = loaded(name), padded(texts())
    other = TokenBatch(torch.where(batch.real, batch.ids, 400), batch.real, batch.embed)
    before, after = (backbone.read(padding, hidden_reads()) for padding in (batch, other))
    assert all(torch.equal(before[read], after[read]) for read in before)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("family", ENCODERS, ids=lambda family: family.name)
def test_an_encoder_that_counts_positions_itself_reads_a_text_alone_as_in_a_batch(family: Family, side: str) -> None:
    backbone, tokens, reads = Backbone(family.build(), "bidirectional"), texts(), hidden_reads()
    batch = padded(tokens, side)
    together = backbone.read(replace(batch, ids=torch.where(batch.real, batch.ids, 1)), reads)
    apart = [backbone.read(alone(text), reads) for text in tokens]
    for read in reads:
        torch.testing.assert_close(together[read], torch.cat([values[read] for values in apart]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", ENCODERS, ids=lambda family: family.name)
def test_a_text_is_never_longer_than_the_positions_of_a_model(family: Family) -> None:
    """An encoder of RoBERTa's kind uses 32 of 34 positions: the first two are those of padding and below."""
    backbone = Backbone(family.build(), "bidirectional")
    assert backbone.within_positions(20) == 20 and backbone.within_positions(1000) == 32
    assert one(backbone, alone(torch.randint(3, 512, (32,))), HiddenRead(DEPTH, LAST)).isfinite().all()
    with pytest.raises((IndexError, RuntimeError)):
        one(backbone, alone(torch.randint(3, 512, (33,))), HiddenRead(DEPTH, LAST))


def test_the_number_of_positions_is_found_under_its_other_name() -> None:
    assert Backbone(MPT.build(), "causal").within_positions(1000) == 64
    assert loaded("llama").within_positions(1000) == loaded("gpt2").within_positions(1000) == 512


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


def test_a_multimodal_llama4_that_auto_model_loads_with_its_head_is_read_without_it(tokenizer: Any) -> None:
    tower = {**TOWER, "num_hidden_layers": 1, "vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32}
    configs = {"text_config": FAMILIES["llama4"].config, "vision_config": tower}
    model = Family("llama4-images", "llama4", configs, base={}).build()
    assert model.get_output_embeddings() is not None
    models = (model, model.language_model.model)
    read, text = (Embedder.from_model(given, tokenizer, "causal/plain/last") for given in models)
    assert read.backbone.model is text.backbone.model
    with pytest.raises(UnmaskError, match="has a language-model head"):
        Embedder.from_model(FAMILIES["llama"].build_language_model(), tokenizer, "causal/plain/last")


@every_usable
def test_leaving_early_gives_the_same_bits(name: str, attention: Attention) -> None:
    backbone, batch = loaded(name, attention), padded(texts())
    to_the_end = backbone.read(batch, hidden_reads())
    for read in (HiddenRead(layer, POOLINGS["mean"]) for layer in range(1, DEPTH + 1)):
        assert torch.equal(one(backbone, batch, read), to_the_end[read])


@pytest.mark.parametrize(("deepest", "routing", "expected"), [(1, False, 1), (2, False, 2), (3, False, 3), (1, True, 3)])
def test_layers_above_the_deepest_that_is_read_do_not_run(deepest: int, routing: bool, expected: int) -> None:
    backbone, ran = load("olmoe"), []
    for layer in backbone.layers:
        layer.register_forward_pre_hook(lambda *_: ran.append(1))
    backbone.read(padded(texts()), [HiddenRead(deepest, LAST), *([RoutingRead("softmax", LAST)] if routing else [])])
    assert len(ran) == expected


def test_a_read_leaves_no_hook_behind() -> None:
    backbone = load("olmoe")
    reads: list[Read] = [HiddenRead(1, LAST), RoutingRead("softmax", LAST)]
    backbone.read(padded(texts()), reads[:1])
    backbone.read(padded(texts()), reads)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in backbone.model.modules())


def test_a_layer_that_the_model_lacks_is_refused(pico: Callable[..., Embedder]) -> None:
    assert pico("causal/plain/last@3").backbone.depth == DEPTH
    with pytest.raises(UnmaskError, match=r"'causal/plain/last@4' reads layer 4, but this model has 3 layers"):
        pico("causal/plain/last@4")


# ---- several designs from one pass --------------------------------------------------------------------------------------------


def test_designs_read_together_are_the_designs_read_alone() -> None:
    names = (
        "plain/last",
        "plain/mean@1",
        "plain/max@all",
        "plain/last@mean",
        "plain/last/sum:0.5",
        "plain/mean/routing~topk",
        "plain/first@3",
    )
    designs = [Design.parse(f"causal/{name}") for name in names]
    backbone, batch = loaded("olmoe"), padded(texts())
    together = backbone.raw(batch, designs)
    for design in designs:
        apart = backbone.raw(batch, [design])[design]
        for part in ("hidden", "routing"):
            ours, expected = getattr(together[design], part), getattr(apart, part)
            assert (ours is expected is None) or torch.equal(ours, expected)


def test_all_layers_weigh_the_same_in_the_cosine() -> None:
    backbone, batch = loaded("llama"), padded(texts())
    designs = [Design.parse(f"causal/plain/mean@{layer}") for layer in (1, 2, 3, "all")]
    *layers, together = [cosines(raw.hidden) for raw in backbone.raw(batch, designs).values()]
    torch.testing.assert_close(together, torch.stack(layers).mean(dim=0))


def test_the_mean_over_layers_is_the_mean_of_what_each_layer_gives() -> None:
    backbone, batch = loaded("llama"), padded(texts())
    designs = [Design.parse(f"causal/plain/{reading}") for reading in ("mean@1", "mean@2", "mean", "mean@mean")]
    first, second, third, mean = (raw.hidden for raw in backbone.raw(batch, designs).values())
    assert first is not None and second is not None and third is not None
    torch.testing.assert_close(mean, (first + second + third) / 3)


def cosines(vectors: Tensor | None) -> Tensor:
    assert vectors is not None
    unit = torch.nn.functional.normalize(vectors, dim=1)
    return unit @ unit.T


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


@pytest.mark.parametrize("kind", [kind for kind in ROUTINGS if kind != "topk"])
@pytest.mark.parametrize("name", MOE)
def test_only_routed_experts_of_moe_layers_have_a_column(name: str, kind: str) -> None:
    family, backbone = FAMILIES[name], loaded(name)
    weights = one(backbone, padded(texts()), RoutingRead(kind, LAST))
    assert len(backbone.routers) == family.moe_layers
    assert weights.shape == (len(LENGTHS), family.moe_layers * family.experts)


@pytest.mark.parametrize("name", MOE)
def test_softmax_weights_of_each_layer_sum_to_one(name: str) -> None:
    weights = one(loaded(name), padded(texts()), RoutingRead("softmax", LAST)).unflatten(1, (-1, FAMILIES[name].experts))
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:2]))
    assert bool((weights > 0).all())


@pytest.mark.parametrize("name", TOPK)
def test_topk_is_what_the_model_applies_to_exactly_k_experts(name: str) -> None:
    backbone, batch, family = load(name), padded(texts()), FAMILIES[name]
    with watched_experts(backbone) as applied:
        weights = one(backbone, batch, RoutingRead("topk", LAST))
    chosen = (weights != 0).unflatten(1, (-1, family.experts)).sum(dim=-1)
    assert chosen.tolist() == [[CHOSEN.get(name, 2)] * family.moe_layers] * len(LENGTHS)
    torch.testing.assert_close(weights, torch.cat([at_last(layer, batch) for layer in applied], dim=1))


@contextmanager
def watched_experts(backbone: Backbone) -> Iterator[list[Tensor]]:
    """The weights with which each layer's experts are called, (text x token, expert)."""
    applied: list[Tensor] = []
    modules = [module for module in backbone.model.modules() if type(module).__name__.endswith("Experts")]
    routed = [router.module for router in backbone.routers]
    seen: list[Tensor] = []
    hooks = [module.register_forward_pre_hook(lambda _, args: seen.append(args[0])) for module in routed]
    hooks += [module.register_forward_pre_hook(lambda _, args: applied.append(_weights(args, seen[-1]))) for module in modules]
    yield applied
    for hook in hooks:
        hook.remove()


def _weights(args: tuple[Tensor, ...], states: Tensor, experts: int = 8) -> Tensor:
    if len(args) > 1:
        _, indices, weights = args
        return torch.zeros(len(indices), experts).scatter(1, indices, weights)
    # Llama 4 scales the states by the weights before its experts see them
    states = states.reshape(-1, states.shape[-1])
    scaled = args[0].reshape(experts, *states.shape)
    return ((scaled * states).sum(dim=-1) / states.square().sum(dim=-1)).T


def test_topk_is_refused_where_the_router_does_not_say_it() -> None:
    with pytest.raises(UnmaskError, match="DbrxRouter does not expose the weights of its chosen experts; use softmax"):
        one(loaded("dbrx"), padded(texts()), RoutingRead("topk", LAST))


def test_probabilities_are_not_put_through_a_second_softmax() -> None:
    backbone, batch = load("mixtral"), padded(texts())
    expected = one(backbone, batch, RoutingRead("softmax", LAST))
    for router in backbone.routers:  # Gemma 4 returns probabilities
        router.module.register_forward_hook(lambda _, __, output: (output[0].softmax(dim=-1), *output[1:]))
    torch.testing.assert_close(one(Backbone(backbone.model, "causal"), batch, RoutingRead("softmax", LAST)), expected)


@pytest.mark.parametrize("features", ["routing", "concat", "sum"])
@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in MOE])
def test_routing_is_refused_on_a_dense_model(name: str, features: str) -> None:
    with pytest.raises(UnmaskError, match=r"has no router: it is dense\. Features 'hidden' work"):
        loaded(name).reads(Design.parse(f"causal/plain/last/{features}"))


# ---- cost ---------------------------------------------------------------------------------------------------------------------


class Live(TorchDispatchMode):
    """Bytes of tensors that are alive while it is on, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, Tensor):
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._known:
            self._known.add(key)
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._forget, key, storage.nbytes())

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def deep(name: str, layers: int = 12) -> Backbone:
    family = FAMILIES[name]
    changed = Family(name, family.model_type, {**family.changes, "num_hidden_layers": layers}, experts=family.experts)
    return Backbone(changed.build(), "causal")


def peak(backbone: Backbone, batch: TokenBatch, reads: Sequence[Read]) -> int:
    with Live() as live, torch.inference_mode():
        backbone.read(batch, reads)
    return int(live.peak)


@pytest.mark.parametrize("name", ["llama", "olmoe"])
def test_reading_every_layer_keeps_pooled_vectors_not_states(name: str) -> None:
    backbone, batch = deep(name), padded(texts((64,) * 8), longest=64)
    one_state = batch.ids.numel() * 64 * 4
    every: list[Read] = [HiddenRead(layer, POOLINGS["mean"]) for layer in range(1, 13)]
    if backbone.routers:
        every.append(RoutingRead("softmax", POOLINGS["mean"]))
    last: list[Read] = [HiddenRead(12, POOLINGS["mean"])]
    peak(backbone, batch, every)  # caches of the first call
    # keeping the states would cost twelve of them, pooling one at a time costs its own copy
    assert peak(backbone, batch, every) - peak(backbone, batch, last) < 2 * one_state


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


def test_gradients_reach_every_layer_that_is_read_and_no_other() -> None:
    backbone = load("llama")
    for layer in range(1, DEPTH + 1):
        backbone.model.zero_grad()
        one(backbone, padded(texts()), HiddenRead(layer, LAST)).sum().backward()
        reached = [any(weight.grad is not None for weight in module.parameters()) for module in backbone.layers]
        assert reached == [place < layer for place in range(DEPTH)]


def test_values_are_fp32_and_recorded_for_gradients_only_where_that_is_enabled() -> None:
    reads: list[Read] = [*hidden_reads(), RoutingRead("softmax", LAST)]
    with torch.inference_mode():
        values = loaded("olmoe").read(padded(texts()), reads)
    assert all(value.is_inference() and value.dtype == torch.float32 for value in values.values())


def test_low_precision_states_are_pooled_in_fp32() -> None:
    backbone = Backbone(FAMILIES["olmoe"].build(dtype=torch.bfloat16), "causal")
    values = backbone.read(padded(texts()), [*hidden_reads(), *(RoutingRead(kind, LAST) for kind in ROUTINGS)])
    assert {value.dtype for value in values.values()} == {torch.float32}
