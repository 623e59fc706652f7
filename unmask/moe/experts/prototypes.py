"""Prototypes: a router that tells the domains apart before any training.

The row of an expert is the mean state of its domain's tokens minus the mean of all domains. It is made orthogonal to that mean, since
what all tokens have in common must not decide. All rows are scaled together: on average, the mean state of a domain prefers its own
expert by `GAIN` nats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.encoding.batching import plan
from unmask.errors import UnmaskError
from unmask.models.decoder import pad_id_of
from unmask.moe.experts.lesson_training import LessonCollator
from unmask.moe.experts.lessons.lessons import LessonTokens
from unmask.moe.mixture.mixture_folder import Mixture

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

GAIN = 2.0


def start_from_prototypes(
    mixture: Mixture,
    tokenizer: PreTrainedTokenizerBase,
    domains: Mapping[str, Sequence[LessonTokens]],
    names: Sequence[str] | None = None,
) -> None:
    """Set the routers' rows of the experts `names` (default: all) from the lessons of the domain with the same name. Raises UnmaskError."""
    every = [expert.name for expert in mixture.experts]
    if lacking := [name for name in every if name not in domains]:
        raise UnmaskError(f"A prototype needs lessons of the domain with the expert's name, and '{lacking[0]}' has none.")
    pad = pad_id_of(tokenizer, mixture.model)
    means = [mean_states(mixture, domains[name], pad) for name in every]
    wanted = [every.index(name) for name in (every if names is None else names)]
    with torch.no_grad():
        for name, router in mixture.routers.items():
            rows = prototypes(torch.stack([mean[name] for mean in means]))
            router.weight[wanted] = rows[wanted].to(router.weight)


def prototypes(means: Float[Tensor, "domain dim"]) -> Float[Tensor, "domain dim"]:
    """Rows of a router from the mean states of the domains. A single domain gives zeros."""
    common = means.mean(dim=0)
    along = common / common.norm().clamp_min(1e-9)
    rows = means - common
    rows = rows - (rows @ along).unsqueeze(1) * along
    logits = means @ rows.T
    others = (logits.sum(dim=1) - logits.diagonal()) / max(1, len(means) - 1)
    lead = (logits.diagonal() - others).mean()
    return rows * (GAIN / lead) if float(lead) > 1e-9 else rows * 0


@torch.inference_mode()  # type: ignore[untyped-decorator]
def mean_states(
    mixture: Mixture, lessons: Sequence[LessonTokens], pad_id: int, batch_tokens: int = 2048
) -> dict[str, Float[Tensor, " dim"]]:
    """Mean input of each router over the real tokens of some lessons, in the base model without its experts."""
    sums: dict[str, Tensor] = {}
    tokens, real = 0, torch.ones(0)

    def add(name: str, states: Tensor) -> None:
        total = states[real].double().sum(dim=0)
        sums[name] = sums[name] + total if name in sums else total

    def hook(name: str) -> Any:
        return lambda _, args, named: add(name, args[0] if args else named["hidden_states"])

    collate = LessonCollator(pad_id)
    with mixture.without_experts(), ExitStack() as hooks:
        for block in mixture.deciding if mixture.routing.router != "final" else ():
            name = block if mixture.routing.router == "layer" else "router"
            module = mixture.model.get_submodule(block)
            hooks.callback(module.register_forward_pre_hook(hook(name), with_kwargs=True).remove)
        for batch in plan([len(lesson.ids) for lesson in lessons], batch_tokens):
            inputs = collate([lessons[index] for index in batch])
            ids, mask = inputs["input_ids"].to(mixture.model.device), inputs["attention_mask"].to(mixture.model.device)
            real = mask.bool()
            state = mixture.body(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
            if mixture.routing.router == "final":
                add("router", state)
            tokens += int(real.sum())
    blocks = len(mixture.deciding) if mixture.routing.router == "block" else 1
    return {name: (total / tokens / blocks).float() for name, total in sums.items()}
