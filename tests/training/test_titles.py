"""Titles: which texts are one document, with its title and without."""

from __future__ import annotations

import pytest

from unmask.training.titles import other_forms

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
