"""Router training: which expert a token goes to, learned on the lessons of all domains while base and experts are frozen.

Trained with all experts (`train_top_k` = n) even if one acts later: under top-1 the first expert that does well takes all tokens, and
without renormalising it acts at a fraction of its strength while the router is young.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.errors import UnmaskError
from unmask.experts.learning import Learning, learn
from unmask.experts.lessons import Lesson, tokenize_lessons
from unmask.mixture.model import Mixture

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LEARNING = Learning(steps=48, lr=1e-2, batch=8, warmup=2)


def train_router(
    mixture: Mixture,
    tokenizer: PreTrainedTokenizerBase,
    domains: Mapping[str, Sequence[Lesson]],
    folder: Path,
    *,
    learning: Learning = LEARNING,
    train_top_k: int | None = None,
    callbacks: Sequence[Any] = (),
) -> tuple[float, ...]:
    """Train the routers of a mixture on the lessons of every domain, in batches that hold as many of each; the loss of each step.

    train_top_k: experts that act on a token while the router learns, all by default; the routing of the mixture is as it was
    afterwards. folder: for checkpoints. Raises UnmaskError for a routing without gradient, and if anything but the routers would train.
    """
    before = mixture.routing
    during = replace(before, top_k=min(train_top_k or len(mixture.experts), len(mixture.experts)))
    during.require_gradient()
    mixture.routing = during
    tokens = {name: tokenize_lessons(tokenizer, lessons, learning.max_length) for name, lessons in domains.items()}
    for router in mixture.routers.values():
        router.weight.requires_grad_(True)
    free_only_routers(mixture)
    try:
        log = learn(mixture.model, tokens, learning, int(tokenizer.pad_token_id or 0), folder, nullcontext, callbacks)
    finally:
        mixture.routing = before
        for router in mixture.routers.values():
            router.weight.requires_grad_(False)
    return tuple(entry["loss"] for entry in log if "loss" in entry)


def free_only_routers(mixture: Mixture) -> None:
    """Raise UnmaskError unless the routers, and nothing else, are free to train."""
    ours = {id(router.weight) for router in mixture.routers.values()}
    free = {id(weight): name for name, weight in mixture.model.named_parameters() if weight.requires_grad}
    if others := [name for key, name in free.items() if key not in ours]:
        raise UnmaskError(f"Only the router is to train, and {others[0]} would as well.")
    if lacking := len(ours - free.keys()):
        raise UnmaskError(f"{lacking} routers would not train.")
