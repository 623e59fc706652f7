"""Router training: the router learns on the lessons of all domains which expert a token goes to. Base and experts are frozen.

It trains with all experts (`train_top_k` = n), even if only one acts later. Under top-1 the first expert that does well would take all
tokens, and would act at a fraction of its strength while the router is untrained.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.errors import UnmaskError
from unmask.models.decoder import pad_id_of
from unmask.moe.experts.balance import Balance, BalanceLoss
from unmask.moe.experts.lesson_training import Learning, learn, share_of
from unmask.moe.experts.lessons.lessons import Lesson, tokenize_lessons
from unmask.moe.experts.names import Start
from unmask.moe.experts.prototypes import start_from_prototypes
from unmask.moe.mixture.gating import Routing
from unmask.moe.mixture.mixture_folder import Mixture
from unmask.training.stages.stage import MOST_RATE

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LEARNING = Learning(steps=48, lr=1e-2, batch=8, warmup=2)


@dataclass(frozen=True)
class RouterOptions:
    """How a router is trained.

    train_top_k: number of experts that act on a token during training; None is all. start: from small random weights, or from the mean
    states of the domains with the experts' names. balance: a loss that spreads tokens over experts. joint: the experts learn as well.
    lr: the learning rate of the router in joint training; None is that of the experts.
    """

    train_top_k: int | None = None
    start: Start = "random"
    balance: Balance = field(default_factory=Balance)
    joint: bool = False
    lr: float | None = None

    def __post_init__(self) -> None:
        """Raise UnmaskError for a rate of the router that cannot train, or outside joint training."""
        if self.lr is None:
            return
        if not self.joint:
            raise UnmaskError(
                "A router has a learning rate of its own (lr of its options) only in joint training. Set joint=True, or set the rate of "
                "the whole training instead."
            )
        if not 0 < self.lr <= MOST_RATE:
            raise UnmaskError(f"The learning rate of the router should be above 0 and at most {MOST_RATE}, not {self.lr:g}.")

    def during(self, routing: Routing, experts: int) -> Routing:
        """The routing while the router learns."""
        return replace(routing, top_k=min(self.train_top_k or experts, experts))

    def check(self, routing: Routing, experts: Sequence[str], domains: Collection[str], learning: Learning) -> None:
        """Raise UnmaskError for a router that would learn nothing, or not what its lessons are for. Warns of lessons without an expert."""
        number = len(experts)
        for name, top_k in (("top-k", routing.top_k), ("train-top-k", self.train_top_k or 1)):
            if top_k > number:
                raise UnmaskError(f"{name} can be at most the number of experts, which is {number}, not {top_k}.")
        without = [name for name in experts if name not in domains]
        if without and self.start == "prototypes":
            raise UnmaskError(f"A prototype needs lessons of the domain with the expert's name, and '{without[0]}' has none.")
        if not learning.steps:
            return
        if number == 1:
            raise UnmaskError(
                "A mixture of one expert has nothing to route: the gate of its only expert is always 1. Give more experts, or do not "
                "train the router (--steps 0)."
            )
        self.during(routing, number).require_gradient()
        share_of(learning.batch, domains)
        if self.balance.weight and routing.top_k >= number:
            raise UnmaskError(f"Every token uses all {number} experts, so there is nothing to balance. Use a smaller top-k.")
        if without and len(without) < number:
            raise UnmaskError(
                f"The expert '{without[0]}' has no lessons and others have, so the router would learn never to choose it. Add "
                f"--lessons {without[0]}=FILE."
            )
        if not self.joint and (strays := [name for name in domains if name not in experts]):
            warnings.warn(
                f"No expert is called '{strays[0]}': its lessons train the router all the same. The experts are {', '.join(experts)}.",
                stacklevel=2,
            )


def train_router(
    mixture: Mixture,
    tokenizer: PreTrainedTokenizerBase,
    domains: Mapping[str, Sequence[Lesson]],
    folder: Path,
    *,
    learning: Learning = LEARNING,
    options: RouterOptions | None = None,
    fresh: Sequence[str] | None = None,
    callbacks: Sequence[Any] = (),
) -> tuple[float, ...]:
    """Train the routers of a mixture, in batches with equally many lessons of every domain. Returns the loss of each step.

    folder: for checkpoints. fresh: experts whose rows start anew, by default all; the other rows start as they are. The routing of the
    mixture is the same before and after. Raises UnmaskError for a routing without gradient, and if anything but the routers (with
    `joint`, and the experts) would train.
    """
    options, before = options or RouterOptions(), mixture.routing
    during = options.during(before, len(mixture.experts))
    if learning.steps:
        during.require_gradient()
    tokens = {name: tokenize_lessons(tokenizer, lessons, learning.max_length) for name, lessons in domains.items()}
    if options.start == "prototypes":
        start_from_prototypes(mixture, tokenizer, tokens, fresh)
    if not learning.steps:
        return ()
    free = [*mixture.router_weights, *(mixture.expert_weights if options.joint else [])]
    own_rates = {options.lr: mixture.router_weights} if options.lr else None
    try:
        mixture.routing = during
        for weight in free:
            weight.requires_grad_(True)
        only_these_train(mixture, free)
        with _balancing(mixture, options.balance, before.top_k, learning.accumulate) as penalty:
            pad = pad_id_of(tokenizer, mixture.model)
            log = learn(mixture.model, tokens, learning, pad, folder, nullcontext, callbacks, penalty, own_rates)
    finally:
        mixture.routing = before
        for weight in free:
            weight.requires_grad_(False)
    return tuple(entry["loss"] for entry in log if "loss" in entry)


@contextmanager
def _balancing(mixture: Mixture, balance: Balance, top_k: int, passes: int) -> Iterator[BalanceLoss | None]:
    if not balance.weight:
        yield None
        return
    with mixture.record_logits() as logits:
        yield BalanceLoss(logits, balance, len(mixture.experts), top_k, passes)


def only_these_train(mixture: Mixture, wanted: Sequence[Any]) -> None:
    """Raise UnmaskError unless these weights, and nothing else, are free to train."""
    ours = {id(weight) for weight in wanted}
    free = {id(weight): name for name, weight in mixture.model.named_parameters() if weight.requires_grad}
    if others := [name for key, name in free.items() if key not in ours]:
        raise UnmaskError(f"Only the router may train, but {others[0]} would train as well.")
    if lacking := len(ours - free.keys()):
        raise UnmaskError(f"{lacking} weights that have to train are frozen.")
