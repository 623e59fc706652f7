"""The products of experts in training: the same function as transformers', in bfloat16 under autocast."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.families import FAMILIES
from tests.training.test_stages import mixture, next_token
from unmask.designs.design import Design
from unmask.training import expert_products
from unmask.training.expert_products import as_before, speed_up_experts
from unmask.training.trainee import Trainee

WITH_EXPERTS = [name for name, family in FAMILIES.items() if family.experts]


def outcome(model: Any) -> list[Tensor]:
    """The states of some tokens, and the gradients of all weights. Models do not train here: some add noise to their routers then."""
    model.zero_grad()
    ids = torch.arange(26).view(2, 13) + 5
    states = model(input_ids=ids).last_hidden_state
    (states.float() * torch.randn(states.shape, generator=torch.Generator().manual_seed(0))).sum().backward()
    return [states.detach(), *(weight.grad for weight in model.parameters() if weight.grad is not None)]


@pytest.mark.parametrize("name", WITH_EXPERTS)
def test_added_tokens_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A multiple of 5 adds tokens to nearly every expert, and leaves a rest where a token has several experts."""
    monkeypatch.setattr(expert_products, "_MULTIPLE", 5)
    model = FAMILIES[name].build().eval()
    before, chosen = outcome(model), model.config._experts_implementation
    speed_up_experts(model)
    assert (model.config._experts_implementation != chosen) == (chosen == "grouped_mm")
    for ours, plain in zip(outcome(model), before, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5 * float(plain.abs().max()))
    as_before(model)
    assert model.config._experts_implementation == chosen


def test_under_autocast_experts_compute_in_bfloat16_and_keep_gradients_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expert_products, "_MULTIPLE", 4)
    model = FAMILIES["mixtral"].build().eval()
    exact = outcome(model)
    speed_up_experts(model)
    dtypes, sizes = set(), set()

    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.overloadpacket is torch.ops.aten._grouped_mm:
                dtypes.add(args[1].dtype)
                sizes.update(torch.diff(args[2], prepend=torch.zeros(1)).tolist())
            return func(*args, **(kwargs or {}))

    with Products(), torch.autocast("cpu", torch.bfloat16):
        rounded = outcome(model)
    assert dtypes == {torch.bfloat16} and not any(size % 4 for size in sizes), "few sizes"
    for ours, plain in zip(rounded, exact, strict=True):
        assert ours.dtype == torch.float32 or ours is rounded[0]
        assert torch.cosine_similarity(ours.float().flatten(), plain.flatten(), dim=0) > 0.95


def test_a_stage_in_bfloat16_computes_so_and_its_end_undoes_it(tmp_path: Path, model: Path) -> None:
    from transformers import AutoTokenizer

    place = mixture(tmp_path, "mixtral", AutoTokenizer.from_pretrained(model))
    for dtype, rounded in (("bfloat16", True), ("float32", False)):
        made = next_token(place).model_copy(update={"dtype": dtype})
        trainee = Trainee.load(made, Design.parse(made.designs[0]), 0)
        config = trainee.backbone.model.config
        usual = config._experts_implementation
        trainee.begin("next-token", 0)
        assert (config._experts_implementation != usual) == rounded
        trainee.end(merge=True)
        assert config._experts_implementation == usual == "grouped_mm"


def test_a_model_without_experts_and_no_torch_module_of_transformers_stay_as_they_are() -> None:
    speed_up_experts(torch.nn.Linear(2, 2))
    dense = FAMILIES["llama"].build()
    usual = dense.config._experts_implementation
    speed_up_experts(dense)
    outcome(dense)
    as_before(dense)
    assert dense.config._experts_implementation == usual
