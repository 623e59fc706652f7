"""Class-based TF-IDF: by hand, and the words that a reader would name."""

from __future__ import annotations

import numpy as np
import pytest

from unmask.probing.topics import class_tf_idf, top_words


def test_weights_by_hand() -> None:
    """Two clusters of 4 and 2 words: A is 3; the terms stand 3, 2 and 1 times in all."""
    found = class_tf_idf(np.array([[3, 1, 0], [0, 1, 1]]))
    expected = [
        [3 / 4 * np.log(1 + 3 / 3), 1 / 4 * np.log(1 + 3 / 2), 0],
        [0, 1 / 2 * np.log(1 + 3 / 2), 1 / 2 * np.log(1 + 3 / 1)],
    ]
    np.testing.assert_allclose(found, expected)


def test_weights_are_bertopics() -> None:
    vectorizers = pytest.importorskip("bertopic.vectorizers")
    sparse = pytest.importorskip("scipy.sparse")
    counts = np.array([[3, 1, 0, 2], [0, 1, 1, 4]])  # of 6 words each: BERTopic cuts the mean to a whole number
    expected = vectorizers.ClassTfidfTransformer().fit_transform(sparse.csr_matrix(counts)).toarray()
    np.testing.assert_allclose(class_tf_idf(counts), expected)


def test_a_cluster_or_a_term_without_words_weighs_nothing() -> None:
    found = class_tf_idf(np.array([[2, 0], [0, 0]]))
    assert np.isfinite(found).all() and found[0, 0] > 0 and not found[1].any() and not found[:, 1].any()


def test_what_tells_a_cluster_comes_first_and_what_all_say_comes_last() -> None:
    texts = ["guitar song today", "guitar drum today", "goal team today", "goal ball today", "the and of"]
    words = top_words(texts, [0, 0, 1, 1, 2])
    assert (words[0][0], words[1][0], words[2]) == ("guitar", "goal", [])
    assert words[0] == ["guitar", "drum", "song", "today"]  # equal weights by the alphabet
    assert top_words(texts, [0, 0, 1, 1, 2], number=1) == [["guitar"], ["goal"], []]


def test_texts_of_no_words_have_no_topic() -> None:
    assert top_words(["?", "the"], [0, 1]) == [[], []]
