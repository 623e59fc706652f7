"""Usage: what routing says of a domain, by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.moe.experts.conftest import COLOURS, SUMS
from tests.moe.mixture.models import language_model, saved_experts
from unmask.moe.experts.expert_usage import first_choices
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
