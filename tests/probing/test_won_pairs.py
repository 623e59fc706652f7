"""Winners: errors of ranks by hand, who wins and whether it is more than chance."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from tests.probing.models import pico_model
from tests.tiny import FILES
from unmask.designs.design import Design
from unmask.probing.inputs import Pair, pair_cosines
from unmask.probing.won_pairs import compare_ranks, probe_winners, rank_errors, shared_words
from unmask.reporting.probe_figures import draw_pairs
from unmask.statistics.correlations import codes_of, ranks_of

PAIRS = [Pair(row["sentence1"], row["sentence2"], row["score"]) for row in FILES["sts"]()["test.jsonl"]]
DESIGNS = (Design("causal", "eol", "last"), Design("causal", "eol", "last", features="routing"))
RANDOM = np.random.default_rng(0)
GOLD = RANDOM.normal(size=200)


def test_errors_by_hand() -> None:
    """Gold ranks 1, 2.5, 2.5, 4; the first reading has 1, 2, 3, 4, the second 4, 3, 2, 1."""
    table = np.array([[0.1, 0.9, 0], [0.2, 0.8, 1], [0.3, 0.7, 1], [0.4, 0.6, 5]])
    errors = rank_errors(ranks_of(codes_of(table), np.ones(4, np.int64)), 4)
    np.testing.assert_allclose(errors, [[0, 0.125, 0.125, 0], [0.75, 0.125, 0.125, 0.75]])


def test_the_better_reading_wins_and_equal_ones_do_not() -> None:
    near, far = GOLD + 0.3 * RANDOM.normal(size=200), GOLD + 3 * RANDOM.normal(size=200)
    found = compare_ranks(near, far, GOLD, {})
    assert found["first"].value == pytest.approx(spearmanr(near, GOLD).statistic)
    assert found["difference"].value == pytest.approx(found["first"].value - found["second"].value)
    assert found["margin"].interval[0] > 0 and found["difference"].interval[0] > 0
    back = compare_ranks(far, near, GOLD, {})
    assert back["margin"].value == pytest.approx(-found["margin"].value)
    alike = compare_ranks(GOLD + RANDOM.normal(size=200), GOLD + RANDOM.normal(size=200), GOLD, {})
    assert alike["margin"].interval[0] < 0 < alike["margin"].interval[1]


def test_a_mixture_read_in_two_ways(tokenizer: Any) -> None:
    model = pico_model(tokenizer, "causal", "olmoe")
    found = probe_winners(model, DESIGNS, PAIRS, limit=3)
    similarities = pair_cosines(model, DESIGNS, PAIRS)
    gold = [pair.score for pair in PAIRS]
    for place in (0, 1):
        assert found.spearman[place].value == pytest.approx(spearmanr(similarities[:, place], gold).statistic)
    errors = np.array(found.errors)
    margins = errors[1] - errors[0]
    assert found.margin.value == pytest.approx(margins.mean())
    assert found.wins == ((margins > 0).sum(), (margins < 0).sum())
    assert [one.margin for one in found.first] == sorted(margins, reverse=True)[:3]
    assert [one.margin for one in found.second] == sorted(margins)[:3]
    for one in (*found.first, *found.second):
        errors_of = [abs(rank - one.gold_rank) * (len(PAIRS) - 1) / len(PAIRS) for rank in one.ranks]
        assert one.margin == pytest.approx(errors_of[1] - errors_of[0])
        assert Pair(one.first, one.second, one.score) in PAIRS
    content = json.loads(json.dumps(found.as_json()))
    assert content["goes_with"]["shared words"]["value"] == pytest.approx(
        spearmanr(margins, [shared_words(pair.first, pair.second) for pair in PAIRS]).statistic
    )


def test_a_design_does_not_win_against_itself(tokenizer: Any) -> None:
    found = probe_winners(pico_model(tokenizer, "causal"), (DESIGNS[0], DESIGNS[0]), PAIRS)
    assert (found.wins, found.p, found.margin.value, found.first, found.second) == ((0, 0), 1.0, 0.0, (), ())
    assert draw_pairs(found).axes  # no margin to draw
