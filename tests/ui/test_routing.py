"""Routing of a text: what the model's own routers choose, for every family that has them; and why a dense model has none."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from tests.families import FAMILIES
from tests.moe.mixture.models import language_model, saved_experts
from unmask.designs.design import parse_designs
from unmask.embedder import Embedder
from unmask.moe.mixture.gating import Routing, gates
from unmask.moe.mixture.model import Mixture
from unmask.moe.names import RouterPlacement
from unmask.ui.embedders import Embedders
from unmask.ui.routing import routes, routes_by_design
from unmask.ui.worker import Stop

TEXT = "A man plays a guitar."
MIXTURES = [name for name, family in FAMILIES.items() if family.experts]


@pytest.mark.parametrize("family", MIXTURES)
def test_every_family_shows_its_experts(family: str, pico: Callable[..., Embedder]) -> None:
    embedder = pico("causal/plain/mean", family=family)
    found = routes(embedder, TEXT)
    points = len(embedder.backbone.routers)
    assert len(set(found.points)) == points
    assert found.experts.shape[:2] == (len(embedder.tokenizer(TEXT)["input_ids"]), points)
    assert found.mean.shape == (points, FAMILIES[family].experts)
    assert (np.diff(found.weights, axis=-1) <= 0).all() and (found.weights >= 0).all()
    assert 1 <= found.experts.shape[2] <= 2


def test_the_choice_is_the_models_own(pico: Callable[..., Embedder]) -> None:
    embedder = pico("causal/plain/mean", family="mixtral")
    found = routes(embedder, TEXT)
    with torch.inference_mode():
        ids = torch.tensor([embedder.tokenizer(TEXT)["input_ids"]])
        logits = embedder.backbone.model(input_ids=ids, output_router_logits=True).router_logits
    for point, scores in enumerate(logits):
        best = scores.float().softmax(-1).topk(2, dim=-1)
        assert np.array_equal(found.experts[:, point], best.indices.numpy())
        weights = (best.values / best.values.sum(-1, keepdim=True)).numpy()  # mixtral renormalises
        assert np.allclose(found.weights[:, point], weights, atol=1e-5)


@pytest.mark.parametrize(("router", "base"), zip(get_args(RouterPlacement), cycle(["llama", "olmoe"]), strict=False))
def test_a_mixture_of_ours_shows_its_own_experts_by_name(
    router: RouterPlacement, base: str, tokenizer: Any, tmp_path: Path
) -> None:
    model = language_model(base)
    routing = Routing(router, top_k=2)
    mixture = Mixture(model, saved_experts(tmp_path, model, ("math", "code", "law")), routing)
    embedder = Embedder.from_model(mixture.body, tokenizer, "causal/plain/mean")
    found = routes(embedder, TEXT)
    blocks = ("1.1", "1.2", "2.1", "2.2", "3.1", "3.2")
    assert found.points == (blocks if base == "llama" else ("1", "2", "3"))  # olmoe's own experts carry none of ours
    with mixture.record_logits() as recorded, torch.inference_mode():
        mixture.body(input_ids=torch.tensor([tokenizer(TEXT)["input_ids"]]), use_cache=False)
    for point, logits in enumerate(recorded):
        expected = gates(logits[0], routing).sort(dim=-1, descending=True)
        assert np.allclose(found.weights[:, point], expected.values[:, :2], atol=1e-6)
        assert np.array_equal(found.experts[:, point], expected.indices[:, :2])
    answer = routes_by_design(Embedders(embedder, {}), ["causal/plain/mean"], TEXT, Stop())
    assert found.applied and answer["expert_names"] == ["math", "code", "law"]


def test_the_most_used_experts_come_first(pico: Callable[..., Embedder]) -> None:
    embedder = pico("causal/plain/mean", family="olmoe")
    route = routes(embedder, TEXT)
    answer = routes_by_design(Embedders(embedder, parse_designs("mean,last")), ["mean", "last"], TEXT, Stop())
    assert answer["expert_names"] == [] and answer["routes"][0]["names"] == ["mean", "last"]
    top = answer["routes"][0]["top"]
    assert [one["weight"] for one in top] == sorted((one["weight"] for one in top), reverse=True)
    assert top[0]["weight"] == pytest.approx(route.mean.max(), abs=1e-4)
    assert route.mean[top[0]["point"], top[0]["expert"]] == route.mean.max()
