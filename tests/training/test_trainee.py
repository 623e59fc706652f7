"""What trains in which stage: adapters, all weights or the head, and never what a stage leaves alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.moe.mixture.models import saved_experts
from tests.training.running import recipe, run
from tests.training.test_stages import mixture, next_token
from unmask.designs.design import Design
from unmask.embedder import Embedder
from unmask.encoding.heads import LayerAttention
from unmask.errors import UnmaskError
from unmask.models.loading import Source, load_base_language_model
from unmask.moe.mixture.gating import Routing
from unmask.moe.mixture.mixture_folder import Mixture
from unmask.starter import reference_texts
from unmask.training.recipe import Recipe
from unmask.training.trainee import Trainee, predicts_tokens

HEADED = "bidirectional/plain/cross-attention"
HEAD = {"head": {"latents": 2, "heads": 2}}


def loaded(made: Recipe) -> Trainee:
    return Trainee.load(made, Design.parse(made.designs[0]), 0)


def training(trainee: Trainee) -> dict[str, nn.Parameter]:
    """What has requires_grad, in the language model or the decoder, and in the head."""
    found = dict((trainee.language_model or trainee.backbone.model).named_parameters())
    if trainee.backbone.head is not None:
        found |= {f"head.{name}": weight for name, weight in trainee.backbone.head.named_parameters()}
    return {name: weight for name, weight in found.items() if weight.requires_grad}


@pytest.mark.parametrize("stage", ["mntp", "simcse", "contrastive"])
def test_under_lora_only_adapters_train(model: Path, stage: str) -> None:
    trainee = loaded(recipe(model, "mntp", "simcse", "contrastive"))
    covered = trainee.begin(stage, 0)
    found = training(trainee)
    assert found and all("lora_" in name for name in found)
    assert not any(part in name for name in found for part in ("lm_head", "embed"))
    assert sum(one.trainable for one in covered) == sum(weight.numel() for weight in found.values())
    assert all(one.adapted == one.present for one in covered)


@pytest.mark.parametrize("centred", [False, True])
def test_a_layer_matrix_starts_small_or_at_minus_the_means_of_the_layers(model: Path, centred: bool) -> None:
    designs = ["bidirectional/plain/layer-attention"]
    trainee = loaded(recipe(model, "contrastive", designs=designs, head={"latents": 2, "heads": 2, "centred": centred}))
    embedder = trainee.embedder
    head = embedder.backbone.head
    assert isinstance(head, LayerAttention) and head.layers is not None
    means = replace(embedder.encoder, batch_tokens=512).layer_states(reference_texts(), embedder.design.prompt).mean(dim=0)
    assert torch.allclose(head.layers, -means, atol=1e-4) == centred
    assert centred or 0.01 < float(head.layers.detach().std()) < 0.03


def test_full_training_frees_the_decoder_and_not_a_head_of_its_own(model: Path) -> None:
    trainee = loaded(recipe(model, "mntp", "contrastive", train="full", dtype="bfloat16"))
    assert trainee.backbone.dtype == torch.float32, "small steps are lost in bf16"
    trainee.begin("mntp", 0)
    found = training(trainee)
    assert len(found) == len(list(trainee.backbone.model.parameters())) and not any("lora" in name for name in found)
    assert trainee.backbone.autocast == torch.bfloat16
    untied: Any = trainee.language_model
    untied.lm_head.weight = nn.Parameter(untied.lm_head.weight.clone())
    trainee.begin("mntp", 0)
    assert not untied.lm_head.weight.requires_grad


def test_weights_that_a_result_would_not_hold_do_not_train(model: Path, tmp_path: Path) -> None:
    run(recipe(model, "contrastive", merge=False, contrastive={"steps": 1}), tmp_path / "kept")
    adapter, merged, experts = tmp_path / "kept" / "model", tmp_path / "merged", tmp_path / "experts"
    Embedder.from_pretrained(adapter, merge=True).save_pretrained(merged)
    base, _ = load_base_language_model(Source(str(model), dtype="float32"))
    Mixture(base, saved_experts(tmp_path, base), source=Source(str(model))).save_pretrained(experts)
    for train in ("lora", "full", ["q_proj"]):
        with pytest.raises(UnmaskError, match="is an adapter on its base model"):
            loaded(recipe(adapter, "contrastive", train=train))
        with pytest.raises(UnmaskError, match="is a mixture of LoRA experts"):
            loaded(recipe(experts, "contrastive", train=train))
        assert loaded(recipe(merged, "contrastive", train=train)).begin("contrastive", 0)
    for folder in (adapter, experts):
        assert loaded(recipe(folder, "contrastive", train="head", designs=[HEADED], **HEAD))
    assert loaded(recipe(experts, "contrastive", train=["router"])).begin("contrastive", 0)


def test_a_router_without_a_gradient_does_not_train(model: Path, tmp_path: Path) -> None:
    for top_k in (1, 2):
        base, _ = load_base_language_model(Source(str(model), dtype="float32"))
        experts = saved_experts(tmp_path / str(top_k), base)
        routing = Routing(top_k=top_k, renormalise=True)
        Mixture(base, experts, routing, source=Source(str(model))).save_pretrained(tmp_path / f"top-{top_k}")
    with pytest.raises(UnmaskError, match="the router has no gradient"):
        loaded(recipe(tmp_path / "top-1", "contrastive", train=["router"]))
    assert loaded(recipe(tmp_path / "top-2", "contrastive", train=["router"])).begin("contrastive", 0)
    assert loaded(recipe(tmp_path / "top-1", "contrastive", train="head", designs=[HEADED], **HEAD))


@pytest.mark.sample(2)
@pytest.mark.parametrize("routing", [Routing(), Routing(level="sequence"), Routing("final"), Routing(span=2)], ids=str)
def test_checkpointing_is_refused_where_decisions_outlive_a_block(routing: Routing, model: Path, tmp_path: Path) -> None:
    """A pooling stage runs its chunks forward before it goes backward, so a recomputed block would see the last chunk's decision."""
    base, _ = load_base_language_model(Source(str(model), dtype="float32"))
    Mixture(base, saved_experts(tmp_path, base), routing, source=Source(str(model))).save_pretrained(tmp_path / "mixture")
    again = {"contrastive": {"checkpointing": True}}
    if routing == Routing():
        assert loaded(recipe(tmp_path / "mixture", "contrastive", train=["router"], **again))
    else:
        with pytest.raises(UnmaskError, match=r"'contrastive' cannot have checkpointing.*leave checkpointing out"):
            loaded(recipe(tmp_path / "mixture", "contrastive", train=["router"], **again))
    assert loaded(recipe(tmp_path / "mixture", "contrastive", train=["router"]))
    assert loaded(recipe(tmp_path / "mixture", "contrastive", train="head", designs=[HEADED], **again, **HEAD))


def test_named_kinds_of_weight_train_alone(model: Path) -> None:
    kinds = ("gate_proj", "down_proj")
    trainee = loaded(recipe(model, "mntp", train=kinds, dtype="bfloat16"))
    assert trainee.backbone.dtype == torch.float32, "small steps are lost in bf16"
    covered = trainee.begin("mntp", 0)
    assert trainee.backbone.autocast == torch.bfloat16
    found = training(trainee)
    assert {name.split(".")[-2] for name in found} == set(kinds)
    assert {one.kind for one in covered if one.adapted == one.present} == set(kinds)
    assert sum(one.trainable for one in covered) == sum(weight.numel() for weight in found.values())
    with pytest.raises(UnmaskError, match=r"Unknown kind of weight in train 'router'.*Allowed: down_proj, gate_proj, k_proj"):
        loaded(recipe(model, "mntp", train=["router"])).begin("mntp", 0)


@pytest.mark.parametrize("family", ["mixtral", "qwen3-moe", "olmoe"])
@pytest.mark.parametrize("kinds", [("router",), ("experts.gate_up_proj", "experts.down_proj"), ("router", "q_proj")])
def test_of_a_mixture_routers_or_experts_train_alone(
    kinds: tuple[str, ...], family: str, tokenizer: Any, tmp_path: Path
) -> None:
    trainee = loaded(next_token(mixture(tmp_path, family, tokenizer)).model_copy(update={"train": kinds}))
    covered = trainee.begin("next-token", 0)
    ends = {"router": "mlp.gate.weight", "q_proj": "q_proj.weight"}
    found = training(trainee)
    layers = len(trainee.backbone.layers)
    assert len(found) == len(kinds) * layers
    assert all(name.endswith(tuple(ends.get(kind, kind) for kind in kinds)) for name in found)
    assert {one.kind: one.trainable > 0 for one in covered} == {one.kind: one.kind in kinds for one in covered}


@pytest.mark.parametrize("train", ["lora", "full", "head"])
def test_the_head_trains_where_vectors_are_made(model: Path, train: str) -> None:
    stages = ("contrastive",) if train == "head" else ("mntp", "contrastive")
    trainee = loaded(recipe(model, *stages, train=train, designs=[HEADED], **HEAD))
    if train != "head":
        assert not sum(one.trainable for one in trainee.begin("mntp", 0) if one.kind.startswith("head"))
        assert training(trainee) and not any(name.startswith("head.") for name in training(trainee))
        trainee.end(merge=True)
    covered = trainee.begin("contrastive", 0)
    found = training(trainee)
    of_head = {name for name in found if name.startswith("head.")}
    assert of_head and (of_head == found.keys()) == (train == "head")
    said = [one for one in covered if one.kind.startswith("head")]
    assert sum(one.trainable for one in said) == sum(found[name].numel() for name in of_head)
    assert all(one.trainable == one.parameters for one in said)
    decoder = sum(one.trainable for one in covered if one not in said)
    assert (decoder == 0) == (train == "head")


def test_heads_of_one_size_are_as_near_to_it_as_they_can_be(model: Path) -> None:
    sizes = []
    for design in (HEADED, "bidirectional/plain/latent-attention"):
        head = loaded(recipe(model, "contrastive", designs=[design], head={"heads": 2}, head_parameters=30_000)).backbone.head
        assert head
        sizes.append(sum(weight.numel() for weight in head.parameters()))
    assert all(abs(size - 30_000) < 300 for size in sizes)


def test_stages_begin_with_new_adapters_on_merged_weights(model: Path) -> None:
    trainee = loaded(recipe(model, "simcse", "contrastive"))
    before = trainee.embedder.encode(["A man plays."])
    trainee.begin("simcse", 0)
    with torch.no_grad():
        for weight in training(trainee).values():
            weight.normal_(std=0.1)
    trained = trainee.embedder.encode(["A man plays."])
    assert abs(trained - before).max() > 1e-3
    trainee.end(merge=True)
    assert trainee.adapter is None and abs(trainee.embedder.encode(["A man plays."]) - trained).max() < 1e-5
    trainee.begin("contrastive", 0)
    assert abs(trainee.embedder.encode(["A man plays."]) - trained).max() < 1e-5, "a new adapter changes nothing yet"
    assert all(bool((weight == 0).all()) for name, weight in training(trainee).items() if "lora_B" in name)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("merge", [True, False])
def test_an_embedder_works_during_and_after_a_stage(model: Path, dtype: str, merge: bool) -> None:
    """Adapters are in fp32 beside weights in bf16, under autocast in the stage, without it afterwards."""
    trainee = loaded(recipe(model, "simcse", dtype=dtype))
    trainee.begin("simcse", 0)
    assert trainee.backbone.autocast == (torch.bfloat16 if dtype == "bfloat16" else None)
    assert {weight.dtype for weight in training(trainee).values()} == {torch.float32}
    with torch.no_grad():
        for weight in training(trainee).values():
            weight.normal_(std=0.1)
    during = trainee.embedder.encode(["A man plays."], normalize=True)
    trainee.end(merge)
    after = trainee.embedder.encode(["A man plays."], normalize=True)
    assert (trainee.adapter is None) == merge and trainee.backbone.autocast is None
    assert float((during * after).sum()) > (0.999999 if dtype == "float32" else 0.99)


def test_a_seed_decides_the_adapter(model: Path) -> None:
    trainee = loaded(recipe(model, "simcse", "contrastive"))
    drawn = []
    for seed in (3, 3, 4):
        trainee.begin("simcse", seed)
        drawn.append(torch.cat([weight.flatten().detach().clone() for weight in training(trainee).values()]))
        trainee.end(merge=True)
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def test_layers_above_the_one_that_is_read_do_not_train(model: Path) -> None:
    made = recipe(model, "contrastive", designs=["causal/plain/mean@1"], lora={"r": 4, "targets": ["q_proj"]})
    trainee = loaded(made)
    (covered,) = (one for one in trainee.begin("contrastive", 0) if one.trainable)
    assert (covered.kind, covered.present, covered.adapted) == ("q_proj", 1, 1)
    assert all("layers.0." in name for name in training(trainee))


def test_what_cannot_train_is_refused_before_anything_is_loaded(model: Path) -> None:
    with pytest.raises(UnmaskError, match="'bidirectional/plain/mean' has no head, so with train = \"head\""):
        loaded(recipe(Path("nowhere"), "contrastive", train="head"))
    with pytest.raises(UnmaskError, match="Stage 'mntp' trains no head"):
        loaded(recipe(Path("nowhere"), "contrastive", "mntp", train="head", designs=[HEADED], **HEAD))
    with pytest.raises(UnmaskError, match="is fitted on reference texts"):
        loaded(recipe(Path("nowhere"), "contrastive", designs=["causal/plain/mean/sum:auto"]))


def test_the_language_model_is_loaded_where_a_stage_predicts_tokens(model: Path) -> None:
    assert predicts_tokens(recipe(model, "mntp", "simcse")) and not predicts_tokens(recipe(model, "simcse"))
    assert loaded(recipe(model, "simcse")).language_model is None
    trainee: Any = loaded(recipe(model, "mntp"))
    assert trainee.language_model.model is trainee.backbone.model
    assert trainee.language_model.config is trainee.backbone.model.config, "or else the head would not see the attention"


def test_the_same_seed_makes_the_same_head(model: Path) -> None:
    made = recipe(model, "contrastive", designs=[HEADED], **HEAD)
    one, other, third = (Trainee.load(made, Design.parse(HEADED), seed).backbone.head for seed in (0, 0, 1))
    assert one and other and third
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one.parameters(), third.parameters(), strict=True))
