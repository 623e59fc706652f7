"""The loss of a step does not depend on how its lessons are computed: lessons of similar length, all at once, or one by one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.moe.experts.conftest import DOMAINS, SUMS
from tests.moe.mixture.models import language_model
from unmask.errors import UnmaskError
from unmask.models.loading import Source
from unmask.moe.experts.expert import train_expert
from unmask.moe.experts.lesson_training import Learning, LessonCollator, response_loss
from unmask.moe.experts.lessons.lessons import LessonTokens
from unmask.moe.experts.mixing import Ingredients, mix, mix_jointly
from unmask.moe.mixture.gating import Routing

LENGTHS = (90, 9, 88, 7, 30, 300)
LESSONS = [
    LessonTokens(tuple(1 + (place * 7 + row) % 500 for place in range(length)), length // 2, f"lessons:{row}")
    for row, length in enumerate(LENGTHS)
]


def computed(model: Any, learning: Learning, lessons: list[LessonTokens], items: Any, **options: Any) -> tuple[float, Any, int]:
    """The loss of some lessons, its gradient, and the number of tokens that the model computed, with padding."""
    tokens: list[int] = []
    hook = model.register_forward_pre_hook(lambda _, __, given: tokens.append(given["input_ids"].numel()), with_kwargs=True)
    inputs = LessonCollator(0)(lessons)
    del inputs["rows"]
    model.zero_grad()
    loss = response_loss(learning, nullcontext, **options)(model, inputs, items)
    loss.backward()
    hook.remove()
    return float(loss.detach()), model.get_input_embeddings().weight.grad.clone(), sum(tokens)


@pytest.mark.parametrize("average", ["example", "token"])
@pytest.mark.parametrize("family", ["llama", "gemma3", "olmoe"])
def test_padding_is_not_computed_and_changes_nothing(family: str, average: Any) -> None:
    model = language_model(family, vocab_size=512, max_position_embeddings=512)
    learning = Learning(steps=1, lr=1e-3, batch=len(LESSONS), average=average)
    items = None if average == "example" else sum(length - length // 2 for length in LENGTHS)
    loss, gradient, tokens = computed(model, learning, LESSONS, items)
    alone = [computed(model, learning, [lesson], items) for lesson in LESSONS]
    assert loss == pytest.approx(sum(one[0] for one in alone), rel=1e-5)
    assert torch.allclose(gradient, sum(one[1] for one in alone), atol=1e-6)
    assert tokens < 1.2 * sum(LENGTHS) < 0.5 * max(LENGTHS) * len(LENGTHS)
    if average == "token":
        assert computed(model, learning, LESSONS, None)[0] == pytest.approx(loss, rel=1e-5), "the items of this pass alone"


def test_a_penalty_is_told_of_all_lessons_together() -> None:
    model = language_model(vocab_size=512, max_position_embeddings=512)
    learning, seen = Learning(steps=1, lr=1e-3, batch=len(LESSONS)), []

    def penalty(real: torch.Tensor) -> torch.Tensor:
        seen.append(real.sum(dim=1).tolist())
        return torch.tensor(3.0)

    plain, with_penalty = computed(model, learning, LESSONS, None), computed(model, learning, LESSONS, None, penalty=penalty)
    assert seen == [list(LENGTHS)] and with_penalty[2] == max(LENGTHS) * len(LENGTHS)
    assert with_penalty[0] == pytest.approx(plain[0] + 3, rel=1e-5)


def test_another_gpu_than_the_first_is_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    learning, source = Learning(steps=1, lr=1e-3), Source(str(tmp_path / "nowhere"), device="cuda:1")
    trainings: list[Callable[[], object]] = [
        lambda: train_expert(source, SUMS, tmp_path / "expert", learning=learning),
        lambda: mix(Ingredients(()), DOMAINS, tmp_path / "mixture", Routing(), source, learning=learning),
        lambda: mix_jointly(DOMAINS, tmp_path / "joint", Routing(), source, learning=learning),
    ]
    for train in trainings:
        with pytest.raises(UnmaskError, match=r"first GPU that it sees, and not cuda:1.*set CUDA_VISIBLE_DEVICES=1"):
            train()
    for device in ("auto", "cpu", "cuda", "cuda:0", "mps"):
        learning.require_first_gpu(device)
    replace(learning, steps=0).require_first_gpu("cuda:1")
