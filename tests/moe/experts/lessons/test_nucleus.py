"""A token is drawn from the nucleus, as often as it is likely, however much of the vocabulary was sorted for it."""

from __future__ import annotations

import pytest
import torch
from transformers import TopPLogitsWarper

from unmask.moe.experts.lessons.generation import NucleusSampling


@pytest.mark.parametrize("top_p", [0.1, 0.9, 1.0])
@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_tokens_are_drawn_as_often_as_transformers_says(temperature: float, top_p: float) -> None:
    torch.manual_seed(0)
    scores, draws = torch.randn(12) * 3, 20_000
    before = torch.zeros(draws, 1, dtype=torch.long)
    kept = TopPLogitsWarper(top_p)(before, scores.unsqueeze(0) / temperature)
    expected = kept.softmax(dim=-1).squeeze(0)
    left = NucleusSampling(temperature, top_p)(before, scores.expand(draws, -1))
    assert (left.isfinite().sum(dim=1) == 1).all()
    shares = torch.bincount(left.argmax(dim=1), minlength=12) / draws
    assert (shares[expected == 0] == 0).all()
    assert torch.allclose(shares, expected, atol=4 * 0.5 / draws**0.5)


@pytest.mark.parametrize("spread", [0.1, 1.0, 5.0])
def test_it_does_not_matter_how_many_tokens_are_sorted_first(spread: float, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    scores, before = torch.randn(64, 500) * spread, torch.zeros(64, 1, dtype=torch.long)

    def drawn(first: int) -> torch.Tensor:
        monkeypatch.setattr("unmask.moe.experts.lessons.generation._SORTED", first)
        torch.manual_seed(1)
        return NucleusSampling(1.0, 0.9)(before, scores).argmax(dim=1)

    whole = drawn(2048)
    assert torch.equal(drawn(500), whole) and torch.equal(drawn(5), whole)
    assert len(whole.unique()) > 5
