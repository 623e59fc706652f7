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

    Nats per token of other tokens cannot be compared: the fewer tokens a text has, the more there is to predict in each of them.
    """
    first = _ids(sources[0], texts)
    for source in sources[1:]:
        if _ids(source, texts) != first:
            raise UnmaskError(
                f"'{sources[0].model}' and '{source.model}' read these texts as other tokens, so their nats per token cannot be "
                "compared. Measure them one by one."
            )


def _ids(source: Source, texts: Sequence[str]) -> list[list[int]]:
    """The token ids of texts for a model as `load_language_model` loads it."""
    ids: list[list[int]] = load_language_model_tokenizer(source)([without_surrogates(text) for text in texts], verbose=False)[
        "input_ids"
    ]
    return ids


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
    return mean_losses(
        model, [(0, ids) for ids in chunks], [len(ids) for ids in chunks], collate, batch_tokens, "reading texts"
    )


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
    return mean_losses(model, tokens, [len(lesson.ids) for lesson in tokens], collate, batch_tokens, "reading lessons")


def cut_lessons(tokenizer: PreTrainedTokenizerBase, lessons: Sequence[Lesson], max_length: int) -> int:
    """How many lessons are longer than the limit, so that the end of their response does not count."""
    return sum(lesson.cut for lesson in tokenize_lessons(tokenizer, lessons, max_length))


def mean_losses(
    model: Any,
    rows: Sequence[Any],
    lengths: Sequence[int],
    collate: Callable[[Sequence[Any]], dict[str, Any]],
    batch_tokens: int,
    doing: str,
) -> NDArray[np.float64]:
    """Mean negative log-likelihood per labelled token of each row, in nats, shape (row,). Rows of similar length share a batch.

    lengths: tokens of each row. collate: makes the inputs of a batch, with labels.
    """
    losses = np.zeros(len(rows))
    with torch.inference_mode(), progress_bar(doing, len(rows)) as advance:
        for batch in plan(list(lengths), batch_tokens):
            inputs = collate([rows[index] for index in batch])
            inputs = {name: value.to(model.device) for name, value in inputs.items() if name != "rows"}
            labels = inputs.pop("labels")
            losses[batch] = mean_by_text(*target_logits(model, inputs, labels)).double().cpu().numpy()
            advance(len(batch))
    return losses
