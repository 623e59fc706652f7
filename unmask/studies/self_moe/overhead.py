"""Overhead: what a mixture costs compared with its base model, in parameters, FLOPs and time."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from unmask.models.loading import Source
from unmask.moe.mixture.mixture_folder import load_mixture

_TOKENS, _TEXTS, _ROUNDS = 128, 4, 4


@dataclass(frozen=True)
class Overhead:
    """The cost of a mixture.

    parameters: those of the base. added: those of all experts and the router. router: those of the router. flops, forward: FLOPs and time
    of a forward pass, divided by those of the base.
    """

    experts: int
    parameters: int
    added: int
    router: int
    flops: float
    forward: float

    def as_json(self) -> dict[str, Any]:
        """For the report."""
        return asdict(self)


def measure_overhead(folder: Path, source: Source) -> Overhead:
    """Count and time a saved mixture and its base (the same model without experts), in turns. Each time is the best of four."""
    from torch.utils.flop_counter import FlopCounterMode

    mixture, _ = load_mixture(folder, source)
    model = mixture.model.eval()
    ids = torch.randint(3, model.config.vocab_size, (_TEXTS, _TOKENS), generator=torch.Generator().manual_seed(0)).to(
        model.device
    )

    def forward() -> None:
        with torch.inference_mode():
            model(input_ids=ids, use_cache=False, logits_to_keep=1)

    ways: dict[str, Callable[[], Any]] = {"base": mixture.without_experts, "mixture": nullcontext}
    flops: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for name, way in ways.items():
        with way(), FlopCounterMode(display=False) as counter:
            forward()
        flops[name] = counter.get_total_flops()
    for _ in range(_ROUNDS):
        for name, way in ways.items():
            with way():
                begun = time.perf_counter()
                forward()
                if ids.is_cuda:
                    torch.cuda.synchronize()
            seconds[name] = min(seconds.get(name, float("inf")), time.perf_counter() - begun)
    experts = sum(weight.numel() for weight in mixture.expert_weights)
    router = sum(weight.numel() for weight in mixture.router_weights)
    total = sum(weight.numel() for weight in model.parameters())
    return Overhead(
        len(mixture.experts),
        total - experts - router,
        experts + router,
        router,
        flops["mixture"] / flops["base"],
        seconds["mixture"] / seconds["base"],
    )
