"""Positives: all that a data set names for an anchor, in any spelling."""

from __future__ import annotations

from unmask.training.positives import positives_of, several_positives

PAIRS = [("One?", "a"), ("two", "b"), ("one", "B!"), ("ONE", "A"), ("three", "c"), ("three", "c.")]


def test_the_positives_of_all_spellings_of_an_anchor_are_together() -> None:
    assert positives_of(PAIRS) == {"one": {"a", "b"}, "two": {"b"}, "three": {"c"}}


def test_two_spellings_of_a_positive_are_not_several() -> None:
    assert several_positives(PAIRS) == {"one": {"a", "b"}}
    assert several_positives([("one", "a"), ("two", "a")]) == {}
