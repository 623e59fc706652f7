"""Gating: what a router says of each token, and how strongly each expert then acts.

alpha = topk(softmax(W_r x)); the experts that are not chosen get 0, and what is left is NOT made to sum to 1 again (Self-MoE, arXiv
2406.12034, section 2.2): after top-1, renormalised, every gate would be 1 whatever the router says, and it would have no gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from unmask.errors import UnmaskError

Sharing = Literal["block", "layer", "final"]
Level = Literal["token", "sequence"]
_FEW = 8
Force = Callable[[Float[Tensor, "*batch expert"]], Float[Tensor, "*batch expert"]]


@dataclass(frozen=True)
class Routing:
    """How tokens are given to experts.

    router: "block", one router for all blocks (an attention or an MLP), each of which routes by its own input; "layer", a router for each
    block; "final", one decision for the whole model by the last state of a first pass without experts, as X-LoRA does.
    level: "token", each by itself; "sequence", by the mean of what the router says of the text up to that token, which keeps the model
    causal. top_k: experts that act on a token. renormalise: make their gates sum to 1; a choice for evaluation, as it separates which
    expert is chosen from how strongly. Raises UnmaskError for a top_k below 1.
    """

    router: Sharing = "block"
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


def working_dtype(hidden: Tensor) -> torch.dtype:
    """What experts compute in: as the model, but fp32 for few bf16 tokens on a CPU.

    There a product of one token costs 15 us in bf16 whatever its size, and 3 us in fp32; most of what experts add to a generated token.
    """
    few = hidden.dtype == torch.bfloat16 and hidden.device.type == "cpu" and hidden.numel() // hidden.shape[-1] <= _FEW
    return torch.float32 if few else hidden.dtype


class Control:
    """What all routing points of one mixture share: the routing, and what it is overridden by.

    force: gates from logits, in place of the routing (an oracle, chance); off: the base model alone; decided: logits that were
    found beforehand (`final`); scale: what the factors of the experts lack, alpha / r while they train; heard: a list that takes the
    logits of every routing point as they come, in order; so_far: logits of a text up to each token, from those of its tokens.
    """

    def __init__(self, routing: Routing) -> None:
        self.routing = routing
        self.force: Force | None = None
        self.off = False
        self.decided: Tensor | None = None
        self.scale = 1.0
        self.heard: list[Tensor] | None = None
        self.so_far: Callable[[str, Tensor], Tensor] | None = None


class Pass:
    """What a routing point holds while its block works: each expert's gate once for each of its ranks, the block's input, and the gated
    A x of the maps that read it; and what experts compute in."""

    __slots__ = ("dtype", "given", "low", "strength")

    def __init__(self) -> None:
        self.strength: Tensor | None = None
        self.given: Tensor | None = None
        self.low: Sequence[Tensor] = ()
        self.dtype = torch.float32


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
        self.now = Pass()
        self._sharing: dict[nn.Module, int] = {}
        self._exact: Tensor | None = None
        self.register_buffer("together", None, persistent=False)

    def forward(self, hidden: Float[Tensor, "*batch dim"]) -> Float[Tensor, "row expert"]:
        """Logits of every token, (B * T, n); sets what `now` holds for the maps of the block."""
        control, now = self.control, self.now
        now.dtype = working_dtype(hidden)
        wide = hidden.to(now.dtype)
        if control.decided is None:
            weight = self.router.weight
            logits = nn.functional.linear(wide.to(weight.dtype), weight)
        else:
            logits = control.decided
        if control.so_far is not None:
            logits = control.so_far(self.name, logits)
        if control.heard is not None:
            control.heard.append(logits)
        weights = control.force(logits) if control.force else gates(logits, control.routing)
        strength = (weights if control.scale == 1 else weights * control.scale).to(now.dtype)
        strength = strength.unsqueeze(-1).expand(*strength.shape, self.rank).flatten(-2)
        now.strength = nn.functional.pad(strength, (0, self.always), value=1.0) if self.always else strength
        if self._sharing:
            now.given = hidden
            product = nn.functional.linear(wide, self._factors(now.dtype))
            now.low = (product.unflatten(-1, (len(self._sharing), -1)) * now.strength.unsqueeze(-2)).unbind(dim=-2)
        return logits.reshape(-1, logits.shape[-1])

    def share(self, stacks: Sequence[Any]) -> None:
        """Compute the gated A x of these maps at once, as all of them read the block's input."""
        self._sharing = {stack: place for place, stack in enumerate(stacks)}
        self.together = torch.cat([stack.down for stack in stacks]).detach()

    def unshare(self) -> None:
        """Compute each by itself, as where factors train."""
        self._sharing, self.together, self._exact = {}, None, None

    def gated(self, stack: Any, hidden: Float[Tensor, "*batch input"]) -> Float[Tensor, "*batch rank"]:
        """Each expert's A x of a map, times its gate."""
        now = self.now
        if hidden is now.given and stack in self._sharing:
            return now.low[self._sharing[stack]]
        return nn.functional.linear(hidden.to(now.dtype), stack.factor("down", now.dtype)) * now.strength  # type: ignore[operator]

    def forget(self) -> None:
        """Let what belongs to a pass go when its block is through."""
        self.now = Pass()

    def _factors(self, dtype: torch.dtype) -> Tensor:
        """A of all maps that share, in a dtype."""
        assert self.together is not None
        if self.together.dtype == dtype:
            return self.together
        if self._exact is None:
            self._exact = self.together.to(dtype)
        return self._exact
