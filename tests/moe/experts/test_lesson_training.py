"""The loss of a step does not depend on how its lessons are computed: lessons of similar length, all at once, or one by one."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from tests.moe.mixture.models import language_model
from unmask.moe.experts.lesson_training import Learning, LessonCollator, response_loss
from unmask.moe.experts.lessons.lessons import LessonTokens

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
