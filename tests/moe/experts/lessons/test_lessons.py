"""Lessons: only the response is learned, and its border is where it is in the text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.moe.experts.conftest import COLOURS, DOMAINS, SUMS
from tests.moe.mixture.models import language_model
from unmask.errors import UnmaskError
from unmask.moe.experts.lesson_training import schedule
from unmask.moe.experts.lessons.lessons import tokenize_lessons
from unmask.moe.experts.likelihood import response_likelihood


def test_prompt_and_response_are_the_text_and_the_end(tokenizer: Any) -> None:
    for lesson, tokens in zip([*SUMS, *COLOURS], tokenize_lessons(tokenizer, [*SUMS, *COLOURS], 512), strict=True):
        assert tokens.ids[-1] == tokenizer.eos_token_id
        assert tokenizer.decode(tokens.ids[:-1]) == lesson.prompt + lesson.output
        assert tokenizer.decode(tokens.ids[tokens.start : -1]).lstrip("\n") == lesson.output
        assert lesson.instruction in lesson.prompt and lesson.input in lesson.prompt
        assert ("### Input:" in lesson.prompt) == bool(lesson.input)


def test_a_long_response_loses_its_end_and_a_long_prompt_is_refused(tokenizer: Any) -> None:
    [whole] = tokenize_lessons(tokenizer, SUMS[:1], 512)
    [cut] = tokenize_lessons(tokenizer, SUMS[:1], whole.start + 2)
    assert cut.ids == whole.ids[: whole.start + 2] and tokenizer.eos_token_id not in cut.ids
    assert cut.cut and not whole.cut
    [just] = tokenize_lessons(tokenizer, SUMS[:1], len(whole.ids))
    assert just == whole
    with pytest.raises(UnmaskError, match=rf"sums:00: the prompt has {whole.start} tokens"):
        tokenize_lessons(tokenizer, SUMS[:1], whole.start)


def test_a_batch_holds_as_many_of_each_domain(tokenizer: Any) -> None:
    tokens = {name: tokenize_lessons(tokenizer, lessons, 512) for name, lessons in DOMAINS.items()}
    rows = schedule(tokens, 9, 4, 0)
    for step in range(9):
        part = rows[4 * step : 4 * step + 4]
        assert sum(row in tokens["sums"] for row in part) == 2
    assert len({row.where for row in rows[:24]}) == 24, "every lesson once before any comes again"
    assert schedule(tokens, 9, 4, 1) != rows
    with pytest.raises(UnmaskError, match="cannot hold equally many examples of 2 domains"):
        schedule(tokens, 1, 3, 0)
    with pytest.raises(UnmaskError, match="'none' has no lessons"):
        schedule({**tokens, "none": []}, 1, 3, 0)


def test_likelihood_by_hand_and_in_any_batch(tokenizer: Any) -> None:
    model = language_model(vocab_size=512)
    lessons = [*SUMS[:3], *COLOURS[:2]]
    found = response_likelihood(model, tokenizer, lessons)
    for value, tokens in zip(found, tokenize_lessons(tokenizer, lessons, 512), strict=True):
        with torch.no_grad():
            scores = model(torch.tensor([tokens.ids])).logits[0].log_softmax(dim=-1)
        losses = [-float(scores[place - 1, tokens.ids[place]]) for place in range(tokens.start, len(tokens.ids))]
        assert value == pytest.approx(sum(losses) / len(losses), abs=1e-5)
    assert np.allclose(response_likelihood(model, tokenizer, lessons, batch_tokens=1), found, atol=1e-6)
