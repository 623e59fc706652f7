"""What a run leaves: the trained model in every form that loads it, the best of its checkpoints, a card; and what stops it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import Module

from tests.moe.mixture.models import saved_experts
from tests.training.running import ROOT, TEXTS, At, encode, losses, recipe, run, same, weights
from unmask.designs.design import Design
from unmask.embedder import Embedder
from unmask.errors import UnmaskError
from unmask.models.loading import Source, load_base_language_model
from unmask.moe.mixture.model import Mixture
from unmask.training.card import write_card
from unmask.training.loop import Loop, trainer_arguments
from unmask.training.stages import STAGES
from unmask.training.stages.stage import StageOptions
from unmask.training.train import train

SHORT = {"steps": 2}
TAUGHT = {"text": {"path": "starter:reference"}, "taught": {"path": "starter:pairs", "instruction": "Find the same."}}
SMALL_HEAD = {"latents": 4, "heads": 2}


def objective_of(change: Callable[[int, Tensor], Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """Change the loss of the n-th forward pass, counted from one."""
    made = STAGES["contrastive"].prepare
    calls = iter(range(1, 10_000))

    def prepared(*arguments: Any) -> Any:
        ready = made(*arguments)
        inner = ready.objective
        object.__setattr__(ready, "objective", lambda *batch: change(next(calls), inner(*batch)))
        return ready

    monkeypatch.setattr(STAGES["contrastive"], "prepare", prepared)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"contrastive": {"matryoshka": [8, 4096]}}, "matryoshka asks for 4096 dimensions"),
        ({"data": {"text": {"path": "starter:reference"}, "pairs": {"path": "nowhere.jsonl"}}}, "nowhere.jsonl"),
        ({"contrastive": {"data": ["taught"]}, "data": TAUGHT}, "instruction"),
        ({"designs": ["causal/plain/mean", "causal/plain/cross-attention/zscore"]}, "is fitted on reference texts"),
    ],
    ids=["dimensions", "a missing file", "an instruction without a place", "the second design"],
)
def test_what_a_later_stage_or_design_refuses_shows_before_the_first_step(
    changed: dict[str, Any], words: str, model: Path, tmp_path: Path
) -> None:
    with pytest.raises(UnmaskError, match=words):
        train(recipe(model, "mntp", "contrastive", **changed), tmp_path / "run", ROOT)
    assert not list((tmp_path / "run").glob("**/stages"))


def test_a_loss_that_is_no_number_stops_the_run(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objective_of(lambda step, loss: loss * float("nan") if step == 5 else loss, monkeypatch)
    with pytest.raises(UnmaskError) as error:
        run(recipe(model, "contrastive"), tmp_path / "run")
    checkpoint = tmp_path / "run" / "stages" / "1-contrastive" / "checkpoint-4"
    assert str(error.value).startswith("Step 5: the loss is not finite")
    assert "Rows: pairs:" in str(error.value) and f"Last good checkpoint: {checkpoint}." in str(error.value)


def test_a_loss_that_explodes_stops_the_run(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objective_of(lambda step, loss: loss * 100 if step == 12 else loss, monkeypatch)
    with pytest.raises(UnmaskError, match="Step 12: the loss is more than 10 times the usual"):
        run(recipe(model, "contrastive", contrastive={"steps": 12, "save_every": 50}), tmp_path / "run")


def test_a_data_set_with_larger_losses_does_not_explode(tmp_path: Path) -> None:
    stage = StageOptions(data=("a",), steps=1, lr=0.1)
    loop = Loop(torch.nn.Linear(2, 2), trainer_arguments(stage, tmp_path, 0, True, False), [], list, lambda *_: None)  # type: ignore
    for loss, row in [*[(0.5, "pairs:1")] * 12, (15.0, "graded:1"), (20.0, "graded:2")]:
        loop._check_loss(loss, [row])
    for loss, row in ((15.0, "pairs:2"), (200.0, "graded:3")):
        with pytest.raises(UnmaskError, match="is more than 10 times the usual"):
            loop._check_loss(loss, [row])


def test_weights_that_are_no_numbers_are_never_a_checkpoint(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def poisoned(step: int, loss: Tensor) -> Tensor:
        if step == 4:  # a finite loss with a gradient that is not
            loss.register_hook(lambda gradient: gradient * float("nan"))
        return loss

    objective_of(poisoned, monkeypatch)
    with pytest.raises(UnmaskError, match=r"Step 4: weights of .* are not finite. Last good checkpoint: .*checkpoint-2\."):
        run(recipe(model, "contrastive"), tmp_path / "run")


def test_the_best_checkpoint_is_the_result(model: Path, tmp_path: Path) -> None:
    seen: list[Any] = []

    def peak(embedder: Embedder) -> dict[str, float]:
        seen.append(embedder.encode(TEXTS))
        return {"score": [0.1, 0.9, 0.3, 0.9][len(seen) - 1]}

    run(recipe(model, "contrastive", contrastive={"evaluate_every": 2, "steps": 6}), tmp_path / "run", peak)
    assert len(seen) == 4  # the last is of the result
    assert np.allclose(seen[3], seen[1], atol=1e-6) and not np.allclose(seen[3], seen[2], atol=1e-4)
    assert np.array_equal(encode(tmp_path / "run"), seen[3])


def test_the_average_of_the_last_checkpoints_is_the_result(model: Path, tmp_path: Path) -> None:
    """Scores choose nothing then. The last checkpoint is at the last step, whatever the interval."""
    at_step: dict[int, dict[str, Tensor]] = {}

    class Look(At):
        def on_step_end(self, args: Any, state: Any, control: Any, **options: Any) -> None:
            kept = options["model"].named_parameters()
            at_step[state.global_step] = {name: weight.detach().clone() for name, weight in kept if weight.requires_grad}

    made = recipe(model, "contrastive", contrastive={"evaluate_every": 2, "steps": 7, "average": 3})
    scores = iter([0.9, 0.1, 0.1, 0.1, 0.5])
    run(made, tmp_path / "run", lambda _: {"score": next(scores)}, Look("1-contrastive", 0, lambda: None))
    found = load_file(tmp_path / "run" / "stages" / "1-contrastive" / "done.safetensors")
    for name, weight in found.items():
        assert torch.allclose(weight, (at_step[4][name] + at_step[6][name] + at_step[7][name]) / 3, atol=1e-7)
    assert any(not torch.allclose(weight, at_step[7][name], atol=1e-5) for name, weight in found.items())
    assert json.loads((tmp_path / "run" / "run.json").read_text())["result"]["chosen"] is False


def test_evaluating_changes_nothing(model: Path, tmp_path: Path) -> None:
    def careless(embedder: Embedder) -> dict[str, float]:
        import random

        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        embedder.encode(TEXTS)
        careless.calls += 1  # type: ignore[attr-defined]
        return {"score": careless.calls / 100}  # type: ignore[attr-defined]

    careless.calls = 0  # type: ignore[attr-defined]
    settings: dict[str, Any] = {"lora": {"r": 4, "dropout": 0.1}}
    run(recipe(model, "simcse", simcse={"evaluate_every": 1}, **settings), tmp_path / "watched", careless)
    run(recipe(model, "simcse", **settings), tmp_path / "unwatched")
    assert careless.calls == 7  # type: ignore[attr-defined]
    assert same(weights(tmp_path / "watched"), weights(tmp_path / "unwatched"))


def test_recomputed_activations_change_nothing(model: Path, tmp_path: Path) -> None:
    stage = "simcse"
    calls: dict[bool, int] = {}
    for checkpointing in (False, True):
        made = recipe(model, stage, **{stage: {"checkpointing": checkpointing, "steps": 3}})
        run(made, tmp_path / str(checkpointing), None, Counting(calls, checkpointing))
    assert losses(tmp_path / "True", f"1-{stage}") == pytest.approx(losses(tmp_path / "False", f"1-{stage}"), rel=1e-5)
    one, other = weights(tmp_path / "True"), weights(tmp_path / "False")
    assert all(torch.allclose(one[name], other[name], atol=1e-5) for name in other)
    assert calls[True] > calls[False]  # layers were computed again


class Counting(At):
    """Counts how often the first layer is computed."""

    def __init__(self, calls: dict[bool, int], key: bool) -> None:
        self.calls, self.key = calls, key

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        return

    def on_train_begin(self, args: Any, state: Any, control: Any, **options: Any) -> None:
        self.calls[self.key] = 0
        first = next(module for name, module in options["model"].named_modules() if name.endswith("layers.0.mlp"))
        first.register_forward_pre_hook(lambda *_: self.calls.update({self.key: self.calls[self.key] + 1}))


def test_steps_in_parts_are_whole_steps(model: Path, tmp_path: Path) -> None:
    for parts in (1, 2):
        run(recipe(model, "mntp", mntp={"accumulate": parts, "batch": 8}), tmp_path / str(parts))
    assert losses(tmp_path / "2", "1-mntp") == pytest.approx(losses(tmp_path / "1", "1-mntp"), rel=1e-4)
    one, other = weights(tmp_path / "1"), weights(tmp_path / "2")
    assert all(torch.allclose(one[name], other[name], atol=2e-5) for name in one)


@pytest.mark.parametrize("schedule", ["cosine", "constant"])
def test_every_schedule_warms_up(schedule: str, model: Path, tmp_path: Path) -> None:
    run(recipe(model, "contrastive", contrastive={"lr": 3e-3, "warmup": 3, "schedule": schedule}), tmp_path)
    log = json.loads((tmp_path / "stages/1-contrastive/log.json").read_text())
    rates = [entry["learning_rate"] for entry in log if "loss" in entry]
    assert rates[:4] == pytest.approx([0, 1e-3, 2e-3, 3e-3])
    assert (rates[-1] == rates[3]) == (schedule == "constant")


def trained_vectors(made: Any, folder: Path) -> Any:
    """Vectors of the model in training, at the end of a run that is watched once."""
    found: list[Any] = []

    def look(embedder: Embedder) -> dict[str, float]:
        found.append(embedder.encode(TEXTS))
        return {"score": 0.5}

    run(made, folder, look)
    return found[-1]


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("design", "settings"),
    [
        ("bidirectional/plain/mean", {}),
        ("causal/eol/last+0.5mean", {"merge": False}),
        ("causal/plain/mean", {"train": ["up_proj", "v_proj"]}),
        ("bidirectional/plain/cross-attention", {"head": SMALL_HEAD}),
        ("causal/plain/layer-attention", {"head": SMALL_HEAD, "merge": False}),
        ("bidirectional/plain/latent-attention", {"head": SMALL_HEAD, "train": "head"}),
    ],
    ids=str,
)
def test_the_result_loads_as_what_was_trained(design: str, settings: dict[str, Any], model: Path, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    made = recipe(model, "contrastive", contrastive=SHORT | {"lr": 1e-2, "max_length": 64}, designs=[design], **settings)
    vectors = trained_vectors(made, tmp_path / "run")
    loaded = Embedder.from_pretrained(tmp_path / "run" / "model", device="cpu")
    assert loaded.design == Design.parse(design) and loaded.backbone.attention == loaded.design.attention
    assert np.array_equal(loaded.encode(TEXTS), vectors)
    ours = "UnmaskModule" in (tmp_path / "run" / "model" / "modules.json").read_text()
    assert ours == ((design != "bidirectional/plain/mean" and design != "causal/plain/mean") or not made.merge)
    theirs = SentenceTransformer(str(tmp_path / "run" / "model"), trust_remote_code=ours, device="cpu").encode(TEXTS)
    assert np.allclose(theirs, vectors, atol=1e-5)
    base = Embedder.from_pretrained(model, design, device="cpu").encode(TEXTS) if not made.head else None
    assert base is None or not np.allclose(base, vectors, atol=1e-4)
    if made.train == "head":
        untouched = Embedder.from_pretrained(model, "causal/plain/mean", device="cpu", dtype="float32").backbone.model
        assert same(dict(untouched.state_dict()), dict(loaded.backbone.model.state_dict()))


def test_the_router_of_lora_experts_stays_in_fp32_beside_weights_in_bf16(model: Path, tmp_path: Path) -> None:
    base, _ = load_base_language_model(Source(str(model), dtype="float32"))
    mixture = Mixture(base, saved_experts(tmp_path, base), source=Source(str(model)))
    mixture.save_pretrained(tmp_path / "mixture")
    options = SHORT | {"lr": 1e-2, "max_length": 64}
    made = recipe(tmp_path / "mixture", "contrastive", contrastive=options, train=["router"], dtype="bfloat16")
    vectors = trained_vectors(made, tmp_path / "run")
    loaded = Embedder.from_pretrained(tmp_path / "run" / "model", device="cpu", dtype="bfloat16")
    assert loaded.backbone.dtype == torch.bfloat16 and np.array_equal(loaded.encode(TEXTS), vectors)
    before, after = (load_file(folder / "router.safetensors") for folder in (tmp_path / "mixture", tmp_path / "run" / "model"))
    assert all(weight.dtype == torch.float32 and not torch.equal(weight, before[name]) for name, weight in after.items())
    assert not any(torch.equal(weight, weight.bfloat16().float()) for weight in after.values()), "it was rounded"


def test_every_design_and_seed_has_its_folder(model: Path, tmp_path: Path) -> None:
    made = recipe(
        model, "contrastive", contrastive=SHORT, designs=["causal/plain/mean", "bidirectional/plain/mean"], seeds=[0, 1]
    )
    found = train(made, tmp_path / "run", ROOT)
    assert [one.folder.name for one in found] == [
        f"{attention}-plain-mean.seed{seed}" for attention in ("causal", "bidirectional") for seed in (0, 1)
    ]
    assert len({tuple(encode(one.folder)[0]) for one in found}) == 4


@pytest.mark.parametrize(("place", "groups"), [("all", 4), ("decayed", 3)])
def test_weights_with_a_rate_of_their_own_decay_as_before(place: str, groups: int, tmp_path: Path) -> None:
    """Norms and biases do not decay, whatever their rate."""
    model = torch.nn.ModuleDict({"linear": torch.nn.Linear(2, 2), "norm": torch.nn.LayerNorm(2)})
    own = {"all": set(model.parameters()), "decayed": {model["linear"].weight}, "none": set()}[place]
    stage = StageOptions(data=("a",), steps=1, lr=0.1, weight_decay=0.3)
    loop = Loop(model, trainer_arguments(stage, tmp_path, 0, True, False), [], list, lambda *_: None, own_rates={0.7: own})  # type: ignore
    for _ in range(2):  # Trainer may ask again
        made = loop.create_optimizer().param_groups
        assert len(made) == groups
        found = {weight: (group["lr"], group["weight_decay"]) for group in made for weight in group["params"]}
        decays = {model["linear"].weight}
        assert found == {one: (0.7 if one in own else 0.1, 0.3 if one in decays else 0.0) for one in model.parameters()}


def test_the_card_says_what_happened(model: Path, tmp_path: Path) -> None:
    merge = False
    made = recipe(model, "contrastive", contrastive={"evaluate_every": 3}, merge=merge)
    done = run(made, tmp_path / "run", lambda _: {"score": 0.5, "a task": 0.5})
    vectors = encode(done.folder)
    write_card(made, done)
    text = (done.result / "README.md").read_text()
    record = json.loads((done.folder / "run.json").read_text())
    revision = record["result"]["data"]["contrastive"]["pairs"]["revision"]
    for said in (
        f"base_model: {model}",
        "# pico: ",
        "- a task: 50.00",
        "they flatter it",
        f"`pairs` (starter:pairs), 40 examples, revision {revision}",
        f"| 1 | {losses(done.folder, '1-contrastive')[0]:.4f} |",
        f"| 6 | {losses(done.folder, '1-contrastive')[-1]:.4f} |",
        '"lr": 0.001',
    ):
        assert said in text, said
    assert ("trust_remote_code=True" in text) == (not merge)
    assert np.array_equal(encode(done.folder), vectors), "the folder with its card loads as before"


@pytest.mark.parametrize("quantize", ["8bit", "4bit"])
def test_an_adapter_trains_on_quantised_weights(quantize: str, model: Path, tmp_path: Path) -> None:
    """The gradients are those of the same weights, dequantised."""
    made = recipe(model, "contrastive", merge=False, quantize=quantize, contrastive={"steps": 3})
    run(made, tmp_path / "quantised")
    trained = Embedder.from_pretrained(tmp_path / "quantised" / "model")
    assert trained.source.quantize == quantize
    assert not np.allclose(
        trained.encode(TEXTS), Embedder.from_pretrained(model, made.designs[0], quantize=quantize).encode(TEXTS)
    )
    language_model, tokenizer = load_base_language_model(Source(str(model), quantize=quantize))
    full: Any = load_base_language_model(Source(str(model)))[0]
    for name, module in language_model.named_modules():
        if isinstance(module, torch.nn.Linear):
            # the product with the unit matrix is the weight, whatever its form
            weight = module(torch.eye(module.in_features)).T - (0 if module.bias is None else module.bias[:, None])
            full.get_submodule(name).weight.data.copy_(weight)
    full.save_pretrained(tmp_path / "dequantised")
    tokenizer.save_pretrained(tmp_path / "dequantised")
    run(recipe(tmp_path / "dequantised", "contrastive", merge=False, contrastive={"steps": 3}), tmp_path / "full")
    np.testing.assert_allclose(
        losses(tmp_path / "quantised", "1-contrastive"), losses(tmp_path / "full", "1-contrastive"), rtol=1e-4
    )


def test_quantised_weights_take_an_adapter_and_nothing_else(model: Path) -> None:
    for changed in ({}, {"merge": False, "train": "full"}):
        with pytest.raises(ValueError, match="adapter"):
            recipe(model, "contrastive", quantize="4bit", **changed)


def test_compiled_layers_train_the_same_weights(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to rounding; nothing stays compiled. With backend "eager", since generating code takes minutes and a C++ compiler."""
    compiled: list[Module] = []
    compile_one = Module.compile

    def compile_quickly(layer: Module, **options: Any) -> None:
        compiled.append(layer)
        compile_one(layer, backend="eager", **options)

    monkeypatch.setattr(Module, "compile", compile_quickly)
    fast = weights(run(recipe(model, "contrastive", compile=True), tmp_path / "fast").folder)
    plain = weights(run(recipe(model, "contrastive"), tmp_path / "plain").folder)
    assert len(compiled) == 2 and not any(layer._compiled_call_impl for layer in compiled)
    for name, weight in plain.items():
        torch.testing.assert_close(fast[name], weight, rtol=1e-3, atol=1e-4)
