"""Text keys: equal texts have equal keys; positives are known with and without their titles."""

from __future__ import annotations

import pytest

from unmask.training.text_keys import fold, other_forms, positives_of, several_positives, text_key


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


TEXT = "the capital of france is paris".replace(" ", "")


@pytest.mark.parametrize("title", ["France", "f" * len(TEXT)])
def test_a_long_text_is_the_same_behind_a_title(title: str) -> None:
    joined = title.casefold() + TEXT
    assert other_forms({TEXT}, {joined, "other"}, {}) == {TEXT: {joined}}
    assert other_forms({joined}, {TEXT, "other"}, {}) == {joined: {TEXT}}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("york", "newyork"),
        (TEXT, "g" * (len(TEXT) + 1) + TEXT),
        (TEXT, TEXT + "again"),
        ("x" * 300, "y" * 201 + "x" * 300),
        ("a" + TEXT, "b" + TEXT),
        (TEXT, TEXT),
    ],
    ids=["too short", "more before it than it has", "not its end", "too long a title", "two titles", "itself"],
)
def test_other_texts_are_not_the_same(one: str, other: str) -> None:
    assert not other_forms({one}, {other}, {}) and not other_forms({other}, {one}, {})


def test_a_known_title_may_stand_before_any_text() -> None:
    assert other_forms({"york"}, {"newyork"}, {"newyork": "york"}) == {"york": {"newyork"}}
    assert other_forms({"newyork"}, {"york"}, {"newyork": "york"}) == {"newyork": {"york"}}
    assert not other_forms({"york"}, {"oldyork"}, {"newyork": "york"})


def test_all_forms_are_found() -> None:
    known = {"aeasttext": "text", "awesttext": "text"}
    assert other_forms({"text"}, {"aeasttext", "awesttext", "text"}, known) == {"text": {"aeasttext", "awesttext"}}
