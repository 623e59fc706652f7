"""Likelihood: how well a model predicts held-out responses. It tells models apart even where their accuracies are at chance.

It is the negative log-likelihood of each response given its prompt, the mean over its tokens, in nats. Two models are compared lesson by
lesson.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.encoding.batching import plan
from unmask.experts.lesson_training import LessonCollator
from unmask.experts.lessons.lessons import Lesson, tokenize_lessons
from unmask.io.terminal import progress_bar
from unmask.training.targets import mean_by_text, target_logits

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def likelihoods(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    domains: Mapping[str, Sequence[Lesson]],
    *,
    max_length: int = 512,
) -> dict[str, NDArray[np.float64]]:
    """`response_likelihood` of the lessons of each domain."""
    return {
        domain: response_likelihood(model, tokenizer, lessons, max_length=max_length) for domain, lessons in domains.items()
    }


@torch.inference_mode()  # type: ignore[untyped-decorator]
def response_likelihood(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    lessons: Sequence[Lesson],
    *,
    max_length: int = 512,
    batch_tokens: int = 2048,
) -> NDArray[np.float64]:
    """Mean negative log-likelihood per response token of each lesson, in nats, shape (lesson,)."""
    tokens = tokenize_lessons(tokenizer, lessons, max_length)
    collate = LessonCollator(int(tokenizer.pad_token_id or 0))
    losses = np.zeros(len(tokens))
    with progress_bar("reading lessons", len(tokens)) as advance:
        for batch in plan([len(lesson.ids) for lesson in tokens], batch_tokens):
            inputs = collate([tokens[index] for index in batch])
            inputs = {name: value.to(model.device) for name, value in inputs.items() if name != "rows"}
            labels = inputs.pop("labels")
            losses[batch] = mean_by_text(*target_logits(model, inputs, labels)).double().cpu().numpy()
            advance(len(batch))
    return losses
