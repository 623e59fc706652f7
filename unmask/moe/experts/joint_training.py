"""Joint training: experts and router train together on the lessons of all domains (an ablation of Self-MoE, arXiv 2406.12034, table 3).

The experts are new: A is random and B is zero, so the model starts as its base. No expert is tied to a domain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unmask.models.decoder import body_of, find_layers
from unmask.models.loading import Source, load_base_language_model
from unmask.moe.experts.expert import linear_kinds
from unmask.moe.mixture.expert_folder import Expert, write_expert
from unmask.moe.mixture.gating import Routing
from unmask.moe.mixture.mixture_folder import Mixture
from unmask.training.lora import LoraOptions, weight_kinds


def fresh_mixture(source: Source, names: Sequence[str], routing: Routing, lora: LoraOptions, seed: int) -> tuple[Mixture, Any]:
    """A mixture with untrained experts, their weights in fp32 for training; and its tokenizer."""
    model, tokenizer = load_base_language_model(source)
    layers = find_layers(body_of(model))
    kinds = weight_kinds(model, layers)
    maps = [name for kind in linear_kinds(model, layers, lora) for name in kinds[kind]]
    chance = torch.Generator().manual_seed(seed)
    experts = []
    for name in names:
        factors = {}
        for path in maps:
            size_out, size_in = model.get_submodule(path).weight.shape
            bound = 1 / math.sqrt(size_in)  # as PEFT begins: Kaiming, uniform, a = sqrt(5)
            down = (torch.rand(lora.r, size_in, generator=chance) * 2 - 1) * bound
            factors[path] = (down, torch.zeros(size_out, lora.r))
        experts.append(Expert(name, Path(), source.model, lora.r, lora.alpha / lora.r, factors))
    mixture = Mixture(model, experts, routing, source=source, seed=seed)
    mixture.scale_experts(lora.alpha / lora.r)
    for point in mixture.points.values():
        point.unshare()
    for stack in mixture.stacks.values():
        stack.down, stack.up = (nn.Parameter(weight.float(), requires_grad=False) for weight in (stack.down, stack.up))
    return mixture, tokenizer


def write_experts(mixture: Mixture, folder: Path, lora: LoraOptions) -> None:
    """Write what the experts of a mixture have become as PEFT folders, which they are the experts of from then on."""
    written = []
    for place, expert in enumerate(mixture.experts):
        rows = slice(place * expert.rank, (place + 1) * expert.rank)
        factors = {
            name: (stack.down.detach()[rows].float().cpu(), stack.up.detach()[:, rows].float().cpu() * (lora.alpha / lora.r))
            for name, stack in mixture.stacks.items()
        }
        made = replace(expert, folder=folder / expert.name, factors=factors)
        write_expert(made, made.folder, lora.alpha)
        written.append(made)
    mixture.experts = written
