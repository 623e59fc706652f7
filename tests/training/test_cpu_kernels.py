"""The kernels for training on a CPU change how fast a step is, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.families import FAMILIES
from unmask.training import cpu_kernels
from unmask.training.cpu_kernels import attention_kernel, restore_experts, speed_up_experts


def uses_plain_kernel() -> bool:
    return not torch.backends.cuda.flash_sdp_enabled()  # the switch of all devices


def test_short_texts_use_the_plain_kernel_with_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    model = FAMILIES["llama"].build().train()
    ids, mask = torch.arange(5, 45).reshape(4, 10), torch.ones(4, 10, dtype=torch.long)
    mask[0, 6:] = 0

    def gradients() -> list[Tensor]:
        model.zero_grad()
        states = model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        (states * mask[..., None]).pow(2).mean().backward()
        return [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]

    usual = gradients()
    saved_bytes = model.config.num_attention_heads * model.config.num_hidden_layers * 4 * 4 * 10**2
    for limit, is_plain in ((saved_bytes, True), (saved_bytes - 1, False)):
        monkeypatch.setattr(cpu_kernels, "_MOST_BYTES", limit)
        for inputs in ({"input_ids": ids}, {"chunks": [{"input_ids": ids[:3]}, {"input_ids": ids[3:]}], "rows": ["a"]}):
            with attention_kernel(model, inputs):
                assert uses_plain_kernel() is is_plain
                assert all(map(lambda x, y: torch.allclose(x, y, atol=1e-6), gradients(), usual))
            assert not uses_plain_kernel()
    with attention_kernel(FAMILIES["mamba"].build(), {"input_ids": ids}):
        assert not uses_plain_kernel(), "a model without attention"


def outcome(model: Any) -> list[Tensor]:
    """The states of some tokens, and the gradients of all weights. Models do not train here: some add noise to their routers then."""
    model.zero_grad()
    ids = torch.arange(26).view(2, 13) + 5
    states = model(input_ids=ids).last_hidden_state
    (states.float() * torch.randn(states.shape, generator=torch.Generator().manual_seed(0))).sum().backward()
    return [states.detach(), *(weight.grad for weight in model.parameters() if weight.grad is not None)]


@pytest.mark.parametrize("family", ["llama", *(name for name, family in FAMILIES.items() if family.experts)])
def test_padding_experts_changes_nothing(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A multiple of 5 adds tokens to nearly every expert, and leaves a rest where a token has several experts."""
    monkeypatch.setattr(cpu_kernels, "_MULTIPLE", 5)
    model = FAMILIES[family].build().eval()
    before, usual = outcome(model), model.config._experts_implementation
    speed_up_experts(model)
    assert (model.config._experts_implementation != usual) == (usual == "grouped_mm" and family != "llama")
    for ours, plain in zip(outcome(model), before, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5 * float(plain.abs().max()))
    restore_experts(model)
    assert model.config._experts_implementation == usual


def test_under_autocast_experts_compute_in_bfloat16_and_keep_gradients_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_kernels, "_MULTIPLE", 4)
    model = FAMILIES["mixtral"].build().eval()
    exact = outcome(model)
    speed_up_experts(model)
    dtypes, sizes = set(), set()

    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.overloadpacket is torch.ops.aten._grouped_mm:
                dtypes.add(args[1].dtype)
                sizes.update(torch.diff(args[2], prepend=torch.zeros(1)).tolist())
            return func(*args, **(kwargs or {}))

    with Products(), torch.autocast("cpu", torch.bfloat16):
        rounded = outcome(model)
    assert dtypes == {torch.bfloat16} and not any(size % 4 for size in sizes), "few sizes"
    for ours, plain in zip(rounded, exact, strict=True):
        assert ours.dtype == torch.float32 or ours is rounded[0]
        assert torch.cosine_similarity(ours.float().flatten(), plain.flatten(), dim=0) > 0.95
