"""A text that was cut at its tokens is the same text again, and a token has a name that can be seen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from unmask.moe.atlas.aggregate import pieces, token_name


@given(some.text(max_size=30), some.data())
def test_pieces_are_the_text_again(text: str, data: some.DataObject) -> None:
    """Whatever the spans: gaps between tokens, tokens that share characters, tokens that are not recorded."""
    places = sorted(data.draw(some.lists(some.integers(0, len(text)), max_size=12)))
    spans = np.array([sorted(data.draw(some.tuples(some.sampled_from(places), some.sampled_from(places)))) for _ in places])
    spans = spans.reshape(-1, 2)
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    kept = np.flatnonzero(np.array(data.draw(some.lists(some.booleans(), min_size=len(spans), max_size=len(spans))), bool))
    parts = pieces(text, spans, kept, complete=True)
    assert "".join(parts) == text
    assert len(parts) == 2 * len(kept) + 1


def test_a_text_that_is_cut_ends_with_its_last_shown_token() -> None:
    spans = np.array([[0, 0], [0, 3], [3, 7]])
    assert pieces("one two three", spans, np.array([1, 2]), complete=False) == ["", "one", "", " two", ""]
    assert pieces("one two three", spans, np.array([2]), complete=True) == ["one", " two", " three"]


@pytest.mark.parametrize(
    ("text", "first", "last", "name"),
    [
        ("the cat", 3, 7, "cat"),
        ("walking", 4, 7, "·ing"),
        ("(walk)", 1, 5, "walk"),
        ("a\n\nb", 1, 3, "⏎⏎"),
        ("a \tb", 1, 3, "␣⇥"),
        ("a", 0, 0, "∅"),
        ("it's", 2, 4, "'s"),
        ("a\u00a0b", 1, 2, "␣"),
    ],
)
def test_names_of_tokens(text: str, first: int, last: int, name: str) -> None:
    assert token_name(text, first, last) == name
