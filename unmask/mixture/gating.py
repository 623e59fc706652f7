"""Gating: what a router says of each token, and how strongly each expert then acts.

alpha = topk(softmax(W_r x)); the experts that are not chosen get 0, and what is left is NOT made to sum to 1 again (Self-MoE, arXiv
2406.12034, section 2.2): after top-1, renormalised, every gate would be 1 whatever the router says, and it would have no gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from unmask.errors import UnmaskError
from unmask.mixture.names import Level, RouterKind

_FEW = 8
GateFunction = Callable[[Float[Tensor, "*batch expert"]], Float[Tensor, "*batch expert"]]


@dataclass(frozen=True)
class Routing:
    """How tokens are given to experts.

    router: "block", one router for all blocks (an attention or an MLP), each of which routes by its own input; "layer", a router for each
    block; "final", one decision for the whole model by the last state of a first pass without experts, as X-LoRA does.
    level: "token", each by itself; "sequence", by the mean of what the router says of the text up to that token, which keeps the model
    causal. top_k: experts that act on a token. renormalise: make their gates sum to 1; a choice for evaluation, as it separates which
    expert is chosen from how strongly. Raises UnmaskError for a top_k below 1.
    """

    router: RouterKind = "block"
    top_k: int = 1
    renormalise: bool = False
    level: Level = "token"

    def __post_init__(self) -> None:
        """Refuse what is no choice of experts."""
        if self.top_k < 1:
            raise UnmaskError(f"top_k is at least 1, not {self.top_k}.")

    def require_gradient(self) -> None:
        """Raise UnmaskError if a router would learn nothing under this routing."""
        if self.renormalise and self.top_k == 1:
            raise UnmaskError(
                "After top-1, renormalised, every gate is 1, so the router has no gradient: train without renormalising, "
                "or with a larger top_k."
            )


def gates(logits: Float[Tensor, "*batch expert"], routing: Routing) -> Float[Tensor, "*batch expert"]:
    """How strongly each expert acts, in fp32: the softmax over all experts, zero outside the top k."""
    weights = logits.float().softmax(dim=-1)
    if routing.top_k < weights.shape[-1]:
        kept = weights.topk(routing.top_k, dim=-1).indices
        weights = weights * torch.zeros_like(weights).scatter(-1, kept, 1.0)
    return weights / weights.sum(dim=-1, keepdim=True) if routing.renormalise else weights


class Control:
    """What all routing points of one mixture share: the routing, and what it is overridden by.

    force: gates from logits, in place of the routing (an oracle, chance); off: the base model alone; decided: logits that were
    found beforehand (`final`); scale: what the factors of the experts lack, alpha / r while they train; heard: a list that takes the
    logits of every routing point as they come, in order; so_far: logits of a text up to each token, from those of its tokens.
    """

    def __init__(self, routing: Routing) -> None:
        self.routing = routing
        self.force: GateFunction | None = None
        self.off = False
        self.decided: Tensor | None = None
        self.scale = 1.0
        self.heard: list[Tensor] | None = None
        self.so_far: Callable[[str, Tensor], Tensor] | None = None


class BlockState:
    """What a routing point holds while its block works.

    strength: each expert's gate once for each of its ranks; given: the block's input; low: the gated A x of the maps that read it.
    few: whether there are so few tokens on a CPU that calls and memory cost more than products do; chosen: then the ranks of the one
    expert that acts on the one token, so that the others' factors are not even read.
    """

    __slots__ = ("chosen", "few", "given", "low", "strength")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Hold nothing."""
        self.strength: Any = None
        self.given: Tensor | None = None
        self.low: Sequence[Tensor] = ()
        self.few = False
        self.chosen = slice(None)


class RoutingPoint(nn.Module):
    """Where a block's tokens get their gates, once for all its linear maps. Its output is what a router's output is: logits.

    name: of the block. always: ranks of an expert that acts on every token at full strength, behind those that are routed. Maps that
    read the block's own input (query, key and value; gate and up) share one product with their factors A: a token costs a call less
    for each.
    """

    together: Tensor | None

    def __init__(self, name: str, router: nn.Linear, rank: int, control: Control, always: int = 0) -> None:
        super().__init__()
        self.name, self.router, self.rank, self.control, self.always = name, router, rank, control, always
        self.now = BlockState()
        self.fixed = True  # factors do not train
        self._sharing: dict[nn.Module, int] = {}
        self._by_expert: Tensor | None = None
        self.register_buffer("together", None, persistent=False)

    def forward(self, hidden: Float[Tensor, "*batch dim"]) -> Float[Tensor, "row expert"]:
        """Logits of every token, (B * T, n); sets what `now` holds for the maps of the block."""
        control, now = self.control, self.now
        tokens = hidden.numel() // hidden.shape[-1]
        now.few = self.fixed and tokens <= _FEW and hidden.device.type == "cpu"
        wide = hidden.float() if now.few else hidden
        if control.decided is None:
            weight = self.router.weight
            logits = nn.functional.linear(wide.to(weight.dtype), weight)
        else:
            logits = control.decided
        if control.so_far is not None:
            logits = control.so_far(self.name, logits)
        if control.heard is not None:
            control.heard.append(logits)
        if now.few and tokens == 1 and control.routing.top_k == 1 and not control.force and not self.always:
            self._choose(logits)
        else:
            weights = control.force(logits) if control.force else gates(logits, control.routing)
            strength = (weights if control.scale == 1 else weights * control.scale).to(wide.dtype)
            strength = strength.unsqueeze(-1).expand(*strength.shape, self.rank).flatten(-2)
            now.strength = nn.functional.pad(strength, (0, self.always), value=1.0) if self.always else strength
        if self._sharing:
            now.given = hidden
            now.low = self._low_of_few(wide) if now.few else self._low(wide)
        return logits.reshape(-1, logits.shape[-1])

    def share(self, stacks: Sequence[Any]) -> None:
        """Compute the gated A x of these maps at once, as all of them read the block's input."""
        self._sharing = {stack: place for place, stack in enumerate(stacks)}
        self.together = torch.cat([stack.down for stack in stacks]).detach()

    def unshare(self) -> None:
        """Compute each by itself, as where factors train."""
        self._sharing, self.together, self._by_expert, self.fixed = {}, None, None, False

    def gated(self, stack: Any, hidden: Float[Tensor, "*batch input"]) -> Float[Tensor, "*batch rank"]:
        """Each expert's A x of a map, times its gate."""
        now = self.now
        if hidden is now.given and stack in self._sharing:
            return now.low[self._sharing[stack]]
        if now.few:
            return nn.functional.linear(hidden.float(), stack.few("down")[now.chosen]) * now.strength  # type: ignore[no-any-return]
        return nn.functional.linear(hidden, stack.down.to(hidden.dtype)) * now.strength  # type: ignore[no-any-return]

    def forget(self) -> None:
        """Let what belongs to a pass go when its block is through."""
        self.now.clear()

    def _choose(self, logits: Tensor) -> None:
        """Top-1 of one token: its gate, and the ranks of its expert alone."""
        value, place = logits.softmax(dim=-1).max(dim=-1, keepdim=True)
        start = int(place) * self.rank
        self.now.strength = torch.ones_like(value) if self.control.routing.renormalise else value
        self.now.chosen = slice(start, start + self.rank)

    def _low(self, hidden: Tensor) -> Sequence[Tensor]:
        assert self.together is not None
        product = nn.functional.linear(hidden, self.together).unflatten(-1, (len(self._sharing), -1))
        return (product * self.now.strength.unsqueeze(-2)).unbind(dim=-2)  # type: ignore[no-any-return]

    def _low_of_few(self, hidden: Tensor) -> Sequence[Tensor]:
        """The same, with the factors of an expert side by side, so that those of one are a slice of them."""
        assert self.together is not None
        maps, ranks, now = len(self._sharing), self.rank, self.now
        if self._by_expert is None:
            split = self.together.float().unflatten(0, (maps, -1, ranks))
            self._by_expert = split.transpose(0, 1).flatten(0, 2).contiguous()
        if now.chosen.stop is not None:
            factors = self._by_expert[now.chosen.start * maps : now.chosen.stop * maps]
            return (nn.functional.linear(hidden, factors) * now.strength).split(ranks, dim=-1)  # type: ignore[no-any-return]
        product = nn.functional.linear(hidden, self._by_expert).unflatten(-1, (-1, maps, ranks))
        low = product.transpose(-3, -2).flatten(-2) * now.strength.unsqueeze(-2)
        return low.unbind(dim=-2)  # type: ignore[no-any-return]
