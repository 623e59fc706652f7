"""Router training: the router learns from the lessons of every domain which expert a token is routed to. Base and experts are frozen.

It trains with all experts (`train_top_k` = n), even if only one acts later: under top-1 the first expert that does well would take all
tokens, and would act at a fraction of its strength while the router is untrained.

Balance is a loss that spreads tokens over experts: n * sum_i f_i P_i, which is 1 if all experts are used equally (arXiv 2101.03961). f_i is
the share of choices that fall on expert i, P_i its mean probability. Within one pass, which may hold a single domain, the loss works
against routing by domain. Over the passes of a step it does so less (arXiv 2501.11873), which is the default. As in that paper's buffer, f
is counted over the passes of the step so far.

Prototypes initialise a router so that it separates the domains before any training. The row of an expert is the mean state of its domain's
tokens minus the mean over domains, orthogonalised to that mean, since a common component must not affect the choice. All rows are scaled
together: on average, the mean state of a domain prefers its expert by `GAIN` nats.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unmask.encoding.batching import plan
from unmask.errors import UnmaskError
from unmask.models.decoder import pad_id_of
from unmask.moe.experts.lesson_training import Learning, LessonCollator, learn, share_of
from unmask.moe.experts.lessons.lessons import Lesson, LessonTokens, tokenize_lessons
from unmask.moe.mixture.gating import Routing
from unmask.moe.mixture.model import Mixture
from unmask.moe.names import BalanceOver, RouterStart

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Balance:
    """weight: of the loss, 0 for none. over: whether the shares f are counted over a pass, or over the passes of a step so far."""

    weight: float = 0.0
    over: BalanceOver = "step"


class BalanceLoss:
    """The loss of each pass, from the logits of the routing points. The losses of its passes add up to the loss of a step.

    logits: a list that the routing points fill. top_k: number of choices that are counted.
    """

    def __init__(self, logits: list[Tensor], balance: Balance, top_k: int, passes: int) -> None:
        self.logits, self.balance, self.top_k, self.passes = logits, balance, top_k, passes
        self.passes_done, self.counts = 0, torch.zeros(0)

    def __call__(self, mask: Bool[Tensor, "text token"]) -> Tensor:
        """The loss of the latest pass, over the tokens of its mask. Empties the list of logits."""
        shares, means = [], []  # f and P of each routing point
        for logits in self.logits:
            scores = logits[mask].float()
            is_chosen = torch.zeros_like(scores).scatter(-1, scores.topk(self.top_k, dim=-1).indices, 1.0)
            shares.append(is_chosen.mean(dim=0) / self.top_k)
            means.append(scores.softmax(dim=-1).mean(dim=0))
        self.logits.clear()
        share = torch.stack(shares).detach()
        if self.balance.over == "step":
            weighted = share * mask.sum()
            self.counts = weighted if self.passes_done == 0 else self.counts + weighted
            self.passes_done = (self.passes_done + 1) % self.passes
            share = self.counts / self.counts.sum(dim=-1, keepdim=True)
        loss = share.shape[-1] * (share * torch.stack(means)).sum(dim=-1).mean()
        return self.balance.weight * loss / self.passes


GAIN = 2.0


def start_from_prototypes(
    mixture: Mixture,
    tokenizer: PreTrainedTokenizerBase,
    domains: Mapping[str, Sequence[LessonTokens]],
) -> None:
    """Set each expert's rows of the routers from the lessons of the domain with its name. Raises UnmaskError if there are none."""
    names = [expert.name for expert in mixture.experts]
    _require_lessons_of(names, domains)
    pad = pad_id_of(tokenizer, mixture.model)
    means = [mean_states(mixture, domains[name], pad) for name in names]
    with torch.no_grad():
        for name, router in mixture.routers.items():
            router.weight.copy_(prototypes(torch.stack([mean[name] for mean in means])))


def _require_lessons_of(experts: Sequence[str], domains: Collection[str]) -> None:
    if lacking := [name for name in experts if name not in domains]:
        raise UnmaskError(f"A prototype needs lessons of the domain with the expert's name, and '{lacking[0]}' has none.")


def prototypes(means: Float[Tensor, "domain dim"]) -> Float[Tensor, "domain dim"]:
    """Rows of a router from the mean states of the domains. A single domain gives zeros."""
    common = means.mean(dim=0)
    along = common / common.norm().clamp_min(1e-9)
    rows = means - common
    rows = rows - (rows @ along).unsqueeze(1) * along
    logits = means @ rows.T
    mean_other = (logits.sum(dim=1) - logits.diagonal()) / max(1, len(means) - 1)
    lead = (logits.diagonal() - mean_other).mean()
    return rows * (GAIN / lead) if float(lead) > 1e-9 else rows * 0


@torch.inference_mode()  # type: ignore[untyped-decorator]
def mean_states(
    mixture: Mixture, lessons: Sequence[LessonTokens], pad_id: int, batch_tokens: int = 2048
) -> dict[str, Float[Tensor, " dim"]]:
    """Mean input of each router over the tokens of some lessons, in the base model without its experts."""
    sums: dict[str, Tensor] = {}
    tokens, is_token = 0, torch.ones(0)

    def add(name: str, states: Tensor) -> None:
        total = states[is_token].double().sum(dim=0)
        sums[name] = sums[name] + total if name in sums else total

    def hook(name: str) -> Any:
        return lambda _, args, kwargs: add(name, args[0] if args else kwargs["hidden_states"])

    collate = LessonCollator(pad_id)
    with mixture.without_experts(), ExitStack() as hooks:
        for block in mixture.deciding_points if mixture.routing.router != "final" else ():
            name = block if mixture.routing.router == "layer" else "router"
            module = mixture.model.get_submodule(block)
            hooks.callback(module.register_forward_pre_hook(hook(name), with_kwargs=True).remove)
        for batch in plan([len(lesson.ids) for lesson in lessons], batch_tokens):
            inputs = collate([lessons[index] for index in batch])
            ids, mask = inputs["input_ids"].to(mixture.model.device), inputs["attention_mask"].to(mixture.model.device)
            is_token = mask.bool()
            state = mixture.body(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
            if mixture.routing.router == "final":
                add("router", state)
            tokens += int(is_token.sum())
    blocks = len(mixture.deciding_points) if mixture.routing.router == "block" else 1
    return {name: (total / tokens / blocks).float() for name, total in sums.items()}


LEARNING = Learning(steps=48, lr=1e-2, batch=8, warmup=2)


@dataclass(frozen=True)
class RouterOptions:
    """How a router is trained.

    train_top_k: number of experts that act on a token during training; None is all. start: from small random weights, or from the mean
    states of the domains with the experts' names. balance: a loss that spreads tokens over experts. joint: the experts learn as well.
    lr: the learning rate of the router in joint training; None is the experts' rate, at which a router hardly moves.
    """

    train_top_k: int | None = None
    start: RouterStart = "random"
    balance: Balance = field(default_factory=Balance)
    joint: bool = False
    lr: float | None = None

    def during(self, routing: Routing, experts: int) -> Routing:
        """The routing while the router learns."""
        return replace(routing, top_k=min(self.train_top_k or experts, experts))

    def check(self, routing: Routing, experts: Sequence[str], domains: Collection[str], learning: Learning) -> None:
        """Raise UnmaskError for a router that would learn nothing, or not what its lessons are for. Warns of lessons without an expert."""
        number = len(experts)
        for name, top_k in (("top-k", routing.top_k), ("train-top-k", self.train_top_k or 1)):
            if top_k > number:
                raise UnmaskError(f"{name} can be at most the number of experts, which is {number}, not {top_k}.")
        if self.start == "prototypes":
            _require_lessons_of(experts, domains)
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
        without = [name for name in experts if name not in domains]
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
    callbacks: Sequence[Any] = (),
) -> tuple[float, ...]:
    """Train the routers of a mixture, in batches with equally many lessons of every domain. Returns the loss of each step.

    folder: for checkpoints. options: see `RouterOptions.check`. The routing of the mixture is the same before and after.
    """
    options, before = options or RouterOptions(), mixture.routing
    tokens = {name: tokenize_lessons(tokenizer, lessons, learning.max_length) for name, lessons in domains.items()}
    if options.start == "prototypes":
        start_from_prototypes(mixture, tokenizer, tokens)
    if not learning.steps:
        return ()
    free = [*mixture.router_weights, *(mixture.expert_weights if options.joint else [])]
    own_rates = {options.lr: mixture.router_weights} if options.lr else None
    try:
        mixture.routing = options.during(before, len(mixture.experts))
        for weight in free:
            weight.requires_grad_(True)
        with ExitStack() as stack:
            penalty = None
            if options.balance.weight:
                logits = stack.enter_context(mixture.record_logits())
                penalty = BalanceLoss(logits, options.balance, before.top_k, learning.accumulate)
            log = learn(
                mixture.model,
                tokens,
                learning,
                pad_id=pad_id_of(tokenizer, mixture.model),
                folder=folder,
                computing=nullcontext,
                callbacks=callbacks,
                penalty=penalty,
                own_rates=own_rates,
            )
    finally:
        mixture.routing = before
        for weight in free:
            weight.requires_grad_(False)
    return tuple(entry["loss"] for entry in log if "loss" in entry)
