"""An expert that is removed acts on no token, the others act as strongly as before, and losses change where it was used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.moe.mixture.models import language_model, saved_experts
from tests.moe.routing.recorded import topical
from unmask.encoding.backbone import Backbone
from unmask.encoding.loaded_model import LoadedModel
from unmask.encoding.tokenization import PromptTokenizer
from unmask.errors import UnmaskError
from unmask.models.decoder import body_of
from unmask.models.routers import proven_routers
from unmask.models.source import Source
from unmask.moe.mixture.gating import Routing
from unmask.moe.mixture.mixture_folder import Mixture
from unmask.moe.routing.expert_losses import Ablation, ablate_experts, removed, text_losses, without_expert
from unmask.moe.routing.record import Removal

TEXTS = [text.text for text in topical(8).texts]


def test_the_best_expert_that_is_free_takes_over() -> None:
    weights = torch.tensor([[0.5, 0.3, 0, 0], [0, 0.2, 0.6, 0]])
    scores = torch.tensor([[3.0, 2, 1, 0], [0, 1, 3, 0.5]])
    assert torch.allclose(without_expert(weights, scores, 0), torch.tensor([[0, 0.3, 0.5, 0], [0, 0.2, 0.6, 0]]))
    assert torch.allclose(without_expert(weights, scores, 2), torch.tensor([[0.5, 0.3, 0, 0], [0, 0.2, 0, 0.6]]))


def test_if_all_act_the_others_grow() -> None:
    weights = torch.tensor([[0.5, 0.3, 0.2]])
    found = without_expert(weights, weights.log(), 0)
    assert torch.allclose(found, torch.tensor([[0, 0.6, 0.4]])) and found.sum() == pytest.approx(1)


@pytest.mark.parametrize("family", ["olmoe", "mixtral", "deepseek_v3"])
def test_a_removed_expert_of_a_native_mixture_acts_on_no_token(family: str, tokenizer: Any) -> None:
    model = language_model(family.replace("_", "-"), vocab_size=512)
    body, ids = body_of(model), torch.tensor([tokenizer(TEXTS[0])["input_ids"]])
    routers = proven_routers(body)
    layers = [layer for layer in body.layers if hasattr(layer.mlp, "experts")]

    def told() -> list[torch.Tensor]:
        found: list[torch.Tensor] = []
        hooks = [layer.mlp.experts.register_forward_pre_hook(lambda _, args: found.append(args[1].clone())) for layer in layers]
        with torch.no_grad():
            model(ids)
        for hook in hooks:
            hook.remove()
        return found

    before = told()
    expert = int(before[0].flatten()[0])
    with removed(body, routers, range(len(routers)), expert):
        without = told()
    assert all((places != expert).all() for places in without)
    kept = (before[0] != expert).all(dim=1)
    assert (without[0][kept] == before[0][kept]).all() and all(len(set(row.tolist())) == len(row) for row in without[0])
    assert all((one == other).all() for one, other in zip(told(), before, strict=True)), "and it is back"
    with removed(body, routers, [1], expert):
        first, second, *_ = told()
    assert (first == before[0]).all() and (second != expert).all(), "at one point only"


def loaded(model: Any, tokenizer: Any) -> LoadedModel:
    return LoadedModel(Backbone(body_of(model), "causal"), tokenizer, Source("pico"), model)


@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_an_expert_of_our_mixture_is_removed_in_all_blocks(top_k: int, tokenizer: Any, tmp_path: Path) -> None:
    model = language_model(vocab_size=512, max_position_embeddings=512)
    mixture = Mixture(model, saved_experts(tmp_path, model), Routing(top_k=top_k))
    torch.manual_seed(1)
    torch.nn.init.normal_(mixture.routers["router"].weight, std=0.5)
    found = ablate_experts(loaded(model, tokenizer), TEXTS)
    assert [removal.expert for removal in found.removals] == [0, 1, 2] and len({one.points for one in found.removals}) == 1
    assert np.abs(found.without - found.loss).max() > 1e-4
    assert np.allclose(found.loss, text_losses(model, list(PromptTokenizer(tokenizer, "plain", 512).tokenize(TEXTS))))
    with pytest.raises(UnmaskError, match="remove it at all routing points"), removed(body_of(model), [], [0], 0):
        pass


def test_losses_by_label_are_means_of_the_texts_of_each_value() -> None:
    loss, change = np.array([1.0, 2, 3, 4]), np.array([0.1, 0.3, -0.2, 0.0])
    found = Ablation((), (Removal((0,), 0),), loss, (loss + change)[None])
    by_topic = found.by_label(["b", "b", "a", "b"])
    assert by_topic.values == ("a", "b") and [one.value for one in by_topic.loss] == pytest.approx([3, 7 / 3])
    assert [one.value for one in by_topic.changes[0]] == pytest.approx([-0.2, 0.4 / 3])
    assert by_topic.changes[0][0].interval is None, "one text has no interval"
    assert found.changes()[0].value == pytest.approx(0.05)
    with pytest.raises(UnmaskError, match="There are 4 texts and 2 labels"):
        found.by_label(["a", "b"])
