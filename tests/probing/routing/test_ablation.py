"""An expert that is removed acts on no token, the others act as strongly as before, and losses change where it was used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.mixture.models import language_model, saved_experts
from tests.probing.routing.recorded import topical
from unmask.encoding.tokenization import PromptTokenizer
from unmask.errors import UnmaskError
from unmask.mixture.gating import Routing
from unmask.mixture.mixture_folder import Mixture
from unmask.models.decoder import body_of
from unmask.models.routers import proven_routers
from unmask.probing.routing.ablation import ablate_experts, removed, text_losses, without_expert

TEXTS = [text.text for text in topical(8).texts]
TOPICS = [text.values[0] for text in topical(8).texts]


def chosen_experts(model: Any, ids: torch.Tensor) -> list[torch.Tensor]:
    """What the experts' modules are told to use."""
    told: list[torch.Tensor] = []
    hooks = [
        layer.mlp.experts.register_forward_pre_hook(lambda _, args: told.append(args[1].clone()))
        for layer in body_of(model).layers
    ]
    with torch.no_grad():
        model(ids)
    for hook in hooks:
        hook.remove()
    return told


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


@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_a_removed_expert_of_our_mixture(top_k: int, tokenizer: Any, tmp_path: Path) -> None:
    model = language_model(vocab_size=512, max_position_embeddings=512)
    mixture = Mixture(model, saved_experts(tmp_path, model), Routing(top_k=top_k))
    torch.manual_seed(1)
    torch.nn.init.normal_(mixture.routers["router"].weight, std=0.5)
    found = ablate_experts(model, tokenizer, TEXTS, TOPICS)
    assert found.labels == ("music", "sport") and found.experts == (0, 1, 2)
    assert np.abs([[change.value for change in own] for own in found.changes]).max() > 1e-4
    whole = text_losses(model, list(PromptTokenizer(tokenizer, "plain", 512).tokenize(TEXTS)))
    assert found.loss[0] == pytest.approx(whole[[place for place, topic in enumerate(TOPICS) if topic == "music"]].mean())
    with pytest.raises(UnmaskError, match="remove it at all routing points"):
        ablate_experts(model, tokenizer, TEXTS, TOPICS, points=[0])


def test_an_expert_that_nobody_uses_changes_nothing(tokenizer: Any) -> None:
    model, texts = language_model("olmoe", vocab_size=512), ["guitar", "ball"]
    used = {
        int(place)
        for text in texts
        for place in chosen_experts(model, torch.tensor([tokenizer(text)["input_ids"]]))[0][
            :-1
        ].flatten()  # the last predicts nothing
    }
    assert 0 < len(used) < 8
    found = ablate_experts(model, tokenizer, texts, ["a", "b"], points=[0])
    for expert, changes in zip(found.experts, found.changes, strict=True):
        assert (expert in used) == any(abs(change.value) > 1e-6 for change in changes)


def test_losses_do_not_depend_on_the_batch(tokenizer: Any) -> None:
    model = language_model("olmoe", vocab_size=512)
    tokenized = list(PromptTokenizer(tokenizer, "plain", 512).tokenize(TEXTS))
    assert np.allclose(text_losses(model, tokenized), text_losses(model, tokenized, batch_tokens=1), atol=1e-5)


def test_what_cannot_be_ablated(tokenizer: Any) -> None:
    with pytest.raises(UnmaskError, match="it is dense"):
        ablate_experts(language_model(vocab_size=512), tokenizer, TEXTS, TOPICS)
    model = language_model("olmoe", vocab_size=512)
    with pytest.raises(UnmaskError, match="8 texts and 3 labels"):
        ablate_experts(model, tokenizer, TEXTS, TOPICS[:3])
    with pytest.raises(UnmaskError, match="fewer than two tokens"):
        ablate_experts(model, tokenizer, ["x"], ["a"])
