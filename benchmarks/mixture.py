"""Speed of mixtures, as ratios from one run.

    python -m benchmarks.mixture [N ...] [--smoke]   (N: numbers of experts, by default 4 and 16)

train: a forward and backward pass through smollm2 with N random experts of rank 8, all in use. It is compared with the base model alone,
and with PEFT's X-LoRA with the same experts. generate: tokens with a cache, with one expert or all in use, compared with the base model.
"""

from __future__ import annotations

import json
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import _inputs
from unmask.models.loading import Source, load_base_language_model
from unmask.moe.mixture.expert_folder import Expert, read_expert
from unmask.moe.mixture.gating import Routing
from unmask.moe.mixture.mixture_folder import Mixture

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
BATCH = 4


@dataclass(frozen=True)
class Scale:
    """The size of a measurement: tokens of a training text and of a prompt, new tokens, and rounds."""

    model: str = "smollm2"
    length: int = 128
    prompt: int = 64
    new: int = 24
    rounds: int = 4


def make_experts(folder: Path, number: int, name: str) -> list[Expert]:
    """Experts with random weights, on disk."""
    from peft import LoraConfig, get_peft_model

    model = load_base_language_model(Source(name))[0]
    for place in range(number):
        config = LoraConfig(r=8, lora_alpha=16, target_modules=LINEAR, task_type="CAUSAL_LM")
        adapted = get_peft_model(model, config)
        for key, weight in adapted.named_parameters():
            if "lora_B" in key:
                torch.nn.init.normal_(weight, std=1e-3)
        adapted.peft_config["default"].base_model_name_or_path = name
        adapted.save_pretrained(folder / f"expert{place}")
        adapted.unload()
    return [read_expert(folder / f"expert{place}") for place in range(number)]


def mixture_model(experts: list[Expert], top_k: int, name: str) -> Any:
    """The model with experts and a trainable router."""
    mixture = Mixture(load_base_language_model(Source(name))[0], experts, Routing(top_k=top_k))
    for router in mixture.routers.values():
        router.weight.requires_grad_(True)
    return mixture.model


def xlora_model(experts: list[Expert], name: str) -> Any:
    """The same experts in PEFT's X-LoRA."""
    from peft import XLoraConfig, get_peft_model

    model = load_base_language_model(Source(name))[0]
    model.config.use_cache = False
    adapters = {str(place): str(expert.folder) for place, expert in enumerate(experts)}
    config = XLoraConfig(task_type="CAUSAL_LM", hidden_size=model.config.hidden_size, xlora_depth=1, adapters=adapters)
    return get_peft_model(model, config).to(model.dtype)


def step(model: Any, scale: Scale) -> Callable[[], None]:
    """One forward pass, and one backward pass down to the embeddings."""
    ids = _ids(model, BATCH, scale.length)
    model.train()

    def run() -> None:
        states = model.get_input_embeddings()(ids).detach().requires_grad_(True)
        model(inputs_embeds=states, labels=ids, use_cache=False).loss.backward()

    return run


def generating(model: Any, scale: Scale) -> Callable[[], None]:
    """A few tokens with a cache."""
    ids = _ids(model, 1, scale.prompt)
    model.eval()

    def run() -> None:
        with torch.inference_mode():
            model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=scale.new,
                min_new_tokens=scale.new,
                do_sample=False,
            )

    return run


def _ids(model: Any, texts: int, length: int) -> torch.Tensor:
    most = model.get_input_embeddings().num_embeddings
    return torch.randint(10, min(most, 40_000), (texts, length), generator=torch.Generator().manual_seed(0))


def ratios(ways: dict[str, Callable[[], None]], base: str, rounds: int) -> dict[str, float]:
    """The time of each way divided by the time of the base way. The ways take turns; the best of several rounds counts."""
    best: dict[str, float] = {}
    for turn in range(rounds + 1):
        for name, way in ways.items():
            begun = time.perf_counter()
            way()
            if turn:
                best[name] = min(best.get(name, float("inf")), time.perf_counter() - begun)
    return {name: round(seconds / best[base], 3) for name, seconds in best.items()}


def measure(folder: Path, number: int, scale: Scale) -> dict[str, Any]:
    """The ratios of training and of generation, for a number of experts."""
    name = scale.model
    experts = make_experts(folder, number, name)
    base = load_base_language_model(Source(name))[0].requires_grad_(False)
    mixture, sparse, xlora = mixture_model(experts, number, name), mixture_model(experts, 1, name), xlora_model(experts, name)
    trained = {"base": base, "mixture": mixture, "x-lora": xlora}
    writing = {"base": base, "top-1": sparse, "all": mixture}
    return {
        "train": ratios({way: step(model, scale) for way, model in trained.items()}, "base", scale.rounds),
        "generate": ratios({way: generating(model, scale) for way, model in writing.items()}, "base", scale.rounds),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the ratios for each number of experts."""
    parser = _inputs.parser(__doc__)
    parser.add_argument("numbers", nargs="*", type=int)
    given = parser.parse_args(arguments)
    model = _inputs.model_of(given)
    scale = Scale(model, length=16, prompt=8, new=2, rounds=1) if given.smoke else Scale(model)
    found: dict[str, Any] = {}
    for number in given.numbers or ([2] if given.smoke else [4, 16]):
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found[f"{number} experts"] = measure(Path(folder), number, scale)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
