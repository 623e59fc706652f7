"""LoRA reaches what the table says, on every family: nothing is missed in silence, and merging changes no vector."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.families import FAMILIES
from unmask.errors import UnmaskError
from unmask.models.decoder import find_layers
from unmask.models.routers import find_routers
from unmask.training.lora import Coverage, LoraOptions, add_lora, coverage, require_coverage, weight_kinds

ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
DENSE = ATTENTION | {"gate_proj", "up_proj", "down_proj"}
FUSED = {"experts.gate_up_proj", "experts.down_proj"}
GPT_NEOX = {"query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"}
SHARED = {"shared_expert.gate_proj", "shared_expert.up_proj", "shared_expert.down_proj"}
LATENT = {"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"}
DELTA = {"in_proj_qkvz", "in_proj_ba", "out_proj", "shared_expert_gate"}  # Qwen3-Next's linear attention
# beside fused experts, peft takes these for parts of them, and does not adapt them where they are
MISSED = {"gate_proj", "up_proj", "down_proj"}
MISSED_SHARED = {"shared_experts.gate_proj", "shared_experts.up_proj", "shared_experts.down_proj"}

# family -> the kinds that "all" reaches; what is not here has the linear layers of Llama, and fused experts if it has experts
REACHED: dict[str, set[str]] = {
    "phi3": {"o_proj", "qkv_proj", "gate_up_proj", "down_proj"},
    "phi3-sliding": {"o_proj", "qkv_proj", "gate_up_proj", "down_proj"},
    "gpt-neox": GPT_NEOX,
    "falcon": GPT_NEOX,
    "bloom": GPT_NEOX,
    "gpt2": {"c_attn", "c_proj", "c_fc"},
    "opt": {"q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"},
    "qwen2-moe": ATTENTION | FUSED | SHARED | {"shared_expert_gate"},
    "deepseek-v2": LATENT | FUSED,
    "deepseek-v3": LATENT | FUSED,
    "dbrx": {"Wqkv", "out_proj"},
    "llama4": ATTENTION | FUSED | SHARED,
    "qwen3-next": ATTENTION | FUSED | DELTA,
}
# family -> the kinds that it has and that peft does not reach: the table has to show them
UNREACHED: dict[str, set[str]] = {
    "qwen3-moe-first-dense": MISSED,
    "deepseek-v2": MISSED | MISSED_SHARED,
    "deepseek-v3": MISSED | MISSED_SHARED,
    "glm4-moe": MISSED | MISSED_SHARED,
    "dbrx": {"experts.w1", "experts.v1", "experts.w2"},
    "qwen3-next": SHARED,
}
TRAINABLE = [name for name in FAMILIES if name != "mamba"]
OPTIONS = LoraOptions(r=4, alpha=8)
IDS = torch.randint(3, 512, (4, 16), generator=torch.Generator().manual_seed(0))


def loaded(family: str) -> tuple[Any, nn.ModuleList]:
    model = FAMILIES[family].build()
    model.requires_grad_(False)
    return model, find_layers(model)


def states(model: Any) -> Tensor:
    return model(input_ids=IDS, use_cache=False).last_hidden_state  # type: ignore[no-any-return]


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


@pytest.mark.sample(12)
@pytest.mark.parametrize("family", TRAINABLE)
def test_all_reaches_what_the_table_says_learns_and_merges_without_a_trace(family: str) -> None:
    model, layers = loaded(family)
    names = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    plain = states(model)
    kinds = weight_kinds(model, layers)
    adapter = add_lora(model, layers, OPTIONS)
    table = {one.kind: one for one in coverage(model, kinds)}
    usual = (ATTENTION | FUSED) if FAMILIES[family].experts else DENSE
    assert {kind for kind, one in table.items() if one.adapted} == REACHED.get(family, usual)
    assert {kind for kind, one in table.items() if not one.adapted} == UNREACHED.get(family, set())
    assert all(one.adapted in (0, one.present) for one in table.values())
    assert all((one.trainable > 0) == (one.adapted > 0) for one in table.values())
    training = trainable(adapter)
    assert sum(one.trainable for one in table.values()) == sum(weight.numel() for weight in training.values())
    assert all("lora_" in name and weight.dtype == torch.float32 for name, weight in training.items())
    routers = [id(weight) for router in find_routers(model) for weight in router.module.parameters()]
    assert not {id(weight) for weight in training.values()} & set(routers)
    torch.testing.assert_close(states(model), plain, atol=1e-6, rtol=0)
    # B is zero in the beginning, and then A has no gradient: this is the state after a first step
    with torch.no_grad():
        for weight in training.values():
            weight.normal_(std=0.05)
    states(model).square().sum().backward()
    for name, weight in training.items():
        assert weight.grad is not None and bool(weight.grad.abs().sum() > 0), f"{name} would never learn"
    with torch.no_grad():
        before = states(model)
        assert float((before - plain).abs().max()) > 1e-3
        merged = adapter.merge_and_unload()
        assert merged is model
        # the vectors of mean pooling
        torch.testing.assert_close(states(model).mean(dim=1), before.mean(dim=1), atol=1e-5, rtol=0)
    assert {name: tuple(weight.shape) for name, weight in model.named_parameters()} == names


@pytest.mark.parametrize("family", ["mixtral", "deepseek-v3"])
def test_depth_keeps_to_the_layers_that_are_read(family: str) -> None:
    """Experts too; and a kind that was named is not missed in the layers that nobody reads."""
    model, layers = loaded(family)
    adapter = add_lora(model, layers, OPTIONS, depth=2)
    assert {int(name.split("layers.")[1].split(".")[0]) for name in trainable(adapter)} == {0, 1}
    model, layers = loaded(family)
    options = LoraOptions(r=4, alpha=8, targets=("o_proj",))
    kinds = weight_kinds(model, layers, 2)
    add_lora(model, layers, options, depth=2)
    table = coverage(model, kinds)
    assert [one for one in table if one.trainable] == [Coverage("o_proj", 2, 2, 2 * 64 * 64, 2 * 4 * 128)]
    require_coverage(table, options)


@pytest.mark.parametrize(
    ("family", "target"),
    [
        ("deepseek-v3", "gate_proj"),
        ("dbrx", "experts.w1"),
    ],
)
def test_what_peft_does_not_reach_is_refused_when_it_is_named(family: str, target: str) -> None:
    model, layers = loaded(family)
    with pytest.raises(UnmaskError, match=rf"lora.targets names '{target}', but only 0 of \d would train: peft does not reach"):
        add_lora(model, layers, LoraOptions(targets=("o_proj" if family != "dbrx" else "Wqkv", target)))
    assert not any("lora_" in name for name, _ in model.named_parameters()), "a refusal must leave the model alone"


@pytest.mark.parametrize(
    ("family", "targets", "said"),
    [
        ("mixtral", ("q_proj", "gate_proj"), "Unknown LoRA target 'gate_proj'. Did you mean 'v_proj'? Allowed: experts.d"),
        ("olmoe", ("mlp.gate",), "Unknown LoRA target 'mlp.gate'."),  # a router
    ],
)
def test_a_target_that_a_model_lacks_is_refused(family: str, targets: tuple[str, ...], said: str) -> None:
    model, layers = loaded(family)
    with pytest.raises(UnmaskError) as caught:
        add_lora(model, layers, LoraOptions(targets=targets))
    assert said in str(caught.value)


def test_dropout_on_experts_is_refused() -> None:
    model, layers = loaded("mixtral")
    with pytest.raises(
        UnmaskError, match=r"LoRA on experts \(experts.gate_up_proj\) cannot have dropout: set lora.dropout = 0"
    ):
        add_lora(model, layers, LoraOptions(dropout=0.1))
    adapter = add_lora(model, layers, LoraOptions(dropout=0.1, targets=("q_proj",)))
    assert any(isinstance(module, nn.Dropout) and module.p == 0.1 for module in adapter.modules())
