"""Balance: a loss that spreads tokens over experts, n * sum_i f_i P_i. It is 1 if all experts are used equally (arXiv 2101.03961).

f_i is the share of choices that fall on expert i, P_i its mean probability. Within one pass, which may hold one domain only, the loss
works against routing by domain. Over the passes of a step it does so less (arXiv 2501.11873), which is the default. As in that paper's
buffer, f is counted over the passes of the step so far, so the first pass of a step has its own f alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unmask.errors import UnmaskError
from unmask.moe.experts.names import Over


@dataclass(frozen=True)
class Balance:
    """weight: of the loss, 0 for none. over: whether the shares f are counted over a pass, or over the passes of a step so far."""

    weight: float = 0.0
    over: Over = "step"

    def __post_init__(self) -> None:
        """Raise UnmaskError for a weight below 0 or without end."""
        if not 0 <= self.weight < math.inf:
            raise UnmaskError(f"The weight of the load-balancing loss must be at least 0 and finite, not {self.weight}.")


class BalanceLoss:
    """The loss of each pass, from the logits of the routing points. The losses of its passes add up to the loss of a step.

    recorded: a list that the routing points fill. top_k: number of choices that are counted. Raises UnmaskError if all experts are
    always chosen, since there is then nothing to balance.
    """

    def __init__(self, recorded: list[Tensor], balance: Balance, experts: int, top_k: int, passes: int) -> None:
        if top_k >= experts:
            raise UnmaskError(f"Every token uses all {experts} experts, so there is nothing to balance. Use a smaller top-k.")
        self.recorded, self.balance, self.top_k, self.passes = recorded, balance, top_k, passes
        self.done, self.counts = 0, torch.zeros(0)

    def __call__(self, real: Bool[Tensor, "text token"]) -> Tensor:
        """The loss of the latest pass, over its real tokens. Empties the list of logits."""
        shares, means = _usage(self.recorded, real, self.top_k)
        self.recorded.clear()
        if self.balance.over == "step":
            weighted = shares * real.sum()
            self.counts = weighted if self.done == 0 else self.counts + weighted
            self.done = (self.done + 1) % self.passes
            shares = self.counts / self.counts.sum(dim=-1, keepdim=True)
        loss = shares.shape[-1] * (shares * means).sum(dim=-1).mean()
        return self.balance.weight * loss / self.passes


def _usage(
    recorded: Sequence[Tensor], real: Bool[Tensor, "text token"], top_k: int
) -> tuple[Float[Tensor, "point expert"], Float[Tensor, "point expert"]]:
    """f and P of each routing point."""
    shares, means = [], []
    for logits in recorded:
        scores = logits[real].float()
        chosen = torch.zeros_like(scores).scatter(-1, scores.topk(top_k, dim=-1).indices, 1.0)
        shares.append(chosen.mean(dim=0) / top_k)
        means.append(scores.softmax(dim=-1).mean(dim=0))
    return torch.stack(shares).detach(), torch.stack(means)
