"""Copies of an expert are alike in outputs and weights; others are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.moe.mixture.models import language_model, saved_experts
from tests.moe.routing.recorded import native, topical
from unmask.moe.routing.expert_losses import _outputs, factor_overlaps, output_differences

TEXTS = [text.text for text in topical(8).texts]


@pytest.mark.parametrize("family", ["olmoe", "deepseek-v3", "gpt-oss"])
def test_experts_of_a_native_mixture(family: str, tokenizer: Any) -> None:
    model = native(family, tokenizer)
    found = output_differences(model, TEXTS)
    assert [one.point for one in found.points] == [
        name
        for name, module in model.backbone.model.named_modules()
        if module in {router.module for router in model.backbone.routers}
    ]
    compared: list[Any] = [*found.points, found]
    for one in compared:
        assert one.cka is not None and one.cka.interval is not None and one.cosine.interval is not None
        assert abs(one.cosine.value) < 0.3 and one.cka.value < 0.9
        for measure in (one.cosine, one.cka):
            assert measure.interval[0] < measure.value < measure.interval[1]
    for name in ("cosine", "cka"):
        assert getattr(found, name).value == pytest.approx(np.mean([getattr(one, name).value for one in found.points]))


def test_copies(tokenizer: Any) -> None:
    model = native("olmoe", tokenizer)
    experts: Any = model.backbone.layers[0].mlp.experts  # type: ignore[union-attr]
    with torch.no_grad():
        for weight in (experts.gate_up_proj, experts.down_proj):
            weight.copy_(weight[:1].expand_as(weight).clone())
    first, second, _ = output_differences(model, TEXTS).points
    assert first.cosine.value == pytest.approx(1, abs=1e-5)
    assert first.cka is not None and first.cka.value == pytest.approx(1, abs=1e-5)
    assert first.cka.interval == pytest.approx((1, 1), abs=1e-4)
    assert second.cosine.value < 0.3


def test_outputs_are_those_of_the_experts(tokenizer: Any) -> None:
    experts: Any = native("olmoe", tokenizer).backbone.layers[1].mlp.experts  # type: ignore[union-attr]
    hidden = torch.randn(5, 64)
    found = _outputs(experts, hidden)
    assert found.shape == (8, 5, 64)
    gate, up = (hidden @ experts.gate_up_proj[3].T).chunk(2, dim=-1)
    expected = (torch.nn.functional.silu(gate) * up) @ experts.down_proj[3].T
    assert np.allclose(found[3], expected.detach(), atol=1e-4)


def test_directions_of_lora_experts(tmp_path: Path) -> None:
    model = language_model(vocab_size=512)
    experts = saved_experts(tmp_path, model)
    found = factor_overlaps(experts)
    assert set(found) == set(experts[0].factors)
    assert np.mean(list(found.values())) == pytest.approx(2 / 64, abs=0.02), "two random directions of 64"
    assert factor_overlaps([experts[0], experts[0]])[next(iter(found))] == pytest.approx(1)
