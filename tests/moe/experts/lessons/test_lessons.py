"""Lessons: only the response is learned, and its border is where it is in the text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import make_tokenizer
from tests.moe.experts.conftest import COLOURS, DOMAINS, SUMS
from tests.moe.mixture.models import language_model, saved_experts
from unmask.errors import UnmaskError
from unmask.models.loading import Source, load_base_language_model, load_language_model
from unmask.moe.experts.lesson_training import schedule
from unmask.moe.experts.lessons.lessons import tokenize_lessons
from unmask.moe.experts.likelihood import require_same_tokens, response_likelihood, text_likelihood
from unmask.moe.mixture.mixture_folder import Mixture
from unmask.training.collate import chunk_tokens


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


def test_likelihood_of_texts_by_hand_and_in_any_batch(tokenizer: Any) -> None:
    model = language_model(vocab_size=512)
    texts = ["Snow fell on the hill.", "", "One", "The cat sat on the mat, and then it slept until the evening came."]
    whole = chunk_tokens(tokenizer, texts, 10, blocks=False)
    found = text_likelihood(model, tokenizer, whole, max_length=9)
    tokens = [ids[:9] for text in texts if len(ids := tokenizer(text)["input_ids"]) > 1]
    assert len(found) == len(tokens) < len(texts), "nothing stands before a single token"
    for value, ids in zip(found, tokens, strict=True):
        with torch.no_grad():
            scores = model(torch.tensor([ids])).logits[0].log_softmax(dim=-1)
        assert value == pytest.approx(-float(scores[range(len(ids) - 1), ids[1:]].mean()), abs=1e-5)
    assert np.allclose(text_likelihood(model, tokenizer, whole, max_length=9, batch_tokens=1), found, atol=1e-6)


def test_experts_and_mixtures_read_texts_by_their_own_tokenizer_or_as_their_base(base: Path, tmp_path: Path) -> None:
    model, _ = load_base_language_model(Source(str(base), dtype="float32"))
    experts = saved_experts(tmp_path, model)
    Mixture(model, experts, source=Source(str(base))).save_pretrained(tmp_path / "mixture")
    sources = [Source(str(folder)) for folder in (base, tmp_path / "a", tmp_path / "mixture")]
    sources += [Source(str(base), adapters=(str(tmp_path / name),)) for name in ("a", "mixture")]
    require_same_tokens(sources, ["It is cold."])
    for source in sources[1:]:
        make_tokenizer(add_bos=True).save_pretrained((source.model, *source.adapters)[-1])  # if one lies there, it is theirs
        with pytest.raises(UnmaskError, match="read these texts as other tokens"):
            require_same_tokens([sources[0], source], ["It is cold."])
    assert load_language_model(sources[1])[1]("a")["input_ids"][0] == 1
