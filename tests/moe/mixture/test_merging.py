"""Merges: of task vectors, against their definitions by hand, and against a mixture at fixed gates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.moe.mixture.models import language_model, saved_experts, tokens
from unmask.moe.mixture.merging import merge_experts
from unmask.moe.mixture.model import Mixture

NAME = "model.layers.0.self_attn.v_proj"


def merged(experts: Any, method: Any, **options: Any) -> Any:
    return merge_experts(language_model(), experts, method, **options)


def change(model: Any) -> torch.Tensor:
    return model.get_submodule(NAME).weight.detach() - language_model().get_submodule(NAME).weight.detach()  # type: ignore[no-any-return]


def vectors(experts: Any) -> list[torch.Tensor]:
    return [up @ down for down, up in (expert.factors[NAME] for expert in experts)]


@pytest.fixture
def experts(tmp_path: Path) -> Any:
    return saved_experts(tmp_path, language_model())


@pytest.mark.parametrize(("method", "density"), [("linear", None), ("ties", 1.0)])
def test_one_expert_at_weight_one_is_itself(method: Any, density: float | None, experts: Any) -> None:
    ids = tokens(language_model())
    model = language_model()
    mixture = Mixture(model, experts[:1])
    with torch.no_grad(), mixture.only(experts[0].name):
        expected = model(input_ids=ids).logits
        assert torch.allclose(
            merged(experts[:1], method, weights=[1.0], density=density)(input_ids=ids).logits, expected, atol=1e-4
        )


def test_a_linear_merge_is_the_mixture_at_fixed_gates(experts: Any) -> None:
    ids, gates = tokens(language_model()), torch.tensor([0.2, 0.5, -0.3])
    model = language_model()
    mixture = Mixture(model, experts)
    with torch.no_grad(), mixture.with_gates(lambda logits: gates.expand(logits.shape)):
        expected = model(input_ids=ids).logits
        found = merged(experts, "linear", weights=gates.tolist())(input_ids=ids).logits
    assert torch.allclose(found, expected, atol=1e-3)
    assert torch.allclose(change(merged(experts, "linear")), sum(vectors(experts)) / 3, atol=1e-5)  # type: ignore[arg-type]


@pytest.mark.parametrize(("method", "density"), [("linear", None), ("ties", 0.4), ("dare", 0.4)])
def test_the_order_of_experts_changes_nothing(method: Any, density: float | None, experts: Any) -> None:
    one = change(merged(experts, method, density=density, weights=[1.0, 2.0, 3.0]))
    other = change(merged(experts[::-1], method, density=density, weights=[3.0, 2.0, 1.0]))
    assert torch.allclose(one, other, atol=1e-5)
    assert not torch.allclose(one, change(merged(experts, method, density=density, weights=[3.0, 2.0, 1.0])), atol=1e-3)


def test_ties_by_hand(experts: Any) -> None:
    kept = []
    for vector in vectors(experts):
        size = int(0.3 * vector.numel())
        smallest = vector.abs().flatten().sort(descending=True).values[size - 1]
        kept.append(torch.where(vector.abs() >= smallest, vector, 0.0))
    stacked = torch.stack(kept)
    sign = torch.where(stacked.sum(dim=0) >= 0, 1.0, -1.0)
    agree = (stacked.sign() == sign) & (stacked != 0)
    expected = (stacked * agree).sum(dim=0) / agree.sum(dim=0).clamp_min(1)
    assert torch.allclose(change(merged(experts, "ties", density=0.3)), expected, atol=1e-5)


def test_dare_keeps_a_share_and_its_mean(experts: Any) -> None:
    vector = vectors(experts[:1])[0]
    found = change(merged(experts[:1], "dare", density=0.5))
    zero = found.abs() < 1e-6
    assert 0.4 < zero.float().mean() < 0.6
    assert torch.allclose(found[~zero], (2 * vector)[~zero], atol=1e-5)
    assert not torch.allclose(found, change(merged(experts[:1], "dare", density=0.5, seed=1)))
