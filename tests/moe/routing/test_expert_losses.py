"""An expert that is removed acts on no token, the others act as strongly as before, and losses change where it was used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.moe.mixture.models import language_model, saved_experts
from tests.moe.routing.recorded import texts_file, topical
from tests.probing.conftest import Run
from unmask.encoding.tokenization import PromptTokenizer
from unmask.errors import UnmaskError
from unmask.models.decoder import body_of
from unmask.models.routers import verify_routers
from unmask.models.source import Source
from unmask.moe.atlas.aggregate import aggregate
from unmask.moe.mixture.gating import Routing
from unmask.moe.mixture.model import Mixture
from unmask.moe.routing.expert_losses import Ablation, ablate_experts, route_around, text_losses, without_expert
from unmask.moe.routing.record import Removal, read_expert_losses, read_record
from unmask.saving.load_model import load_encoder

TEXTS = [text.text for text in topical(24).texts]


def test_the_best_free_expert_takes_over_or_the_others_grow() -> None:
    weights = torch.tensor([[0.5, 0.3, 0, 0], [0, 0.2, 0.6, 0]])
    scores = torch.tensor([[3.0, 2, 1, 0], [0, 1, 3, 0.5]])
    assert torch.allclose(without_expert(weights, scores, 0), torch.tensor([[0, 0.3, 0.5, 0], [0, 0.2, 0.6, 0]]))
    assert torch.allclose(without_expert(weights, scores, 2), torch.tensor([[0.5, 0.3, 0, 0], [0, 0.2, 0, 0.6]]))
    every = torch.tensor([[0.5, 0.3, 0.2]])
    assert torch.allclose(without_expert(every, every.log(), 0), torch.tensor([[0, 0.6, 0.4]]))


@pytest.mark.parametrize("family", ["olmoe", "mixtral", "deepseek-v3"])
def test_a_removed_expert_of_a_native_mixture_acts_on_no_token(family: str, tokenizer: Any) -> None:
    model = language_model(family, vocab_size=512)
    body, ids = body_of(model), torch.tensor([tokenizer(TEXTS[0])["input_ids"]])
    routers = verify_routers(body)
    layers = [layer for layer in body.layers if hasattr(layer.mlp, "experts")]

    def used() -> list[torch.Tensor]:
        found: list[torch.Tensor] = []
        hooks = [layer.mlp.experts.register_forward_pre_hook(lambda _, args: found.append(args[1].clone())) for layer in layers]
        with torch.no_grad():
            model(ids)
        for hook in hooks:
            hook.remove()
        return found

    before = used()
    expert = int(before[0].flatten()[0])
    with route_around(body, routers, range(len(routers)), expert):
        without = used()
    assert all((indices != expert).all() for indices in without)
    same = (before[0] != expert).all(dim=1)
    assert (without[0][same] == before[0][same]).all() and all(len(set(row.tolist())) == len(row) for row in without[0])
    assert all((one == other).all() for one, other in zip(used(), before, strict=True)), "and it is back"
    with route_around(body, routers, [1], expert):
        first, second, *_ = used()
    assert (first == before[0]).all() and (second != expert).all(), "at one point only"


def saved_mixture(base: Path, folder: Path, top_k: int) -> Path:
    model = load_encoder(Source(str(base)), "causal", predicts=True).language_model
    mixture = Mixture(model, saved_experts(folder / "experts", model), Routing(top_k=top_k), source=Source(str(base)))
    torch.manual_seed(1)
    torch.nn.init.normal_(mixture.routers["router"].weight, std=0.5)
    mixture.save_pretrained(folder / "mixture")
    return folder / "mixture"


@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_an_expert_of_our_mixture_is_removed_in_all_blocks(top_k: int, base: Path, tmp_path: Path) -> None:
    encoder = load_encoder(Source(str(saved_mixture(base, tmp_path, top_k))), "causal", predicts=True)
    found = ablate_experts(encoder, TEXTS)
    assert [removal.expert for removal in found.removals] == [0, 1, 2] and len({one.points for one in found.removals}) == 1
    assert np.abs(found.changes).max() > 1e-4
    tokens = list(PromptTokenizer(encoder.tokenizer, "plain", 512).tokenize(TEXTS))
    assert np.allclose(found.loss, text_losses(encoder.language_model, tokens))
    with pytest.raises(UnmaskError, match="remove it at all routing points"), route_around(encoder.backbone.model, [], [0], 0):
        pass


def test_losses_by_label_are_means_of_the_texts_of_each_value() -> None:
    found = Ablation((), (Removal((0,), 0),), np.array([1.0, 2, 3, 4]), np.array([[0.1, 0.3, -0.2, 0.0]]))
    by_topic = found.by_label(["b", "b", "a", "b"])
    assert by_topic.values == ("a", "b") and [one.value for one in by_topic.loss] == pytest.approx([3, 7 / 3])
    assert [one.value for one in by_topic.changes[0]] == pytest.approx([-0.2, 0.4 / 3])
    assert by_topic.changes[0][0].interval is None, "one text has no interval"


@pytest.mark.parametrize("kind", ["native", "ours"])
def test_the_command_writes_what_the_function_finds_and_the_atlas_shows_it(
    kind: str, run: Run, base: Path, tokenizer: Any, tmp_path: Path
) -> None:
    if kind == "native":
        language_model("olmoe", vocab_size=512).save_pretrained(tmp_path / "model")
        tokenizer.save_pretrained(tmp_path / "model")
    model = tmp_path / "model" if kind == "native" else saved_mixture(base, tmp_path, 1)
    given = ("-m", model, "-t", texts_file(tmp_path), "--label", "topic", "--label", "size", "-o", tmp_path / "out")
    assert run("routing", *given)[0] == 0
    assert aggregate(read_record(tmp_path / "out"))["removal"] is None
    code, out, err = run("experts", *given)
    assert code == 0, err
    found = read_expert_losses(tmp_path / "out")
    assert found is not None and found.texts == 24 and found.labels["size"].values == ("long", "short")
    alone = ablate_experts(load_encoder(Source(str(model)), "causal", predicts=True), TEXTS)
    assert found.removals == alone.removals and len(found.removals) == (24 if kind == "native" else 3)
    assert [one.value for one in found.changes] == pytest.approx(alone.changes.mean(axis=1).tolist(), abs=1e-6)
    assert found.loss.interval is not None
    low, high = found.loss.interval
    assert f"{found.loss.value:.3f} (95 %: {low:.3f} to {high:.3f}) nats per token" in " ".join(out.split())
    assert f"{max(one.value for one in found.changes):+.3f}" in out and all(name in out for name in found.experts or ())
    assert json.loads(run("experts", *given, "--json")[1])["loss"]["value"] == pytest.approx(found.loss.value)
    assert aggregate(read_record(tmp_path / "out"))["removal"]["texts"] == 24
