"""Generation: a prefix that is computed once gives what the whole prompt gives, and so does a batch that shrinks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TopPLogitsWarper

from tests.moe.mixture.models import language_model, saved_experts
from unmask.moe.experts.lessons import generation
from unmask.moe.experts.lessons.generation import Sampling, Writer
from unmask.moe.mixture.gating import Routing
from unmask.moe.mixture.model import Mixture

PREFIX, ROWS = "A few tasks to be solved, one by one.\n\n", ["Task 1\nAdd", "Task 22\nName all of the colours", "x"]
GREEDY = Sampling(12)


@pytest.mark.sample(4)
@pytest.mark.parametrize("rows", [ROWS, [ROWS[0]] * 2], ids=["padded", "alike"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "olmo2", "mistral-sliding", "qwen3-next"])
def test_a_shared_prefix_changes_nothing(family: str, rows: list[str], tokenizer: Any) -> None:
    model = language_model(family, vocab_size=512, max_position_embeddings=512)
    found = Writer(model, tokenizer).write(PREFIX, rows, GREEDY, "\n\nTask", 0)
    for row, text in zip(rows, found, strict=True):
        ids = torch.tensor([tokenizer(PREFIX)["input_ids"] + tokenizer(row, add_special_tokens=False)["input_ids"]])
        with torch.no_grad():
            alone = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
        assert text.text == tokenizer.decode(alone[0, ids.shape[1] :], skip_special_tokens=True).split("\n\nTask")[0]
        assert text.text and not text.ended


@pytest.mark.parametrize("family", ["llama", "gemma3", "mistral-sliding", "qwen3-next"])
def test_a_row_that_ends_early_changes_no_other(family: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(language_model(family, vocab_size=512, max_position_embeddings=512), tokenizer)
    plain, stop = _alone(writer)
    monkeypatch.setattr(generation, "_STRETCH", 4)
    found = writer.write(PREFIX, ROWS, GREEDY, stop, 0)
    assert [text.text for text in found] == [plain[0], plain[1].split(stop)[0], plain[2]]
    assert [text.ended for text in found] == [False, True, False]


def _alone(writer: Writer) -> tuple[list[str], str]:
    """What follows each row, written alone, and a stop that occurs early in the second of these texts, and in no other."""
    plain = [writer.write(PREFIX, [row], GREEDY, "never", 0)[0].text for row in ROWS]
    early = [plain[1][start : start + length] for length in (1, 2, 3) for start in range(2, 6)]
    return plain, next(word for word in early if all(word not in text for text in (plain[0], plain[2])))


@pytest.mark.sample(1)
@pytest.mark.parametrize("routing", [Routing(top_k=2), Routing("final", top_k=2), Routing(level="sequence", top_k=2)], ids=str)
def test_a_mixture_writes_in_a_batch_what_it_writes_alone(
    routing: Routing, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = language_model(vocab_size=512, max_position_embeddings=512)
    mixture = Mixture(model, saved_experts(tmp_path, model), routing)
    for router in mixture.routers.values():
        torch.nn.init.normal_(router.weight, std=0.5)
    writer = Writer(model, tokenizer)
    _, stop = _alone(writer)
    monkeypatch.setattr(generation, "_STRETCH", 4)
    found = writer.write(PREFIX, ROWS, GREEDY, stop, 0)
    assert found == [writer.write(PREFIX, [row], GREEDY, stop, 0)[0] for row in ROWS]
    assert [text.ended for text in found] == [False, True, False], "a row is removed while others go on"


def test_samples_depend_on_the_seed_alone(tokenizer: Any) -> None:
    writer = Writer(language_model(vocab_size=512, max_position_embeddings=512), tokenizer)
    sampling = Sampling(12, 1.0, 0.98)
    one = writer.write(PREFIX, ROWS, sampling, "\n\nTask", 5)
    torch.rand(7)
    assert writer.write(PREFIX, ROWS, sampling, "\n\nTask", 5) == one
    assert writer.write(PREFIX, ROWS, sampling, "\n\nTask", 6) != one
    assert len(set(writer.write(PREFIX, ["x"] * 8, sampling, "\n\nTask", 5))) > 1, "equal rows are continued differently"
    before = torch.random.get_rng_state()
    writer.write(PREFIX, ROWS, sampling, "\n\nTask", 5)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("top_p", [0.1, 0.9])
def test_tokens_are_drawn_from_the_nucleus_as_often_as_transformers_says(top_p: float) -> None:
    torch.manual_seed(0)
    scores, draws = torch.randn(12) * 3, 20_000
    before = torch.zeros(draws, 1, dtype=torch.long)
    expected = TopPLogitsWarper(top_p)(before, scores.unsqueeze(0) / 0.5).softmax(dim=-1).squeeze(0)
    left = generation.NucleusSampling(0.5, top_p)(before, scores.expand(draws, -1))
    assert (left.isfinite().sum(dim=1) == 1).all()
    shares = torch.bincount(left.argmax(dim=1), minlength=12) / draws
    assert (shares[expected == 0] == 0).all() and torch.allclose(shares, expected, atol=4 * 0.5 / draws**0.5)


@pytest.mark.parametrize("spread", [0.1, 5.0])
def test_it_does_not_matter_how_many_tokens_are_sorted_first(spread: float, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    scores, samples = torch.randn(64, 500) * spread, []
    for size in (2048, 5):
        monkeypatch.setattr(generation, "_SORTED", size)
        torch.manual_seed(1)
        samples.append(generation.NucleusSampling(1.0, 0.9)(torch.zeros(64, 1, dtype=torch.long), scores).argmax(dim=1))
    assert torch.equal(*samples) and len(samples[0].unique()) > 5
