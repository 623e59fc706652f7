"""Prototypes: a router that knows the domains before it has learned anything.

The row of an expert is the mean state of its domain's tokens less the mean of all domains, orthogonal to that mean, so that what all
tokens have in common decides nothing. All rows together are scaled such that a domain's mean state prefers its own expert to the others
by `GAIN` nats on average.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.encoding.batching import plan
from unmask.errors import UnmaskError
from unmask.experts.lesson_training import LessonCollator
from unmask.experts.lessons.lessons import LessonTokens
from unmask.mixture.mixture_folder import Mixture

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

GAIN = 2.0


def start_from_prototypes(
    mixture: Mixture,
    tokenizer: PreTrainedTokenizerBase,
    domains: Mapping[str, Sequence[LessonTokens]],
    names: Sequence[str] | None = None,
) -> None:
    """Set the routers' rows of the experts `names` (all by default) by their domains, which have the same names. Raises UnmaskError."""
    every = [expert.name for expert in mixture.experts]
    if lacking := [name for name in every if name not in domains]:
        raise UnmaskError(f"A prototype is made of the domain of the same name, and the expert '{lacking[0]}' has none.")
    pad = int(tokenizer.pad_token_id or 0)
    means = [mean_states(mixture, domains[name], pad) for name in every]
    wanted = [every.index(name) for name in (every if names is None else names)]
    with torch.no_grad():
        for name, router in mixture.routers.items():
            rows = prototypes(torch.stack([mean[name] for mean in means]))
            router.weight[wanted] = rows[wanted].to(router.weight)


def prototypes(means: Float[Tensor, "domain dim"]) -> Float[Tensor, "domain dim"]:
    """Rows of a router from the mean states of the domains; zero for a single one."""
    common = means.mean(dim=0)
    along = common / common.norm().clamp_min(1e-9)
    rows = means - common
    rows = rows - (rows @ along).unsqueeze(1) * along
    said = means @ rows.T
    others = (said.sum(dim=1) - said.diagonal()) / max(1, len(means) - 1)
    ahead = (said.diagonal() - others).mean()
    return rows * (GAIN / ahead) if float(ahead) > 1e-9 else rows * 0


@torch.inference_mode()  # type: ignore[untyped-decorator]
def mean_states(
    mixture: Mixture, lessons: Sequence[LessonTokens], pad_id: int, batch_tokens: int = 2048
) -> dict[str, Float[Tensor, " dim"]]:
    """Mean input of each router over the real tokens of some lessons, by the base model alone."""
    sums: dict[str, Tensor] = {}
    tokens, real = 0, torch.ones(0)

    def add(name: str, states: Tensor) -> None:
        total = states[real].double().sum(dim=0)
        sums[name] = sums[name] + total if name in sums else total

    shared = mixture.routing.router != "layer"
    hooks = [
        mixture.model.get_submodule(block).register_forward_pre_hook(
            lambda _, given, named, name="router" if shared else block: add(
                name, given[0] if given else named["hidden_states"]
            ),
            with_kwargs=True,
        )
        for block in (mixture.points if mixture.routing.router != "final" else ())
    ]
    collate = LessonCollator(pad_id)
    try:
        for batch in plan([len(lesson.ids) for lesson in lessons], batch_tokens):
            inputs = collate([lessons[index] for index in batch])
            ids, mask = inputs["input_ids"].to(mixture.model.device), inputs["attention_mask"].to(mixture.model.device)
            real = mask.bool()
            with mixture.without_experts():
                state = mixture.body(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
            if mixture.routing.router == "final":
                add("router", state)
            tokens += int(real.sum())
    finally:
        for hook in hooks:
            hook.remove()
    blocks = len(mixture.points) if mixture.routing.router == "block" else 1
    return {name: (total / tokens / blocks).float() for name, total in sums.items()}
