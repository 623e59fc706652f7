"""Usage: what routing says of a domain, by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.moe.experts.conftest import COLOURS, DOMAINS, SUMS
from tests.moe.mixture.models import language_model, saved_experts
from unmask.moe.experts.expert_usage import first_choices, measure_usage
from unmask.moe.experts.lessons.lessons import tokenize_lessons
from unmask.moe.mixture.gating import Routing
from unmask.moe.mixture.mixture_folder import Mixture


@pytest.fixture(params=["llama", "olmoe"])
def mixture(tmp_path: Path, request: pytest.FixtureRequest) -> Mixture:
    model = language_model(request.param, vocab_size=512, max_position_embeddings=512)
    mixture = Mixture(model, saved_experts(tmp_path, model, ["colours", "sums"]), Routing(top_k=1))
    torch.manual_seed(1)
    torch.nn.init.normal_(mixture.routers["router"].weight, std=0.5)
    return mixture


def test_first_choices_by_hand(mixture: Mixture, tokenizer: Any) -> None:
    lessons = [SUMS[0], replace(COLOURS[0], output=" ".join([COLOURS[0].output] * 9))]
    found, answering, strength = first_choices(mixture, tokenizer, lessons, 512, batch_tokens=60)  # each in a batch of its own
    sums = []
    for place, tokens in enumerate(tokenize_lessons(tokenizer, lessons, 512)):
        points: list[torch.Tensor] = []
        hooks = [
            point.register_forward_hook(
                lambda point, hidden, _, points=points: points.append(point.router(hidden[0]).flatten(0, -2))
            )
            for point in mixture.points.values()
        ]
        with torch.no_grad():
            mixture.body(torch.tensor([tokens.ids]))
        for hook in hooks:
            hook.remove()
        logits = torch.stack(points)
        for counted, start in ((found, 0), (answering, tokens.start)):
            shares = (logits.argmax(dim=-1) == 0)[:, start:].float().mean(dim=1).numpy()
            assert np.allclose(counted[place], np.stack([shares, 1 - shares], axis=1), atol=1e-6)
        sums.append(logits.softmax(dim=-1).amax(dim=-1))
    assert strength == pytest.approx(float(torch.cat([one.flatten() for one in sums]).mean()), rel=1e-5)
    assert 0.5 <= strength <= 1


def test_usage_of_a_router_that_tells_domains_apart(mixture: Mixture, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import unmask.moe.experts.expert_usage as module

    def told(*_: Any, **__: Any) -> Any:
        first = np.array([[0.1, 0.9]] * len(SUMS) + [[0.9, 0.1]] * len(COLOURS))
        both = np.stack([first, first[:, ::-1]], axis=1)
        return both, np.full_like(both, 0.5), 0.7  # the second point has the experts the other way round

    monkeypatch.setattr(module, "first_choices", told)
    usage = measure_usage(mixture, tokenizer, DOMAINS)
    assert usage.strength == 0.7
    assert np.allclose(usage.load, 0.5)
    assert usage.information > 0.5 > 0.1 > usage.shuffled
    assert usage.by_point == pytest.approx([usage.information] * 2)
    assert usage.responses == pytest.approx(0)
    assert usage.pooled == pytest.approx(0), "points that disagree tell nothing if they are taken as one"
    assert usage.interval[0] <= usage.information <= usage.interval[1]
