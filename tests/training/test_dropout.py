"""Dropout from outside makes two views of a text, in training only; where it cannot act, training is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.training.test_collate import LENGTHS, RECIPE, rows_of, sets_of, text_of
from unmask.embedder import Embedder
from unmask.embedder_module import EmbedderModule
from unmask.encoding.tokenization import PromptTokenizer
from unmask.errors import UnmaskError
from unmask.training.collate import PairCollator
from unmask.training.dropout import DROPOUTS, layer_dropout, require_two_views
from unmask.training.recipe import Recipe
from unmask.training.stages import STAGES
from unmask.training.stages.contrastive import SimcseOptions
from unmask.training.trainee import Trainee

FAMILIES = ["llama", "gpt-neox", "gemma2", "falcon", "mixtral", "gpt-oss"]
# what does not go through transformers' attention interface, or only in its eager form, which is each model's own
WITHOUT = {"falcon": "Both views", "gemma2": "not 'eager'", "gpt-oss": "not 'eager'"}
ALL = [(family, where) for where in DROPOUTS for family in FAMILIES]
ACTING = [(family, where) for family, where in ALL if where == "layer" or family not in WITHOUT]


def batch_of(embedder: Embedder) -> dict[str, Any]:
    texts = [[text_of(length, length)] for length in LENGTHS[1:]]
    (chunk,) = PairCollator(PromptTokenizer(embedder.tokenizer, "plain", 64), 1 << 20)(rows_of(texts))["chunks"][:1]
    return dict(chunk)


def embedded(module: EmbedderModule, chunk: dict[str, Any]) -> Tensor:
    with torch.no_grad():
        return module(dict(chunk))["sentence_embedding"].clone()  # type: ignore[no-any-return]


def without_own_dropout(embedder: Embedder) -> EmbedderModule:
    """In training, with no dropout but ours, so that a difference can come from nowhere else."""
    module = EmbedderModule(embedder)
    module.train()
    for one in module.modules():
        if isinstance(one, torch.nn.Dropout):
            one.p = 0.0
    return module


@pytest.mark.sample(8)
@pytest.mark.parametrize(("family", "where"), ACTING)
def test_two_views_differ_in_training_alone(pico: Callable[..., Embedder], family: str, where: str) -> None:
    embedder = pico("bidirectional/plain/mean", family=family)
    module, chunk = without_own_dropout(embedder), batch_of(embedder)
    module.eval()
    plain = embedded(module, chunk)
    with DROPOUTS[where](embedder.backbone.model, embedder.backbone.layers, 0.3) as acted:
        assert torch.equal(embedded(module, chunk), plain)
        assert not acted.total()
        module.train()
        one, other = embedded(module, chunk), embedded(module, chunk)
        torch.manual_seed(3)
        again = embedded(module, chunk)
        torch.manual_seed(3)
        assert torch.equal(embedded(module, chunk), again), "the same seed has to drop the same"
        require_two_views(lambda: embedded(module, chunk), acted)
    assert acted.total() == 6 * embedder.backbone.depth
    assert bool(((one - other).abs().amax(dim=1) > 1e-4).all()), "both views of EVERY text have to differ"
    module.eval()
    assert torch.equal(embedded(module, chunk), plain)


@pytest.mark.parametrize(("family", "where"), [pair for pair in ALL if pair not in ACTING])
def test_where_it_cannot_act_it_is_refused(pico: Callable[..., Embedder], family: str, where: str) -> None:
    """With a model's own dropout left on: that alone makes vectors differ, and is not what was asked for."""
    embedder = pico("bidirectional/plain/mean", family=family)
    module, chunk = EmbedderModule(embedder).train(), batch_of(embedder)
    for one in module.modules():
        if isinstance(one, torch.nn.Dropout):
            one.p = 0.1
    with (
        pytest.raises(UnmaskError, match=WITHOUT[family]),
        DROPOUTS[where](embedder.backbone.model, embedder.backbone.layers, 0.3) as acted,
    ):
        require_two_views(lambda: embedded(module, chunk), acted)
    assert embedder.backbone.model.config._attn_implementation != "unmask_dropout"


def test_dropping_from_layers_keeps_the_mean(pico: Callable[..., Embedder]) -> None:
    """What a layer adds is dropped and scaled up for it, what it got is not: h + dropout(layer(h) - h)."""

    class Adds(torch.nn.Module):
        def forward(self, hidden_states: Tensor) -> Tensor:
            return hidden_states + 2.0

    layer, states = Adds().train(), torch.full((1, 1, 20_000), 5.0)
    with layer_dropout(layer, [layer], 0.25):
        out = layer(states)
        by_name = layer(hidden_states=states)
    for found in (out, by_name):
        assert sorted(found.unique().tolist()) == pytest.approx([5.0, 5.0 + 2.0 / 0.75])
    assert float((out == 5.0).float().mean()) == pytest.approx(0.25, abs=0.02)
    assert torch.equal(layer(states), states + 2.0)


@pytest.mark.parametrize("where", list(DROPOUTS))
def test_simcse_proves_its_views_before_it_trains(pico: Callable[..., Embedder], where: Any) -> None:
    data = sets_of([[text_of(length, length)] for length in LENGTHS])
    stage = SimcseOptions(data=("text",), steps=1, batch=4, lr=1.0, where=where)
    trainee = Trainee(Recipe.model_validate(RECIPE | {"designs": ["bidirectional/plain/mean"]}), pico(family="falcon"), None)
    ready = STAGES["simcse"].prepare(stage, trainee, [data], 0)
    state = torch.get_rng_state()
    if where == "attention":
        with pytest.raises(UnmaskError, match="would learn nothing"), ready.around():
            pass
        return
    with ready.around():
        assert torch.equal(torch.get_rng_state(), state), "the proof must not draw from what training draws from"
        assert ready.module.training
