"""Upcycling: the mixture computes what the dense model did, and experts made of branches compute what their branch does."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from tests.families import _TOKENS, FAMILIES
from unmask.cli import app
from unmask.errors import UnmaskError
from unmask.models.loading import Source, load_base_language_model
from unmask.models.routers import find_routers
from unmask.moe.upcycling import TARGETS, Branch, UpcycleOptions, load_branch, save_upcycled, sizes, upcycle

PLAIN = UpcycleOptions(experts=4, noise=0.0)
THREE = replace(PLAIN, experts=3)
TAKEN = {
    "llama": "mixtral",
    "mistral-sliding": "mixtral",
    "qwen2": "qwen2_moe",
    "qwen2-sliding": "qwen2_moe",
    "qwen3": "qwen3_moe",
    "granite": "granitemoe",
    "olmo2": "flex_olmo",
}


def headed(family: str = "llama", **changes: Any) -> Any:
    """A pico language model of a family, with weights large enough that they matter."""
    from transformers import AutoConfig, AutoModelForCausalLM

    known = FAMILIES[family]
    config = AutoConfig.for_model(known.model_type, **{**known.base, **_TOKENS, **known.changes, **changes})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.15)
    return model.eval()


def logits(model: Any) -> torch.Tensor:
    """Of texts of two lengths, longer than those of the proof."""
    ids = torch.randint(3, 512, (2, 20), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[1, 13:] = False
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=mask.long()).logits[mask]  # type: ignore[no-any-return]


def assert_close(one: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=1e-5 * float(other.abs().max()))


def branches(dense: Any, only_mlp: bool = False) -> tuple[list[Any], list[Branch]]:
    """Three copies of a model whose weights moved a little, as training moves them."""
    models = []
    for seed in range(3):
        model, generator = copy.deepcopy(dense), torch.Generator().manual_seed(seed)
        for name, weight in model.named_parameters():
            if ".mlp." in name or not only_mlp:
                weight.data += (0.05 * torch.randn(weight.shape, generator=generator)).to(weight.dtype)
        models.append(model)
    weights = [{path: weight.detach() for path, weight in model.named_parameters()} for model in models]
    return models, [Branch(name, of_model) for name, of_model in zip("abc", weights, strict=True)]


def test_every_target_is_reached_from_some_family() -> None:
    assert set(TAKEN.values()) == {target.model_type for target in TARGETS}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", TAKEN)
def test_plain_copies_compute_what_the_dense_model_did(family: str, tied: bool) -> None:
    dense = headed(family, tie_word_embeddings=tied)
    done = upcycle(dense, PLAIN)
    assert done.target.model_type == done.model.config.model_type == TAKEN[family]
    assert done.difference < 1e-5 and len(find_routers(done.model)) == 3
    assert_close(logits(done.model), logits(dense))
    assert (done.model.get_input_embeddings().weight is done.model.get_output_embeddings().weight) is tied


@pytest.mark.sample(8)
@pytest.mark.parametrize("family", TAKEN)
def test_each_expert_is_its_branch_and_the_rest_is_the_mean(family: str) -> None:
    dense = headed(family)
    models, given = branches(dense)
    for chosen in range(3):
        mixed = upcycle(dense, THREE, given).model
        by_hand = copy.deepcopy(dense)
        for name, weight in by_hand.named_parameters():
            of_branches = [dict(model.named_parameters())[name].data for model in models]
            weight.data = of_branches[chosen] if ".mlp." in name else sum(of_branches) / len(of_branches)
        for name, weight in mixed.named_parameters():
            if ".experts." in name:  # whatever the router says, this expert computes
                weight.data[:] = weight.data[chosen].clone()
        assert_close(logits(mixed), logits(by_hand))
        assert float((logits(mixed) - logits(dense)).abs().max()) > 0.01


def test_dtypes_and_unchanged_weights_are_kept() -> None:
    dense = headed()
    for parameter in dense.parameters():  # as from_pretrained does; model.to() would round the rotary frequencies too
        parameter.data = parameter.data.to(torch.bfloat16)
    before = {name: weight.clone() for name, weight in dense.state_dict().items()}
    mixed = upcycle(dense, THREE, branches(dense, only_mlp=True)[1]).model
    assert {weight.dtype for weight in mixed.parameters()} == {torch.bfloat16}
    assert {weight.dtype for weight in mixed.buffers()} == {torch.float32}, "rotary frequencies are never rounded"
    assert all(torch.equal(weight, before[name]) for name, weight in dense.state_dict().items()), "the dense model stays"
    unchanged = [name for name in before if ".mlp." not in name]
    assert unchanged and all(torch.equal(mixed.state_dict()[name], before[name]) for name in unchanged)


def test_saved_and_loaded_it_is_bit_equal_and_its_card_names_the_experts(tokenizer: Any, tmp_path: Path) -> None:
    dense = headed()
    done = upcycle(dense, THREE, branches(dense)[1])
    save_upcycled(done, tokenizer, tmp_path / "moe", "somewhere/pico", THREE)
    loaded, _ = load_base_language_model(Source(str(tmp_path / "moe"), dtype="float32"))
    assert torch.equal(logits(loaded.eval()), logits(done.model))
    assert loaded.config.output_router_logits and loaded.config.router_aux_loss_coef == 0.01
    card = (tmp_path / "moe" / "README.md").read_text(encoding="utf-8")
    assert "- expert 0: a\n- expert 1: b\n- expert 2: c\n" in card and "somewhere/pico" in card and "NOT been trained" in card
    with pytest.raises(UnmaskError, match="not empty"):
        save_upcycled(done, tokenizer, tmp_path / "moe", "somewhere/pico", THREE)


@pytest.mark.parametrize(
    ("changes", "routers", "experts"), [({"noise": 0.05}, False, True), ({"seed": 1}, True, False)], ids=["noise", "seed"]
)
def test_an_option_changes_what_it_says_and_nothing_else(changes: dict[str, Any], routers: bool, experts: bool) -> None:
    dense = headed()
    one, other = (dict(upcycle(dense, options).model.named_parameters()) for options in (PLAIN, replace(PLAIN, **changes)))
    changed = {name for name, weight in one.items() if not torch.equal(weight, other[name])}
    assert any(".gate.weight" in name for name in changed) == routers
    assert any(".experts." in name for name in changed) == experts
    assert all(".gate.weight" in name or ".experts." in name for name in changed)


@pytest.mark.parametrize(("noise", "learns"), [(0.0, False), (0.01, True)])
def test_the_router_learns_from_text_only_where_experts_differ(noise: float, learns: bool) -> None:
    sparse = upcycle(headed(), replace(PLAIN, noise=noise)).model
    sparse.config.output_router_logits = False  # no load-balancing loss
    ids = torch.randint(3, 512, (2, 20), generator=torch.Generator().manual_seed(1))
    sparse(input_ids=ids, labels=ids).loss.backward()
    gradients = [weight.grad for name, weight in sparse.named_parameters() if name.endswith(".gate.weight")]
    assert (max(float(gradient.abs().max()) for gradient in gradients) > 1e-4) == learns


def test_sizes_count_three_more_copies_and_two_active_experts() -> None:
    dense = headed()
    mlps, routers = 3 * 3 * 64 * 96, 3 * 4 * 64
    before = sum(weight.numel() for weight in dense.parameters())
    assert sizes(dense, 2) == (before, before)
    assert sizes(upcycle(dense, PLAIN).model, 2) == (before + 3 * mlps + routers, before + mlps + routers)


def test_what_is_refused(tokenizer: Any, tmp_path: Path) -> None:
    dense = headed()
    with pytest.raises(UnmaskError, match="already a mixture"):
        upcycle(upcycle(dense, PLAIN).model, PLAIN)
    with pytest.raises(UnmaskError, match=r"Models of these families can be upcycled: Llama, Mistral \(mixtral\)"):
        upcycle(headed("gemma3"), PLAIN)
    same = [Branch(name, dict(dense.named_parameters())) for name in "abc"]
    with pytest.raises(UnmaskError, match="have equal MLPs"):
        upcycle(dense, THREE, same)
    torch.manual_seed(5)
    for parameter in (stranger := headed()).parameters():
        nn.init.normal_(parameter)
    for model, why in ((stranger, "was not trained from this base model"), (headed("qwen3"), "another kind of model")):
        folder = tmp_path / why[:5]
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        with pytest.raises(UnmaskError, match=why):
            load_branch("a", Source(str(folder), dtype="float32"), dense, tokenizer)


def test_the_command_makes_experts_of_branches(tokenizer: Any, tmp_path: Path) -> None:
    dense = headed()
    models, _ = branches(dense)
    for name, model in (("base", dense), *zip("abc", models, strict=True)):
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    given = [part for name in "abc" for part in ("--branch", f"{name}={tmp_path / name}")]
    command = ["upcycle", str(tmp_path / "base"), "-o", str(tmp_path / "moe"), *given, "--dtype", "float32", "--json"]
    done = CliRunner().invoke(app, command, catch_exceptions=False)
    assert json.loads(done.stdout)["branches"] == ["a", "b", "c"]
    loaded, _ = load_base_language_model(Source(str(tmp_path / "moe"), dtype="float32"))
    experts = loaded.model.layers[1].mlp.experts.down_proj
    for expert, model in zip(experts, models, strict=True):
        assert torch.equal(expert, model.model.layers[1].mlp.down_proj.weight)
