"""What trains in which stage: adapters, all weights or the head, and never what a stage leaves alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.moe.mixture.models import saved_experts
from tests.training.running import ROOT, recipe, run
from tests.training.test_stages import mixture, next_token
from unmask.designs.design import Design
from unmask.embedder import Embedder
from unmask.errors import UnmaskError
from unmask.models.loading import Source, load_base_language_model
from unmask.moe.mixture.gating import Routing
from unmask.moe.mixture.model import Mixture
from unmask.training.recipe import Recipe, read_sets
from unmask.training.stages import STAGES
from unmask.training.trainee import Trainee

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


def test_full_training_frees_the_decoder_and_not_a_head_of_its_own(model: Path) -> None:
    trainee = loaded(recipe(model, "mntp", "contrastive", train="full", dtype="bfloat16"))
    assert trainee.backbone.dtype == torch.float32, "small steps are lost in bf16"
    trainee.start_stage("mntp", 0)
    found = training(trainee)
    assert len(found) == len(list(trainee.backbone.model.parameters())) and not any("lora" in name for name in found)
    assert trainee.backbone.autocast == torch.bfloat16
    untied: Any = trainee.language_model
    untied.lm_head.weight = nn.Parameter(untied.lm_head.weight.clone())
    trainee.start_stage("mntp", 0)
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
        assert loaded(recipe(merged, "contrastive", train=train)).start_stage("contrastive", 0)
    for folder in (adapter, experts):
        assert loaded(recipe(folder, "contrastive", train="head", designs=[HEADED], **HEAD))
    assert loaded(recipe(experts, "contrastive", train=["router"])).start_stage("contrastive", 0)


@pytest.mark.parametrize("routing", [Routing(), Routing("final")], ids=str)
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
    covered = trainee.start_stage("mntp", 0)
    assert trainee.backbone.autocast == torch.bfloat16
    found = training(trainee)
    assert {name.split(".")[-2] for name in found} == set(kinds)
    assert {one.kind for one in covered if one.adapted == one.present} == set(kinds)
    assert sum(one.trainable for one in covered) == sum(weight.numel() for weight in found.values())
    with pytest.raises(UnmaskError, match=r"Unknown kind of weight in train 'router'.*Allowed: down_proj, gate_proj, k_proj"):
        loaded(recipe(model, "mntp", train=["router"])).start_stage("mntp", 0)


@pytest.mark.parametrize("family", ["mixtral", "olmoe"])
@pytest.mark.parametrize("kinds", [("experts.gate_up_proj", "experts.down_proj"), ("router", "q_proj")])
def test_of_a_mixture_routers_or_experts_train_alone(
    kinds: tuple[str, ...], family: str, tokenizer: Any, tmp_path: Path
) -> None:
    trainee = loaded(next_token(mixture(tmp_path, family, tokenizer)).model_copy(update={"train": kinds}))
    covered = trainee.start_stage("next-token", 0)
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
        assert not sum(one.trainable for one in trainee.start_stage("mntp", 0) if one.kind.startswith("head"))
        assert training(trainee) and not any(name.startswith("head.") for name in training(trainee))
        trainee.finish_stage(merge=True)
    covered = trainee.start_stage("contrastive", 0)
    found = training(trainee)
    of_head = {name for name in found if name.startswith("head.")}
    assert of_head and (of_head == found.keys()) == (train == "head")
    said = [one for one in covered if one.kind.startswith("head")]
    assert sum(one.trainable for one in said) == sum(found[name].numel() for name in of_head)
    assert all(one.trainable == one.parameters for one in said)
    decoder = sum(one.trainable for one in covered if one not in said)
    assert (decoder == 0) == (train == "head")


def test_stages_begin_with_new_adapters_on_merged_weights(model: Path) -> None:
    trainee = loaded(recipe(model, "simcse", "contrastive"))
    before = trainee.embedder.encode(["A man plays."])
    trainee.start_stage("simcse", 0)
    with torch.no_grad():
        for weight in training(trainee).values():
            weight.normal_(std=0.1)
    trained = trainee.embedder.encode(["A man plays."])
    assert abs(trained - before).max() > 1e-3
    trainee.finish_stage(merge=True)
    assert trainee.adapter is None and abs(trainee.embedder.encode(["A man plays."]) - trained).max() < 1e-5
    trainee.start_stage("contrastive", 0)
    assert abs(trainee.embedder.encode(["A man plays."]) - trained).max() < 1e-5, "a new adapter changes nothing yet"
    assert all(bool((weight == 0).all()) for name, weight in training(trainee).items() if "lora_B" in name)


def test_layers_above_the_one_that_is_read_do_not_train(model: Path) -> None:
    made = recipe(model, "contrastive", designs=["causal/plain/mean@1"], lora={"r": 4, "targets": ["q_proj"]})
    trainee = loaded(made)
    (covered,) = (one for one in trainee.start_stage("contrastive", 0) if one.trainable)
    assert (covered.kind, covered.present, covered.adapted) == ("q_proj", 1, 1)
    assert all("layers.0." in name for name in training(trainee))


@pytest.mark.parametrize("design", ["causal/eol/last+0.5mean", "causal/plain/mean@1+2", "causal/eol/last+mean/zscore"])
def test_what_is_added_in_training_is_what_the_embedder_adds(design: str, model: Path) -> None:
    trainee = loaded(recipe(model, "contrastive", designs=[design], contrastive={"max_length": 512}))
    trainee.start_stage("contrastive", 0)
    sets = read_sets(trainee.recipe, "contrastive", ROOT, 0)
    ready = STAGES["contrastive"].prepare(trainee.recipe.stage("contrastive"), trainee, sets, 0)
    batch = ready.collate(ready.rows[:4])
    vectors = torch.cat([ready.module.train()(chunk)["sentence_embedding"] for chunk in batch["chunks"]])
    assert vectors.requires_grad
    anchors = trainee.embedder.encode([row.example.texts[0] for row in ready.rows[:4]])
    torch.testing.assert_close(vectors[batch["order"]][0].detach(), torch.from_numpy(anchors), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("merge", [True, False])
def test_a_standardised_design_keeps_the_fit_of_the_untrained_model(merge: bool, model: Path, tmp_path: Path) -> None:
    made = recipe(model, "contrastive", designs=["causal/eol/last/zscore"], merge=merge, contrastive={"max_length": 64})
    trained = Embedder.from_pretrained(run(made, tmp_path / "run").result, device="cpu")
    untrained = Embedder.from_pretrained(model, "causal/eol/last/zscore", dtype="float32", device="cpu")
    assert loaded(made).embedder.is_fitted  # before a run that continues loads trained weights
    for name, values in untrained.fitted.tensors.items():
        assert torch.equal(values, trained.fitted.tensors[name])
    assert not torch.allclose(torch.from_numpy(trained.encode(["x"])), torch.from_numpy(untrained.encode(["x"])), atol=1e-3)


@pytest.mark.parametrize("pooling", ["mean", "last+mean"])
def test_layers_above_the_one_that_is_read_are_not_computed(pooling: str, model: Path, tmp_path: Path) -> None:
    trainee = loaded(recipe(model, "contrastive", designs=[f"causal/plain/{pooling}@1"]))
    trainee.backbone.layers[1].register_forward_pre_hook(lambda *_: pytest.fail("layer 2 was computed"))
    options = trainee.recipe.stage("contrastive")
    sets = read_sets(trainee.recipe, "contrastive", ROOT, 0)
    trainee.start_stage("contrastive", 0)
    ready = STAGES["contrastive"].prepare(options, trainee, sets, 0)
    batch = ready.collate(ready.rows[: options.batch])
    ready.objective(ready.module, batch, None).backward()
    assert all(weight.grad is not None for weight in training(trainee).values())


def test_what_cannot_train_is_refused_before_anything_is_loaded(model: Path) -> None:
    with pytest.raises(UnmaskError, match="'bidirectional/plain/mean' has no head, so with train = \"head\""):
        loaded(recipe(Path("nowhere"), "contrastive", train="head"))
    with pytest.raises(UnmaskError, match="Stage 'mntp' trains no head"):
        loaded(recipe(Path("nowhere"), "contrastive", "mntp", train="head", designs=[HEADED], **HEAD))
    with pytest.raises(UnmaskError, match="a new head has no vectors to fit yet"):
        loaded(recipe(Path("nowhere"), "contrastive", designs=[f"{HEADED}/zscore"], **HEAD))
