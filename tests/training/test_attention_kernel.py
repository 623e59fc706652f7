"""The kernel of attention changes how fast a step is, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.families import FAMILIES
from tests.training.running import ROOT, recipe
from unmask.training import attention_kernel as module
from unmask.training.attention_kernel import attention_kernel
from unmask.training.run import train
from unmask.training.stages import STAGES


def plain() -> bool:
    return not torch.backends.cuda.flash_sdp_enabled()  # the switch of all devices


def step(texts: int, tokens: int) -> dict[str, Any]:
    return {"input_ids": torch.ones(texts, tokens, dtype=torch.long)}


def test_short_texts_take_the_plain_kernel_and_long_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    model = FAMILIES["llama"].build()
    kept = model.config.num_attention_heads * model.config.num_hidden_layers * 4 * 4 * 10**2
    for limit, expected in ((kept, True), (kept - 1, False)):
        monkeypatch.setattr(module, "_KEPT", limit)
        for inputs in (step(4, 10), {"chunks": [step(3, 10), step(1, 10)], "rows": ["a"]}):
            with attention_kernel(model, inputs):
                assert plain() is expected
            assert not plain()


@pytest.mark.parametrize("inputs", [step(4, 10), {"labels": torch.ones(2)}])
def test_without_attention_or_texts_nothing_is_chosen(inputs: dict[str, Any]) -> None:
    model = FAMILIES["mamba" if "input_ids" in inputs else "llama"].build()
    with attention_kernel(model, inputs):
        assert not plain()


def test_gradients_are_those_of_the_other_kernel() -> None:
    model = FAMILIES["llama"].build().train()
    ids, mask = torch.arange(5, 45).reshape(4, 10), torch.ones(4, 10, dtype=torch.long)
    mask[0, 6:] = 0

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        states = model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        (states * mask[..., None]).pow(2).mean().backward()
        return [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]

    usual = gradients()
    with attention_kernel(model, {"input_ids": ids}):
        assert plain()
        found = gradients()
    assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(found, usual, strict=True))


@pytest.mark.parametrize("stage", ["contrastive", "mntp"])
def test_every_step_of_a_training_takes_it(stage: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    prepare = STAGES[stage].prepare

    def spied(*given: Any) -> Any:
        ready = prepare(*given)
        inner = ready.objective

        def objective(*parts: Any) -> Any:
            seen.append(plain())
            return inner(*parts)

        object.__setattr__(ready, "objective", objective)
        return ready

    monkeypatch.setattr(STAGES[stage], "prepare", spied)
    train(recipe(model, stage), tmp_path / "run", ROOT)
    assert len(seen) >= 2 and all(seen) and not plain()
