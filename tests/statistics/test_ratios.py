"""A ratio is of sums over sentences; a difference is paired by sentence, and exact where sign flips can be counted."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

from unmask.errors import UnmaskError
from unmask.statistics.paired import sign_flip_p
from unmask.statistics.ratios import Ratio, difference


def test_a_ratio_weighs_sentences_by_their_words() -> None:
    ratio = Ratio(np.array([1.0, 0.0]), np.array([1.0, 3.0]))
    assert (ratio.value, ratio.interval()) == (0.25, (0.0, 1.0))
    assert Ratio(np.ones(1), np.ones(1)).interval() is None
    assert Ratio(np.zeros(2), np.zeros(2)).value == 0.0, "no entity anywhere"


def test_a_difference_is_paired() -> None:
    random = np.random.default_rng(0)
    below = np.full(200, 10.0)
    hard = random.integers(0, 9, 200).astype(float)
    found = difference("accuracy", Ratio(hard + 1, below), Ratio(hard, below))
    # always one word better: paired there is no doubt, though the two intervals overlap
    assert found.difference == pytest.approx(0.1) and found.interval == pytest.approx((0.1, 0.1)) and found.p < 0.01
    same = difference("accuracy", Ratio(hard, below), Ratio(hard, below))
    assert same.difference == 0 and same.p == 1
    with pytest.raises(UnmaskError, match="the same sentences for both, two or more"):
        difference("accuracy", Ratio(hard, below), Ratio(hard[:5], below[:5]))


def test_a_share_that_is_the_same_everywhere_has_an_interval_with_a_width() -> None:
    """20 of 20 is 100.0 [83.9, 100.0], and two probes that are right on the same sentences may differ on others."""
    words = np.arange(1.0, 21.0)
    right, wrong = Ratio(words, words, share=True), Ratio(0 * words, words, share=True)
    assert right.interval() == pytest.approx((0.839, 1.0), abs=5e-4)
    assert wrong.interval() == pytest.approx((0.0, 0.161), abs=5e-4)
    half = Ratio(words / 2, words, share=True)
    assert half.interval() == pytest.approx((0.5 - 0.161 / 2, 0.5 + 0.161 / 2), abs=5e-4)
    same = difference("accuracy", right, right)
    assert same.interval == pytest.approx((-0.161, 0.161), abs=5e-4) and same.p == 1
    cosines = Ratio(np.full(20, 0.3), np.ones(20))
    assert cosines.interval() == pytest.approx((0.3, 0.3)), "no share: nothing says how far others may lie"


def test_few_sentences_that_differ_are_tested_exactly() -> None:
    below = np.full(50, 4.0)
    one_word_more = Ratio(np.where(np.arange(50) < 5, 3.0, 2.0), below)
    found = difference("accuracy", one_word_more, Ratio(np.full(50, 2.0), below))
    assert found.p == pytest.approx(binomtest(5, 5).pvalue), "five sentences, all one way: 1 / 16"
    longer = Ratio(np.full(50, 2.0), np.where(np.arange(50) < 5, 5.0, 4.0))
    assert difference("f1", one_word_more, longer).p < 0.05, "other denominators: the bootstrap, as far as it goes"


@pytest.mark.parametrize(
    ("changes", "exact"),
    [
        pytest.param([1.0] * 5, 1 / 16, id="too few sentences differ for a test, and all resamples agree"),
        pytest.param([1.0] * 24 + [-7.0], 0.032, id="one sentence of twenty-five weighs most"),
    ],
)
def test_p_and_interval_agree(changes: list[float], exact: float) -> None:
    """The bootstrap's interval and the exact p of these two would not."""
    amounts, below = np.zeros(40), np.full(40, 10.0)
    amounts[: len(changes)] = changes
    first, second = (Ratio(below / 2 + np.maximum(part, 0), below, share=True) for part in (amounts, -amounts))
    assert sign_flip_p(amounts) == pytest.approx(exact, abs=1e-3)
    for found in (difference("accuracy", first, second), difference("accuracy", second, first)):
        low, high = found.interval
        assert low <= 0 <= high and found.p > 0.05
