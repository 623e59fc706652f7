"""Text keys: equal texts have equal keys; positives are known with and without their titles."""

from __future__ import annotations

import pytest

from unmask.training.text_keys import fold, positives_of, several_positives, text_key


@pytest.mark.parametrize(
    "text",
    [
        "Don't  stop!",
        "do n't stop .",
        "`` DON'T '' stop",
        "\u201cDon\u2019t\u201d \u2014 stop\u2026",
        "\uff24on't\u00a0stop\u200b",
    ],
)
def test_spellings_of_a_text_fold_alike(text: str) -> None:
    assert fold(text) == text_key(text) == "dontstop"


@pytest.mark.parametrize(
    ("one", "other"), [("C++ now", "C now"), ("it costs $5", "it costs 5"), ("नमस्ते", "नमसत"), ("a1", "a2")]
)
def test_what_differs_stays_different(one: str, other: str) -> None:
    assert fold(one) != fold(other)


def test_texts_of_signs_alone_are_different_texts() -> None:
    assert fold("!") == fold("?") == "" and text_key("!") != text_key("?")


PAIRS = [("One?", "a"), ("two", "b"), ("one", "B!"), ("ONE", "A"), ("three", "c"), ("three", "c.")]


def test_the_positives_of_all_spellings_of_an_anchor_are_together() -> None:
    assert positives_of(PAIRS) == {"one": {"a", "b"}, "two": {"b"}, "three": {"c"}}


def test_two_spellings_of_a_positive_are_not_several() -> None:
    assert several_positives(PAIRS) == {"one": {"a", "b"}}
    assert several_positives([("one", "a"), ("two", "a")]) == {}
