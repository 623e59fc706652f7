"""Likelihood: how well a model predicts held-out responses or texts. It tells models apart even where their accuracies are at chance.

It is the negative log-likelihood of each response given its prompt, or of each text, the mean over its tokens, in nats. Two models are
compared lesson by lesson, or text by text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.encoding.batching import plan
from unmask.errors import UnmaskError
from unmask.io.terminal import progress_bar
from unmask.io.unicode import without_surrogates
from unmask.models.decoder import pad_id_of
from unmask.models.loading import Source, load_language_model_tokenizer
from unmask.moe.experts.lesson_training import LessonCollator
from unmask.moe.experts.lessons.lessons import Lesson, tokenize_lessons
from unmask.training.collate import NextTokenCollator
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


def require_same_tokens(sources: Sequence[Source], texts: Sequence[str]) -> None:
    """Raise UnmaskError if two models read the same texts as other tokens. Only their tokenizers are loaded.

    Nats per token of other tokens cannot be compared: the fewer tokens per text has, the more there is to predict in each of them.
    """
    plain = [without_surrogates(text) for text in texts]
    first, *other_ids = (load_language_model_tokenizer(source)(plain, verbose=False)["input_ids"] for source in sources)
    for source, ids in zip(sources[1:], other_ids, strict=True):
        if ids != first:
            raise UnmaskError(
                f"'{sources[0].model}' and '{source.model}' read these texts as other tokens, so their nats per token cannot be "
                "compared. Measure them one by one."
            )


def text_likelihood(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[list[int]],
    *,
    max_length: int = 512,
    batch_tokens: int = 2048,
) -> NDArray[np.float64]:
    """Mean negative log-likelihood per token of each text, in nats, shape (text,). A text counts up to max_length tokens.

    texts: their token ids, two or more each (`chunk_tokens`).
    """
    chunks = [ids[:max_length] for ids in texts]
    collate = NextTokenCollator(pad_id_of(tokenizer, model))
    return mean_losses(model, [(0, ids) for ids in chunks], list(map(len, chunks)), collate, batch_tokens)


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
    collate = LessonCollator(pad_id_of(tokenizer, model))
    return mean_losses(model, tokens, [len(lesson.ids) for lesson in tokens], collate, batch_tokens)


def mean_losses(
    model: Any,
    rows: Sequence[Any],
    lengths: Sequence[int],
    collate: Callable[[Sequence[Any]], dict[str, Any]],
    batch_tokens: int,
) -> NDArray[np.float64]:
    """Mean negative log-likelihood per labelled token of each row, in nats, shape (row,). Rows of similar length share a batch.

    lengths: tokens of each row. collate: makes the inputs of a batch, with labels.
    """
    losses = np.zeros(len(rows))
    with torch.inference_mode(), progress_bar("reading", len(rows)) as advance:
        for batch in plan(list(lengths), batch_tokens):
            inputs = collate([rows[index] for index in batch])
            inputs = {name: value.to(model.device) for name, value in inputs.items() if name != "rows"}
            labels = inputs.pop("labels")
            losses[batch] = mean_by_text(*target_logits(model, inputs, labels)).double().cpu().numpy()
            advance(len(batch))
    return losses
