"""Generation: a prefix that is computed once gives what the whole prompt gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.mixture.models import language_model, saved_experts
from unmask.errors import UnmaskError
from unmask.experts.lessons.generation import Sampling, Writer
from unmask.mixture.gating import Routing
from unmask.mixture.mixture_folder import Mixture

PREFIX, ROWS = "A few tasks to be solved, one by one.\n\n", ["Task 1\nAdd", "Task 22\nName all of the colours", "x"]
GREEDY = Sampling(12)


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


@pytest.mark.parametrize("routing", [Routing(top_k=2), Routing("final", top_k=2), Routing(level="sequence", top_k=2)], ids=str)
def test_a_mixture_writes_in_a_batch_what_it_writes_alone(routing: Routing, tokenizer: Any, tmp_path: Path) -> None:
    model = language_model(vocab_size=512, max_position_embeddings=512)
    mixture = Mixture(model, saved_experts(tmp_path, model), routing)
    for router in mixture.routers.values():
        torch.nn.init.normal_(router.weight, std=0.5)
    writer = Writer(model, tokenizer)
    found = writer.write(PREFIX, ROWS, GREEDY, "\n\nTask", 0)
    assert found == [writer.write(PREFIX, [row], GREEDY, "\n\nTask", 0)[0] for row in ROWS]


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


def test_a_prompt_without_room_is_refused(tokenizer: Any) -> None:
    writer = Writer(language_model(vocab_size=512, max_position_embeddings=32), tokenizer)
    with pytest.raises(UnmaskError, match="leaves no room for 40 new ones in 32 positions"):
        writer.write(PREFIX, ROWS, Sampling(40), "\n\nTask", 0)
