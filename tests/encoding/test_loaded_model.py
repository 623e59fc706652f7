"""A loaded model: its vectors are those of an embedder, each pass is made once, and attention is switched as designs ask."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest

from tests.conftest import TEXTS
from tests.probing.models import pico_model
from unmask.designs.design import Design
from unmask.embedder import Embedder
from unmask.encoding import beginnings, questions
from unmask.encoding.encode import group_by_pass
from unmask.encoding.questions import Answers, encode_questions
from unmask.errors import UnmaskError

DESIGNS = [
    Design.parse(name)
    for name in (
        "bidirectional/plain/mean",
        "causal/eol/last",
        "causal/eol/last/sum:auto/zscore",
        "causal/plain/last@1",
        "causal/eol/mean/routing",
    )
]


def test_vectors_are_those_of_an_embedder(tokenizer: Any, pico: Callable[..., Embedder]) -> None:
    found = pico_model(tokenizer, "causal", "olmoe").encode(DESIGNS, TEXTS, max_length=30)
    for design in DESIGNS:
        with pytest.warns(UserWarning, match="cut to 30"):
            expected = pico(design.name, family="olmoe", max_length=30).encode(TEXTS)
        np.testing.assert_allclose(found[design], expected, atol=2e-5)


def test_designs_share_passes_and_attention_is_switched_once() -> None:
    groups = group_by_pass(DESIGNS)
    assert [(attention, prompt, len(some)) for (attention, prompt), some in groups.items()] == [
        ("causal", "eol", 3),
        ("causal", "plain", 1),
        ("bidirectional", "plain", 1),
    ]


def test_prompts_that_begin_alike_read_a_text_once(
    tokenizer: Any, pico: Callable[..., Embedder], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[Answers] = []

    def encode(*args: Any, **options: Any) -> Answers:
        answers.append(encode_questions(*args, **options))
        return answers[-1]

    monkeypatch.setattr("unmask.encoding.loaded_model.encode_questions", encode)
    monkeypatch.setattr(beginnings, "_FEWEST", 2)
    monkeypatch.setattr(questions, "_GOES_ON", 1)  # these texts are short
    designs = [Design.parse(f"causal/{prompt}/last") for prompt in ("eol", "plain", "style", "tone")]
    found = pico_model(tokenizer, "causal", "olmoe").encode(designs, TEXTS)
    assert [len(answer.vectors) for answer in answers] == [3, 1]
    assert answers[0].computed < sum(answers[0].alone)
    for design in designs:
        np.testing.assert_allclose(found[design], pico(design.name, family="olmoe").encode(TEXTS), atol=2e-5)


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The length of the progress bar, then the texts of each step."""
    steps: list[int] = []

    def bar(_: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
        steps.append(total)
        return nullcontext(steps.append)

    monkeypatch.setattr("unmask.encoding.loaded_model.progress_bar", bar)
    return steps


def test_progress_is_told_once_a_text_and_pass(tokenizer: Any, done: list[int]) -> None:
    pico_model(tokenizer, "causal", "olmoe").encode(DESIGNS, TEXTS)
    assert done[0] == sum(done[1:]) == 3 * len(TEXTS)


def test_a_design_that_cannot_be_served_is_refused_before_anything_is_read(tokenizer: Any, done: list[int]) -> None:
    with pytest.raises(UnmaskError, match="no router"):
        pico_model(tokenizer, "causal").encode([DESIGNS[1], DESIGNS[4]], TEXTS)
    assert done == []
