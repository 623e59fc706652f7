"""States: what has to be equal is, what transformers gives is what is compared, and padding changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import TEXTS
from tests.probing.models import pico_model
from tests.tiny import labelled
from unmask.encoding.tokenization import tokenize_bare
from unmask.errors import AttentionError, UnmaskError
from unmask.models.attention import set_attention
from unmask.probing.state_change import position_bins, probe_states
from unmask.statistics.intervals import jackknife_interval

FAMILIES = ["llama", "gpt2", "olmoe"]


def test_bins_double_and_end_with_the_longest_text() -> None:
    assert position_bins(1) == [(0, 0)]
    assert position_bins(11) == [(0, 0), (1, 1), (2, 3), (4, 7), (8, 10)]


def by_hand(model: Any, ids: tuple[int, ...]) -> np.ndarray:
    """Cosines of one text alone, shape (layer, position), from the hidden states that transformers returns."""
    states = []
    for attention in ("causal", "bidirectional"):
        set_attention(model, attention)  # type: ignore[arg-type]
        with torch.inference_mode():
            output = model(torch.tensor([ids]), output_hidden_states=True, use_cache=False)
        states.append(torch.stack(output.hidden_states[1:])[:, 0])
    return np.asarray(torch.nn.functional.cosine_similarity(*states, dim=2))


@pytest.mark.parametrize("family", FAMILIES)
def test_cosines_are_those_of_transformers_states(family: str, tokenizer: Any) -> None:
    model = pico_model(tokenizer, "causal", family)
    found = probe_states(replace(model, max_length=9), TEXTS)
    ids = [tokenize_bare(tokenizer, text).ids[:9] for text in dict.fromkeys(TEXTS)]
    tables = [by_hand(model.backbone.model, some) for some in ids if len(some) > 1]
    assert found.bins == ((0, 0), (1, 1), (2, 3), (4, 7), (8, 8))
    for place, (first, last) in enumerate(found.bins):
        cells = np.concatenate([table[:, first : last + 1] for table in tables], axis=1)
        assert found.tokens[place] == cells.shape[1]
        np.testing.assert_allclose([row[place] for row in found.cosine], cells.mean(axis=1), atol=1e-5)
    everything = np.concatenate(tables, axis=1).mean(axis=1)
    assert [one.value for one in found.mean] == pytest.approx(everything, abs=1e-5)
    assert all(one.interval[0] <= one.value <= one.interval[1] for one in found.mean)
    assert found.mean[-1].value < 0.999  # the mask matters to this model
    assert found.truncated == sum(len(tokenize_bare(tokenizer, text).ids) > 9 for text in dict.fromkeys(TEXTS)) > 0


def test_padding_and_batches_change_nothing(tokenizer: Any) -> None:
    model = pico_model(tokenizer, "causal", "olmoe")
    together, apart = (probe_states(replace(model, batch_tokens=budget), TEXTS) for budget in (4096, 1))
    for one, other in zip(together.cosine, apart.cosine, strict=True):
        assert one == pytest.approx(other, abs=1e-5)
    assert together.unrelated == pytest.approx(apart.unrelated, abs=1e-5)


def test_intervals_are_those_of_the_probe_without_each_text(tokenizer: Any) -> None:
    model = pico_model(tokenizer, "causal")
    texts = [row["text"] for row in labelled(0, 6)]
    found = probe_states(model, texts)
    without = [probe_states(model, texts[:place] + texts[place + 1 :]) for place in range(6)]
    for layer in range(model.backbone.depth):
        left_out = np.array([one.unrelated[layer] for one in without])
        expected = jackknife_interval(found.unrelated[layer], left_out, most=1.0)
        assert found.unrelated_intervals[layer] == pytest.approx(expected, abs=1e-5)
        left_out = np.array([one.cosine[layer][0] for one in without])
        expected = jackknife_interval(found.cosine[layer][0], left_out, most=1.0)
        assert found.cosine_intervals[layer][0] == pytest.approx(expected, abs=1e-5)
    assert {bounds for row in without[0].cosine_intervals for bounds in row} != {None}
    assert {bounds for row in probe_states(model, texts[:4]).cosine_intervals for bounds in row} == {None}


def test_what_cannot_be_compared_is_refused(tokenizer: Any) -> None:
    with pytest.raises(AttentionError):
        probe_states(pico_model(tokenizer, "causal", "mamba"), TEXTS)
    with pytest.raises(UnmaskError, match="at least 2 different texts of at least 2 tokens"):
        probe_states(pico_model(tokenizer, "causal"), ["x", TEXTS[0], TEXTS[0]])
