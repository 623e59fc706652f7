"""Speed of mixtures, as ratios within one run. `python -m benchmarks.mixture [N ...]`, N numbers of experts (4 and 16).

train: forward and backward through smollm2 with N random experts of rank 8, all acting, against the base alone, and against PEFT's
X-LoRA with the same experts. generate: one token with a cache, one expert or all acting, against the base.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from unmask.loading import Source, load_language_model
from unmask.mixture.experts import Expert, read_expert
from unmask.mixture.gating import Routing
from unmask.mixture.model import Mixture

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
BATCH, LENGTH, NEW, ROUNDS = 4, 128, 24, 4


def make_experts(folder: Path, number: int) -> list[Expert]:
    """Experts of random weights, on disk."""
    from peft import LoraConfig, get_peft_model

    model = load_language_model(Source("smollm2"))[0]
    for place in range(number):
        config = LoraConfig(r=8, lora_alpha=16, target_modules=LINEAR, task_type="CAUSAL_LM")
        adapted = get_peft_model(model, config)
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=1e-3)
        adapted.peft_config["default"].base_model_name_or_path = "smollm2"
        adapted.save_pretrained(folder / f"expert{place}")
        adapted.unload()
    return [read_expert(folder / f"expert{place}") for place in range(number)]


def mixture_model(experts: list[Expert], top_k: int) -> Any:
    """smollm2 with experts; the router is free to train."""
    mixture = Mixture(load_language_model(Source("smollm2"))[0], experts, Routing(top_k=top_k))
    for router in mixture.routers.values():
        router.weight.requires_grad_(True)
    return mixture.model


def xlora_model(experts: list[Expert]) -> Any:
    """The same in PEFT's X-LoRA."""
    from peft import XLoraConfig, get_peft_model

    model = load_language_model(Source("smollm2"))[0]
    model.config.use_cache = False
    adapters = {str(place): str(expert.folder) for place, expert in enumerate(experts)}
    config = XLoraConfig(task_type="CAUSAL_LM", hidden_size=model.config.hidden_size, xlora_depth=1, adapters=adapters)
    return get_peft_model(model, config).to(model.dtype)


def step(model: Any) -> Callable[[], None]:
    """One forward and backward pass, to the embeddings."""
    ids = torch.randint(10, 40_000, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))
    model.train()

    def run() -> None:
        states = model.get_input_embeddings()(ids).detach().requires_grad_(True)
        model(inputs_embeds=states, labels=ids, use_cache=False).loss.backward()

    return run


def generating(model: Any) -> Callable[[], None]:
    """A few tokens with a cache."""
    ids = torch.randint(10, 40_000, (1, 64), generator=torch.Generator().manual_seed(0))
    model.eval()

    def run() -> None:
        with torch.inference_mode():
            model.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False
            )

    return run


def ratios(ways: dict[str, Callable[[], None]], base: str) -> dict[str, float]:
    """Seconds of each way over those of one, interleaved, the best of some rounds."""
    best: dict[str, float] = {}
    for turn in range(ROUNDS + 1):
        for name, way in ways.items():
            begun = time.perf_counter()
            way()
            if turn:
                best[name] = min(best.get(name, float("inf")), time.perf_counter() - begun)
    return {name: round(seconds / best[base], 3) for name, seconds in best.items()}


def main() -> None:
    warnings.filterwarnings("ignore")
    found: dict[str, Any] = {}
    for number in [int(one) for one in sys.argv[1:]] or [4, 16]:
        with tempfile.TemporaryDirectory() as folder:
            experts = make_experts(Path(folder), number)
            base = load_language_model(Source("smollm2"))[0].requires_grad_(False)
            mixture, sparse, xlora = mixture_model(experts, number), mixture_model(experts, 1), xlora_model(experts)
            train = ratios({"base": step(base), "mixture": step(mixture), "x-lora": step(xlora)}, "base")
            generate = ratios({"base": generating(base), "top-1": generating(sparse), "all": generating(mixture)}, "base")
            found[f"{number} experts"] = {"train": train, "generate": generate}
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
