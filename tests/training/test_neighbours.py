"""Neighbours are the texts with the largest cosine of TF-IDF vectors, among those that are free."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from unmask.starter import reference_texts
from unmask.training.schedule import Neighbours

TEXTS = reference_texts()[:60]


@pytest.mark.parametrize("place", [0, 7, 59])
def test_they_are_the_nearest_by_the_plain_formula(place: int) -> None:
    vectors = TfidfVectorizer(token_pattern=r"(?u)\w+|[^\w\s]", sublinear_tf=True).fit_transform(TEXTS).toarray()
    cosines = vectors @ vectors[place]
    free = np.ones(len(TEXTS), dtype=np.bool_)
    free[[place, 3, 20]] = False
    found = Neighbours(TEXTS).nearest(place, 5, free)
    expected = sorted((other for other in np.flatnonzero(free) if cosines[other] > 0), key=lambda other: -cosines[other])[:5]
    assert [cosines[other] for other in found] == pytest.approx([cosines[other] for other in expected], abs=1e-6)
    assert not {place, 3, 20} & set(found) and len(set(found)) == 5


def test_a_text_that_shares_no_word_is_no_neighbour() -> None:
    neighbours = Neighbours(["guitar", "drum", "...", "Guitar!"])
    free = np.ones(4, dtype=np.bool_)
    assert neighbours.nearest(1, 3, free & (np.arange(4) != 1)) == []
    assert neighbours.nearest(0, 3, free & (np.arange(4) != 0)) == [3]
    assert neighbours.nearest(2, 0, free) == []


def test_a_word_of_many_texts_makes_no_neighbours() -> None:
    """Here "the" is in all of 3000 texts, and each number in 150, a twentieth."""
    texts = [f"the {number % 20}" for number in range(3000)]
    free = np.ones(3000, dtype=np.bool_)
    found = Neighbours(texts).nearest(5, 3000, free)
    assert found == [place for place in range(3000) if place % 20 == 5]
    same = Neighbours(["the same"] * 3000)
    assert same.nearest(0, 5, free) == [], "no word tells two of them apart"


def test_vectors_are_as_if_the_left_out_words_were_not_there() -> None:
    base = [f"{TEXTS[place % 60]} {place}" for place in range(150)]
    free = np.ones(150, dtype=np.bool_)
    expected = [Neighbours([text.replace(".", " ") for text in base]).nearest(place, 5, free) for place in range(20)]
    words = [f"{text.replace('.', ' ')} ever" for text in base]
    assert [Neighbours(words).nearest(place, 5, free) for place in range(20)] == expected
