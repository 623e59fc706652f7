"""Repeated words: as many as the paper says, none lost, in an order that only the seed and the place decide."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tests.training.test_collate import rows_of
from unmask.training.stages.contrastive import repeat_words, two_views

TEXT = "one two three four five six seven eight nine ten"


def drawn(text: str, share: float, seed: int) -> str:
    return repeat_words(text, share, random.Random(seed))


def test_the_number_of_repeated_words_is_uniform_up_to_the_share() -> None:
    counts = Counter(len(drawn(TEXT, 0.5, seed).split()) - 10 for seed in range(1200))
    assert set(counts) == {0, 1, 2, 3, 4, 5}
    assert all(abs(count - 200) < 4 * (200 * 5 / 6) ** 0.5 for count in counts.values())


@given(st.lists(st.integers(), min_size=2, unique=True), st.floats(0.01, 0.99), st.integers(0, 99))
def test_a_repeated_word_stands_beside_itself_and_none_is_lost(numbers: list[int], share: float, seed: int) -> None:
    words = [str(number) for number in numbers]
    found = drawn(" ".join(words), share, seed).split()
    assert [word for place, word in enumerate(found) if place == 0 or word != found[place - 1]] == words
    assert max(Counter(found).values()) <= 2
    assert len(found) - len(words) <= max(2, int(share * len(words)))


def test_views_depend_on_the_seed_and_the_place_alone() -> None:
    rows = rows_of([[TEXT], [TEXT], [TEXT.upper()]] * 4)
    views = two_views(rows, 0.5, 0)
    assert two_views(rows, 0.5, 0) == views != two_views(rows, 0.5, 1)
    assert two_views(rows[:5], 0.5, 0) == views[:5], "a longer schedule begins with the shorter one"
    assert len({row.example.texts[1] for row in views}) > 6, "the same text at two places has two views"
    assert [row.id for row in views] == [row.id for row in rows]
    assert [row.example.texts[0] for row in views] == [row.example.texts[0] for row in rows]
