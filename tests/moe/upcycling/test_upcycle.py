"""Upcycling: the mixture computes what the dense model did, loads anywhere, and can be trained away from it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.families import _TOKENS, FAMILIES
from unmask.errors import UnmaskError
from unmask.models.loading import Source, load_base_language_model
from unmask.models.routers import find_routers
from unmask.moe.upcycling import (
    TARGETS,
    UpcycleOptions,
    save_upcycled,
    sizes,
    upcycle,
)

PLAIN = UpcycleOptions(experts=4, noise=0.0)
TAKEN = {
    "llama": "mixtral",
    "mistral": "mixtral",
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


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(3, 512, (2, 20), generator=torch.Generator().manual_seed(1))
    real = torch.ones_like(ids, dtype=torch.bool)
    real[1, 13:] = False
    return ids, real


def expert_weights(model: Any) -> list[torch.Tensor]:
    return [weight for name, weight in model.named_parameters() if ".experts." in name]


def test_every_target_is_reached_from_some_family() -> None:
    assert set(TAKEN.values()) == {target.model_type for target in TARGETS}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", TAKEN)
def test_plain_copies_compute_what_the_dense_model_did(family: str, tied: bool) -> None:
    dense = headed(family, tie_word_embeddings=tied)
    done = upcycle(dense, PLAIN)
    assert done.target.model_type == done.model.config.model_type == TAKEN[family]
    assert done.difference < 1e-5
    ids, real = batch()  # other texts than those of the proof, and the windows as they are
    with torch.no_grad():
        before, after = (model(input_ids=ids, attention_mask=real.long()).logits[real] for model in (dense, done.model))
    torch.testing.assert_close(after, before, rtol=0, atol=1e-5 * float(before.abs().max()))
    assert len(find_routers(done.model)) == 3
    assert (done.model.get_input_embeddings().weight is done.model.get_output_embeddings().weight) is tied


def test_the_dense_model_stays_as_it_was_and_its_dtype_is_kept() -> None:
    dense = headed()
    for parameter in dense.parameters():  # as from_pretrained does; model.to() would round the rotary frequencies too
        parameter.data = parameter.data.to(torch.bfloat16)
    before = {name: weight.clone() for name, weight in dense.state_dict().items()}
    pointers = [weight.data_ptr() for weight in dense.parameters()]
    sparse = upcycle(dense, PLAIN).model
    assert {weight.dtype for weight in sparse.parameters()} == {torch.bfloat16}
    assert {weight.dtype for weight in sparse.buffers()} == {torch.float32}  # rotary frequencies are never rounded
    assert pointers == [weight.data_ptr() for weight in dense.parameters()]
    assert all(torch.equal(weight, before[name]) for name, weight in dense.state_dict().items())
    gate = dense.model.layers[0].mlp.gate_proj.weight
    assert all(torch.equal(expert, gate) for expert in sparse.model.layers[0].mlp.experts.gate_up_proj[:, : len(gate)])


@pytest.mark.parametrize("family", ["llama", "qwen2-sliding", "qwen3"])
def test_saved_and_loaded_by_transformers_it_is_bit_equal(family: str, tokenizer: Any, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    options = UpcycleOptions(experts=4)
    done = upcycle(headed(family), options)
    save_upcycled(done, tokenizer, tmp_path / "new" / "moe", "somewhere/pico", options)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "new" / "moe", dtype="auto").eval()
    assert type(loaded) is type(done.model)
    assert loaded.config.output_router_logits and loaded.config.router_aux_loss_coef == options.aux_loss
    ids, real = batch()
    with torch.no_grad():
        one, other = (model(input_ids=ids, attention_mask=real.long()).logits for model in (done.model, loaded))
    assert torch.equal(one, other)
    card = (tmp_path / "new" / "moe" / "README.md").read_text(encoding="utf-8")
    assert "somewhere/pico" in card and "NOT been trained" in card and f"{done.difference:.2g}" in card
    with pytest.raises(UnmaskError, match="not empty"):
        save_upcycled(done, tokenizer, tmp_path / "new" / "moe", "somewhere/pico", options)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["moe"]


# --- breaking the symmetry -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "routers", "experts"),
    [
        ({"noise": 0.05}, False, True),
        ({"drop": 0.25}, False, True),
        ({"router_std": 0.5}, True, False),
        ({"seed": 1}, True, False),
        ({"seed": 1, "noise": 0.01}, True, True),
    ],
)
def test_an_option_changes_what_it_says_and_nothing_else(changes: dict[str, Any], routers: bool, experts: bool) -> None:
    dense = headed()
    one, other = (dict(upcycle(dense, options).model.named_parameters()) for options in (PLAIN, replace(PLAIN, **changes)))
    changed = {name for name, weight in one.items() if not torch.equal(weight, other[name])}
    assert any(".gate.weight" in name for name in changed) == routers
    assert any(".experts." in name for name in changed) == experts
    assert all(".gate.weight" in name or ".experts." in name for name in changed)


@pytest.mark.parametrize(("noise", "from_text"), [(0.0, False), (0.01, True)])
def test_the_router_learns_from_text_only_where_experts_differ(noise: float, from_text: bool) -> None:
    sparse = upcycle(headed(), replace(PLAIN, noise=noise, aux_loss=0.0)).model
    ids, _ = batch()
    sparse(input_ids=ids, labels=ids).loss.backward()
    routers = [weight.grad for name, weight in sparse.named_parameters() if name.endswith(".gate.weight")]
    largest = max(float(gradient.abs().max()) for gradient in routers)
    assert (largest > 1e-4) == from_text, largest


# --- layers, sizes, load ---------------------------------------------------------------------------------------------


def test_sizes_are_those_of_three_copies_more_and_two_at_work() -> None:
    dense = headed()
    mlps, routers = 3 * 3 * 64 * 96, 3 * 4 * 64
    before = sum(weight.numel() for weight in dense.parameters())
    assert sizes(dense, 2) == (before, before)
    assert sizes(upcycle(dense, PLAIN).model, 2) == (before + 3 * mlps + routers, before + mlps + routers)


# --- what is refused -------------------------------------------------------------------------------------------------


# --- the command -----------------------------------------------------------------------------------------------------


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    from unmask.cli import main

    monkeypatch.setattr(sys, "argv", ["unmask", "upcycle", *map(str, arguments)])
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def test_the_command_writes_a_mixture_once(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import json

    headed().save_pretrained(tmp_path / "dense")
    tokenizer.save_pretrained(tmp_path / "dense")
    given = (tmp_path / "dense", "-o", tmp_path / "moe", "--experts", "4", "--dtype", "float32", "--json")
    assert run(monkeypatch, *given) == 0
    said = json.loads(capfd.readouterr().out)
    assert (said["architecture"], said["dtype"]) == ("mixtral", "float32")
    assert said["difference"] < 1e-5
    sparse, _ = load_base_language_model(Source(str(tmp_path / "moe"), dtype="float32"))
    assert sizes(sparse, 2) == (said["parameters"], said["active_parameters"])
    assert run(monkeypatch, *given) == 2
    assert "not empty" in capfd.readouterr().err
    assert run(monkeypatch, tmp_path / "moe", "-o", tmp_path / "again") == 2
    assert "already" in capfd.readouterr().err
    assert not (tmp_path / "again").exists()
