"""Two records of the same tokens: the same routing, other names, other routing, other tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.moe.routing.recorded import native, topical
from unmask.moe.routing.agreement import Agreement, compare_records
from unmask.moe.routing.record import RoutingRecord
from unmask.moe.routing.recording import record_routing
from unmask.moe.routing.text_bootstrap import Draws

FEW = Draws(resamples=40, token_resamples=10)


@pytest.fixture
def model(tokenizer: Any) -> Any:
    return native("olmoe", tokenizer)


def recorded(model: Any, folder: Path) -> RoutingRecord:
    return record_routing(model, topical(24), folder)


def values(found: Agreement) -> dict[str, float]:
    return {name: measured.corrected for name, measured in found.measures.items()}


def test_a_record_agrees_with_itself(model: Any, tmp_path: Path) -> None:
    record = recorded(model, tmp_path / "one")
    found = compare_records(record, record, FEW)
    assert values(found) == pytest.approx({"kappa": 1, "AMI": 1, "saturation": 1})
    assert found.as_json()["measures"]["kappa"]["by_point"] == pytest.approx((1, 1, 1))


def test_experts_in_another_order_agree_but_for_saturation(model: Any, tmp_path: Path) -> None:
    one = recorded(model, tmp_path / "one")
    order = torch.tensor([1, 2, 3, 4, 5, 6, 7, 0])
    with torch.no_grad():
        for layer in model.backbone.layers:
            for weight in (layer.mlp.gate.weight, layer.mlp.experts.gate_up_proj, layer.mlp.experts.down_proj):
                weight.copy_(weight[order].clone())
    other = recorded(model, tmp_path / "other")
    found = values(compare_records(one, other, FEW))
    assert found["kappa"] == pytest.approx(1, abs=0.02) and found["AMI"] == pytest.approx(1, abs=0.02)
    assert found["saturation"] < 0.5
