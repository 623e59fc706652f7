"""Speed of mixtures of LoRA experts: training against the base model and PEFT's X-LoRA, and generation with a cache.

    python -m benchmarks.mixture [--model smollm2] [--experts 4] [--repeats 4] [--smoke]

Experts are random, of rank 8 on all maps. Training is a forward and backward pass over 4 texts of 128 tokens with all experts in use.
Generation is 24 tokens after a prompt of 64, with one expert or all in use.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks._common import best_times, head, row, start
from unmask.models.loading import Source, load_language_model
from unmask.moe.mixture.expert_folder import read_expert
from unmask.moe.mixture.gating import Routing
from unmask.moe.mixture.model import Mixture

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the time of each way as a multiple of the base model's."""
    from peft import LoraConfig, XLoraConfig, get_peft_model

    args = start(__file__, __doc__, arguments, experts=(4, 2), repeats=(4, 1), length=(128, 16), prompt=(64, 8), new=(24, 2))

    def load() -> Any:
        return load_language_model(Source(args.model))[0]

    with tempfile.TemporaryDirectory() as folder:
        folders = [Path(folder) / f"expert{number}" for number in range(args.experts)]
        for expert in folders:
            adapted = get_peft_model(load(), LoraConfig(r=8, lora_alpha=16, target_modules=LINEAR, task_type="CAUSAL_LM"))
            for name, weight in adapted.named_parameters():
                if "lora_B" in name:
                    torch.nn.init.normal_(weight, std=1e-3)
            adapted.peft_config["default"].base_model_name_or_path = args.model
            adapted.save_pretrained(expert)
        experts = [read_expert(expert) for expert in folders]
        all_act, one_acts = (Mixture(load(), experts, Routing(top_k=k)) for k in (args.experts, 1))
        for router in all_act.routers.values():
            router.weight.requires_grad_(True)
        base, for_xlora = load().requires_grad_(False), load()
        for_xlora.config.use_cache = False
        adapters = {str(number): str(expert) for number, expert in enumerate(folders)}
        config = XLoraConfig(task_type="CAUSAL_LM", hidden_size=base.config.hidden_size, xlora_depth=1, adapters=adapters)
        xlora = get_peft_model(for_xlora, config).to(base.dtype)
    head(f"{args.experts} experts", "time, as a multiple of the base model's")
    models = {"base": base, "training, all experts act": all_act.model, "training, X-LoRA": xlora}
    times = best_times({name: training(model, args.length) for name, model in models.items()}, args.repeats)
    models = {"base": base, "generation, one expert acts": one_acts.model, "generation, all experts act": all_act.model}
    generated = best_times({name: generation(model, args.prompt, args.new) for name, model in models.items()}, args.repeats)
    for results in (times, generated):
        for name in list(results)[1:]:
            row(name, f"{results[name] / results['base']:.2f}")


def training(model: Any, length: int) -> Callable[[], None]:
    """One forward pass, and one backward pass down to the embeddings."""
    ids = token_ids(model, 4, length)

    def run() -> None:
        model.train()
        states = model.get_input_embeddings()(ids).detach().requires_grad_(True)
        model(inputs_embeds=states, labels=ids, use_cache=False).loss.backward()

    return run


def generation(model: Any, prompt: int, new: int) -> Callable[[], None]:
    """New tokens with a cache."""
    ids = token_ids(model, 1, prompt)

    def run() -> None:
        model.eval()
        with torch.inference_mode():
            model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new, do_sample=False)

    return run


def token_ids(model: Any, number: int, length: int) -> torch.Tensor:
    """Random tokens."""
    vocabulary = min(model.get_input_embeddings().num_embeddings, 40_000)
    return torch.randint(10, vocabulary, (number, length), generator=torch.Generator().manual_seed(0))


if __name__ == "__main__":
    main()
