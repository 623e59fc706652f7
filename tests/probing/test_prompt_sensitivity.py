"""Prompts: correlations by hand, their means, and a mixture under nine prompts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.probing.models import pico_model
from tests.tiny import FILES
from unmask.designs.design import Design
from unmask.probing.inputs import Pair, pair_cosines
from unmask.probing.prompt_sensitivity import probe_prompts, summarise
from unmask.statistics.correlations import spearman_matrix

PAIRS = [Pair(row["sentence1"], row["sentence2"], row["score"]) for row in FILES["sts"]()["test.jsonl"]]


def test_means_by_hand() -> None:
    """Two prompts: HS 0.2 with itself, RW 0.6; between 0.1, 0.2, 0.3 and 0.4, of which 0.1 and 0.4 under the same prompt."""
    matrix = np.array([[1, 0.2, 0.1, 0.2], [0.2, 1, 0.3, 0.4], [0.1, 0.3, 1, 0.6], [0.2, 0.4, 0.6, 1]])
    expected = {"HS": 0.2, "RW": 0.6, "between": 0.25, "same prompt": 0.25, "steadier": 0.4}
    assert summarise(matrix, 2) == pytest.approx(expected)
    matrix[0, 2] = 0.5
    assert summarise(matrix, 2)["same prompt"] == pytest.approx(0.45)
    assert summarise(matrix[:2, :2], 2) == pytest.approx({"HS": 0.2})


def test_a_mixture_under_two_prompts(tokenizer: Any) -> None:
    model = pico_model(tokenizer, "causal", "olmoe")
    found = probe_prompts(model, PAIRS, ("eol", "tone"))
    assert found.readings == [("HS", "eol"), ("HS", "tone"), ("RW", "eol"), ("RW", "tone")]
    designs = [Design("causal", "tone", "last"), Design("causal", "eol", "last", features="routing")]
    similarities = pair_cosines(model, designs, PAIRS)
    gold = np.array([pair.score for pair in PAIRS], float)
    expected = spearman_matrix(np.column_stack([similarities, gold]))
    matrix = np.array(found.spearman)
    assert matrix[1, 2] == matrix[2, 1] == pytest.approx(expected[0, 1])
    assert found.gold is not None
    assert [found.gold[1].value, found.gold[2].value] == pytest.approx(expected[:2, 2])
    assert found.between is not None and found.steadier is not None
    for one in (*found.within.values(), found.between, *found.gold):
        low, high = one.interval
        assert low < high and low - 0.05 <= one.value <= high + 0.05
    assert found.steadier.value == pytest.approx(found.within["RW"].value - found.within["HS"].value)
    assert json.loads(json.dumps(found.as_json()))["within"]["RW"]["value"] == pytest.approx(matrix[2, 3])


def test_a_dense_model_has_hidden_states_only_and_pairs_may_lack_scores(tokenizer: Any) -> None:
    pairs = [replace(pair, score=None) for pair in PAIRS]
    found = probe_prompts(pico_model(tokenizer, "causal"), pairs, ("eol", "style", "tone"))
    assert (found.features, len(found.spearman), list(found.within)) == (("HS",), 3, ["HS"])
    assert [found.between, found.same_prompt, found.steadier, found.gold] == [None] * 4
