"""Snippets: never longer than asked, around the words of the query, on one line."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from unmask.search.snippets import snippet

LONG = "Nothing here. " * 40 + "The password is reset by a link. " + "And nothing there. " * 40


@given(st.text(max_size=400), st.text(max_size=30), st.integers(20, 100))
def test_a_snippet_is_a_short_line_of_the_text(text: str, query: str, length: int) -> None:
    found = snippet(text, query, length)
    assert len(found) <= length
    assert "\n" not in found and "\r" not in found
    plain = " ".join(text.split())
    inner = found.removeprefix("...").removesuffix("...")
    assert inner in plain


def test_it_shows_the_words_of_the_query() -> None:
    found = snippet(LONG, "reset password", 60)
    assert "password" in found and "reset" in found
    assert found.startswith("...") and found.endswith("...")


def test_long_words_come_before_short_ones() -> None:
    text = "is of in to by is of in to. " + "x " * 100 + "photosynthesis " + "x " * 100
    assert "photosynthesis" in snippet(text, "what is photosynthesis of in", 40)


def test_words_without_spaces_around_them_are_shown() -> None:
    around = "一二三四五六七八九十" * 20
    assert "東京" in snippet(f"{around}東京{around}", "東京都", 40)


def test_without_a_word_of_the_query_it_is_the_beginning() -> None:
    assert snippet(LONG, "zebra", 40).startswith("Nothing here.")


def test_a_short_text_is_shown_whole() -> None:
    assert snippet("a\n b", "b", 40) == "a b"


def test_a_text_of_megabytes_takes_no_time() -> None:
    start = time.process_time()
    assert len(snippet("word " * 2_000_000, "word", 100)) <= 100
    assert time.process_time() - start < 5
