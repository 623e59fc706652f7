"""Pico models with experts: PEFT folders with random LoRA on a random base."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tests.families import FAMILIES
from unmask.moe.mixture.expert_folder import Expert, read_expert

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
FAMILY = ["llama", "mistral-sliding", "gemma3", "olmoe", "qwen2-moe"]


def language_model(family: str = "llama", **changes: Any) -> Any:
    """A pico causal language model, all of whose weights matter."""
    from transformers import AutoModelForCausalLM

    config = FAMILIES[family].build().config
    for name, value in changes.items():
        setattr(config, name, value)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.1)
    return model.eval()


def saved_experts(
    folder: Path, model: Any, names: Sequence[str] = ("a", "b", "c"), rank: int = 2, std: float = 0.2, **options: Any
) -> list[Expert]:
    """Experts as PEFT saves them, with weights large enough to matter."""
    from peft import LoraConfig, get_peft_model

    kinds = {name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    targets = options.pop("targets", sorted(kinds & set(LINEAR)))
    for seed, name in enumerate(names):
        torch.manual_seed(seed + 1)
        config = LoraConfig(**({"r": rank, "lora_alpha": 3, "target_modules": targets, "task_type": "CAUSAL_LM"} | options))
        adapted = get_peft_model(model, config)
        for path, parameter in adapted.named_parameters():
            if "lora_" in path:
                torch.nn.init.normal_(parameter, std=std)
        adapted.save_pretrained(folder / name)
        adapted.unload()
    return [read_expert(folder / name) for name in names]


def tokens(model: Any, texts: int = 3, length: int = 9) -> torch.Tensor:
    return torch.randint(3, model.config.vocab_size, (texts, length), generator=torch.Generator().manual_seed(7))
