"""Branches as experts: equal branches change nothing, an expert is its branch, and what is no branch of the base is refused."""

from __future__ import annotations

import copy
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.moe.upcycling.test_upcycle import PLAIN, TAKEN, batch, headed
from unmask.models.loading import Source, load_base_language_model
from unmask.moe.upcycling import Branch, load_branch, save_upcycled, upcycle

THREE = replace(PLAIN, experts=3)


def trained(dense: Any, seed: int, only_mlp: bool = False) -> Any:
    """A copy of a model whose weights moved a little, as training moves them."""
    model = copy.deepcopy(dense)
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        if ".mlp." in name or not only_mlp:
            weight.data += (0.05 * torch.randn(weight.shape, generator=generator)).to(weight.dtype)
    return model


def branch(name: str, model: Any) -> Branch:
    return Branch(name, {path: weight.detach() for path, weight in model.named_parameters()})


def branches(dense: Any, only_mlp: bool = False) -> tuple[list[Any], list[Branch]]:
    models = [trained(dense, seed, only_mlp) for seed in range(3)]
    return models, [branch(name, model) for name, model in zip("abc", models, strict=True)]


def by_hand(dense: Any, models: list[Any], chosen: int) -> Any:
    """The dense model with the MLPs of one branch, and the mean of all branches elsewhere."""
    mean = copy.deepcopy(dense)
    for name, weight in mean.named_parameters():
        of_branches = [dict(model.named_parameters())[name].data for model in models]
        weight.data = of_branches[chosen] if ".mlp." in name else sum(of_branches) / len(of_branches)
    return mean


def logits(model: Any) -> torch.Tensor:
    ids, real = batch()
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=real.long()).logits[real]


def close(one: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=1e-5 * float(other.abs().max()))


# --- what the mixture computes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", TAKEN)
def test_branches_equal_to_the_base_give_the_upcycled_base(family: str) -> None:
    dense, options = headed(family), replace(THREE, noise=0.01)
    same = [branch(name, dense) for name in "abc"]
    plain, mixed = upcycle(dense, options).model, upcycle(dense, options, same).model
    for (name, one), (_, other) in zip(plain.named_parameters(), mixed.named_parameters(), strict=True):
        assert torch.equal(one, other), name


@pytest.mark.sample(8)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", TAKEN)
def test_each_expert_is_its_branch_and_the_rest_is_the_mean(family: str, tied: bool) -> None:
    dense = headed(family, tie_word_embeddings=tied)
    models, given = branches(dense)
    for chosen in range(3):
        mixed = upcycle(dense, THREE, given).model
        for name, weight in mixed.named_parameters():
            if ".experts." in name:  # whatever the router says, this expert computes
                weight.data[:] = weight.data[chosen].clone()
        close(logits(mixed), logits(by_hand(dense, models, chosen)))
        assert float((logits(mixed) - logits(by_hand(dense, models, (chosen + 1) % 3))).abs().max()) > 0.01


def test_with_a_one_hot_router_and_trained_mlps_alone_the_mixture_is_the_branch() -> None:
    dense = headed()
    models, given = branches(dense, only_mlp=True)
    mixed = upcycle(dense, THREE, given).model
    for chosen in range(3):

        def one_hot(_module: Any, _inputs: Any, output: Any, chosen: int = chosen) -> Any:
            scores, weights, indices = output
            indices[:, 0], indices[:, 1] = chosen, (chosen + 1) % 3
            weights[:, 0], weights[:, 1] = 1, 0
            return scores, weights, indices

        hooks = [layer.mlp.gate.register_forward_hook(one_hot) for layer in mixed.model.layers]
        close(logits(mixed), logits(models[chosen]))
        for hook in hooks:
            hook.remove()


def test_weights_that_no_branch_changed_stay_bit_equal() -> None:
    dense = headed()
    for weight in dense.parameters():
        weight.data = weight.data.bfloat16()
    mixed = dict(upcycle(dense, THREE, branches(dense, only_mlp=True)[1]).model.named_parameters())
    kept = [name for name, _ in dense.named_parameters() if ".mlp." not in name]
    assert kept and all(torch.equal(mixed[name], weight) for name, weight in dense.named_parameters() if name in kept)
    assert {weight.dtype for weight in mixed.values()} == {torch.bfloat16}


def test_saved_and_loaded_it_is_bit_equal_and_its_card_names_the_experts(tokenizer: Any, tmp_path: Path) -> None:
    dense = headed()
    done = upcycle(dense, THREE, branches(dense)[1])
    save_upcycled(done, tokenizer, tmp_path / "moe", "pico", THREE)
    loaded, _ = load_base_language_model(Source(str(tmp_path / "moe"), dtype="float32"))
    assert torch.equal(logits(loaded.eval()), logits(done.model))
    card = (tmp_path / "moe" / "README.md").read_text(encoding="utf-8")
    assert "- expert 0: a\n- expert 1: b\n- expert 2: c\n" in card and "NOT been trained" in card


# --- loading, and what is refused ----------------------------------------------------------------------------------------


def saved(model: Any, tokenizer: Any, folder: Path) -> str:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def load(dense: Any, tokenizer: Any, folder: str) -> Branch:
    return load_branch("a", Source(folder, dtype="float32"), dense, tokenizer)


# --- the command -----------------------------------------------------------------------------------------------------


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    from unmask.cli import main

    monkeypatch.setattr(sys, "argv", ["unmask", "upcycle", *map(str, arguments)])
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def test_the_command_makes_experts_of_branches(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    dense = headed()
    base = saved(dense, tokenizer, tmp_path / "base")
    models, _ = branches(dense)
    given = [f"{name}={saved(model, tokenizer, tmp_path / name)}" for name, model in zip("abc", models, strict=True)]
    options = [part for one in given for part in ("--branch", one)]
    assert run(monkeypatch, base, "-o", tmp_path / "moe", *options, "--dtype", "float32", "--json") == 0
    said = json.loads(capfd.readouterr().out)
    assert said["branches"] == ["a", "b", "c"]
    loaded, _ = load_base_language_model(Source(str(tmp_path / "moe"), dtype="float32"))
    assert loaded.config.num_local_experts == 3
    experts = loaded.model.layers[1].mlp.experts.down_proj
    assert all(
        torch.equal(expert, model.model.layers[1].mlp.down_proj.weight) for expert, model in zip(experts, models, strict=True)
    )
