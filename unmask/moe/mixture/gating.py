"""Gating: how a router's logits for a token decide how strongly each expert acts on it, and the linear layers that apply the gates.

alpha = topk(softmax(W_r x)). Experts outside the top k get 0. The remaining gates are NOT renormalised to sum to 1 (Self-MoE, arXiv
2406.12034, section 2.2): under top-1 every gate would then be 1 whatever the logits, and the router would have no gradient.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from unmask.errors import UnmaskError
from unmask.moe.names import Level, RouterKind

_FEW = 8
GateFunction = Callable[[Float[Tensor, "*batch expert"]], Float[Tensor, "*batch expert"]]


@dataclass(frozen=True)
class Routing:
    """How tokens are given to experts. A block is an attention or an MLP.

    router: "block" has one router for all blocks, and each block routes by its own input. "layer" has a router for each block. "final"
    decides once for the whole model, by the last state of a first pass without experts, as X-LoRA does.
    level: "token" routes each token by itself. "sequence" routes by the mean of the logits up to that token, which keeps the model causal.
    span: number of layers that share a decision, which the first of them makes by its input; 0 lets each block decide.
    from_layer: the first layer with experts. Lower layers stay as in the base.
    top_k: number of experts that act on a token. renormalise: make their gates sum to 1. Use it for evaluation: it separates which
    expert is chosen from how strongly it acts. Raises UnmaskError for a top_k below 1 and for settings that contradict each other.
    """

    router: RouterKind = "block"
    top_k: int = 1
    renormalise: bool = False
    level: Level = "token"
    span: int = 0
    from_layer: int = 0

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.top_k < 1 or self.span < 0 or self.from_layer < 0:
            raise UnmaskError("top_k must be at least 1, span and from_layer at least 0.")
        if self.span and self.router == "final":
            raise UnmaskError(
                "A 'final' router decides once for all layers, so a span would change nothing. Leave one of them out."
            )

    @property
    def made_for(self) -> dict[str, str | int]:
        """The settings that a mixture is built for. They cannot be changed later."""
        return {"router": self.router, "level": self.level, "span": self.span, "from_layer": self.from_layer}

    @property
    def recomputable(self) -> bool:
        """Whether a block can be computed again by itself. Otherwise it needs what only the latest forward pass left behind."""
        return self.level == "token" and self.router != "final" and not self.span

    def require_gradient(self) -> None:
        """Raise UnmaskError if a router would learn nothing under this routing."""
        if self.renormalise and self.top_k == 1:
            raise UnmaskError(
                "With top_k 1 and renormalised gates every gate is 1, so the router has no gradient. Train without renormalising, "
                "or with a larger top_k."
            )


def gates(logits: Float[Tensor, "*batch expert"], routing: Routing) -> Float[Tensor, "*batch expert"]:
    """How strongly each expert acts, in fp32: the softmax over all experts, zero outside the top k."""
    weights = logits.float().softmax(dim=-1)
    if routing.top_k < weights.shape[-1]:
        top = weights.topk(routing.top_k, dim=-1).indices
        weights = weights * torch.zeros_like(weights).scatter(-1, top, 1.0)
    return weights / weights.sum(dim=-1, keepdim=True) if routing.renormalise else weights


class Control:
    """What all routing points of one mixture share: the routing, and what overrides it.

    gate_function: computes the gates in place of the routing (an oracle, chance). override: a name that only this use of a gate function
    has. off: the base model alone. decided: logits of a first pass (router "final"). scale: the LoRA scale
    alpha / r, applied here while experts train. recorded: a list that takes the logits of every routing point, in order. so_far: averages
    the logits of tokens over the text up to each token.
    """

    def __init__(self, routing: Routing) -> None:
        self.routing = routing
        self.gate_function: GateFunction | None = None
        self.override = ""
        self.off = False
        self.decided: Tensor | None = None
        self.scale = 1.0
        self.recorded: list[Tensor] | None = None
        self.so_far: Callable[[str, Tensor], Tensor] | None = None


class BlockState:
    """The state of a routing point during a forward pass of its block.

    strength: gates repeated for each rank of their expert. gates: one per expert; None for a single token.
    input: of the block. low: gated A x of the maps that read it. few: few tokens on a CPU, where calls and memory traffic cost more than
    products. chosen: for a single token under top-1, the ranks of its expert; the factors of the others are not even read.
    """

    __slots__ = ("chosen", "few", "gates", "input", "low", "strength")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Reset everything."""
        self.strength: Any = None
        self.gates: Tensor | None = None
        self.input: Tensor | None = None
        self.low: Sequence[Tensor] = ()
        self.few = False
        self.chosen = slice(None)


class RoutingPoint(nn.Module):
    """Computes the gates of a block's tokens once for all linear layers of the block. Returns logits, as any router does.

    name: of the block. always: rank of an expert that acts on every token at full strength; its ranks follow the routed ones.
    leader: the earlier point whose decision this one reuses; None if it decides itself.
    Maps that read the block's own input (query, key and value; gate and up) share one product with their factors A, which saves calls.
    """

    shared_down: Tensor | None

    def __init__(
        self, name: str, router: nn.Linear, rank: int, control: Control, always: int = 0, leader: RoutingPoint | None = None
    ) -> None:
        super().__init__()
        self._leader = [leader] if leader else []  # in a list, so that it is not registered as a submodule
        self._decision: Tensor | None = None
        self.name, self.router, self.rank, self.control, self.always = name, router, rank, control, always
        self.now = BlockState()
        self.fixed = True  # the factors do not train
        self._sharing: dict[nn.Module, int] = {}
        self._by_expert: Tensor | None = None
        self.register_buffer("shared_down", None, persistent=False)

    def forward(self, hidden: Float[Tensor, "*batch dim"]) -> Float[Tensor, "row expert"]:
        """Logits of every token, shape (B * T, n). Sets `now` for the maps of the block."""
        control, now = self.control, self.now
        tokens = hidden.numel() // hidden.shape[-1]
        # not where gradients are computed: the factors for few tokens may have been made in inference mode
        now.few = self.fixed and not torch.is_grad_enabled() and tokens <= _FEW and hidden.device.type == "cpu"
        wide = hidden.float() if now.few else hidden
        logits = self._decide(wide)
        if control.recorded is not None:
            control.recorded.append(logits)
        if now.few and tokens == 1 and control.routing.top_k == 1 and not control.gate_function and not self.always:
            gate, expert = logits.softmax(dim=-1).max(dim=-1, keepdim=True)
            now.strength = torch.ones_like(gate) if control.routing.renormalise else gate
            now.chosen = slice(int(expert) * self.rank, (int(expert) + 1) * self.rank)
        else:
            weights = now.gates = control.gate_function(logits) if control.gate_function else gates(logits, control.routing)
            strength = (weights if control.scale == 1 else weights * control.scale).to(wide.dtype)
            strength = strength.unsqueeze(-1).expand(*strength.shape, self.rank).flatten(-2)
            now.strength = nn.functional.pad(strength, (0, self.always), value=1.0) if self.always else strength
        if self._sharing:
            now.input = hidden
            if now.few:
                now.low = self._low_of_few(wide)
            else:
                low = nn.functional.linear(wide, self.shared_down).unflatten(-1, (len(self._sharing), -1))  # type: ignore[arg-type]
                now.low = (low * now.strength.unsqueeze(-2)).unbind(dim=-2)
        return logits.reshape(-1, logits.shape[-1])

    @property
    def decides(self) -> bool:
        """Whether this point decides itself."""
        return not self._leader

    def _decide(self, hidden: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch expert"]:
        if self._leader:
            decision = self._leader[0]._decision
            assert decision is not None, "the layers of a decoder run in order"
            return decision
        control, weight = self.control, self.router.weight
        logits = nn.functional.linear(hidden.to(weight.dtype), weight) if control.decided is None else control.decided
        if control.so_far is not None:
            logits = control.so_far(self.name, logits)
        if control.routing.span:
            self._decision = logits
        return logits

    def applied(self, logits: Float[Tensor, "row expert"]) -> Float[Tensor, "row expert"]:
        """The gates of the tokens that the block works on, whatever computed them. logits: as `forward` has just returned them."""
        current = self.now.gates
        return gates(logits, self.control.routing) if current is None else current.reshape(logits.shape).float()

    def share(self, stacks: Sequence[Any]) -> None:
        """Compute the gated A x of these maps at once: all of them read the block's input."""
        self._sharing = {stack: index for index, stack in enumerate(stacks)}
        self.shared_down = torch.cat([stack.down for stack in stacks]).detach()

    def refresh(self) -> None:
        """Reread the factors after their precision has changed."""
        self._by_expert = None
        if self._sharing:
            self.share(list(self._sharing))

    def unshare(self) -> None:
        """Compute each map by itself, as training needs."""
        self._sharing, self.shared_down, self._by_expert, self.fixed = {}, None, None, False

    def gated(self, stack: Any, hidden: Float[Tensor, "*batch input"]) -> Float[Tensor, "*batch rank"]:
        """A x of each expert for one map, times its gate."""
        now = self.now
        if hidden is now.input and stack in self._sharing:
            return now.low[self._sharing[stack]]
        strength = now.strength.reshape(*hidden.shape[:-1], -1)  # a block may flatten the batch into one row of tokens
        if now.few:
            return nn.functional.linear(hidden.float(), stack.few("down")[now.chosen]) * strength  # type: ignore[no-any-return]
        return nn.functional.linear(hidden, stack.down.to(hidden.dtype)) * strength  # type: ignore[no-any-return]

    def _low_of_few(self, hidden: Tensor) -> Sequence[Tensor]:
        """The same with the factors of an expert contiguous, so that one expert is a slice."""
        assert self.shared_down is not None
        maps, ranks, now = len(self._sharing), self.rank, self.now
        if self._by_expert is None:
            split = self.shared_down.float().unflatten(0, (maps, -1, ranks))
            self._by_expert = split.transpose(0, 1).flatten(0, 2).contiguous()
        if now.chosen.stop is not None:
            factors = self._by_expert[now.chosen.start * maps : now.chosen.stop * maps]
            return (nn.functional.linear(hidden, factors) * now.strength).split(ranks, dim=-1)  # type: ignore[no-any-return]
        product = nn.functional.linear(hidden, self._by_expert).unflatten(-1, (-1, maps, ranks))
        low = product.transpose(-3, -2).flatten(-2) * now.strength.unsqueeze(-2)
        return low.unbind(dim=-2)  # type: ignore[no-any-return]


Factors = tuple[Tensor, Tensor]
"""A (r, in) and B (out, r) of one expert. B includes the scale."""


class ExpertLinear(nn.Module):
    """A linear layer with all its experts, as one LoRA of n times their rank with a gate on each rank.

    h = W x + B (g * A x), A = [A_1; ..; A_n], B = [B_1, .., B_n]. This is the sum over experts of alpha_i B_i A_i x in two products, at
    about the cost of one LoRA. A one-hot gate gives that single expert; a gate of zero gives the base.
    """

    def __init__(self, base: nn.Linear, experts: Sequence[Factors], point: RoutingPoint) -> None:
        super().__init__()
        self.base = base
        like = {"device": base.weight.device, "dtype": base.weight.dtype}
        self.down = nn.Parameter(torch.cat([down for down, _ in experts]).to(**like), requires_grad=False)
        self.up = nn.Parameter(torch.cat([up for _, up in experts], dim=1).to(**like), requires_grad=False)
        self._few: dict[str, Tensor] = {}
        self._point = [
            point
        ]  # in a list, so that it is not registered as a submodule: it belongs to the block, not to each of its maps

    @property
    def point(self) -> RoutingPoint:
        """The routing point that computes the gates."""
        return self._point[0]

    def forward(self, hidden: Float[Tensor, "*batch input"]) -> Float[Tensor, "*batch output"]:
        """The map of the base, plus the experts of each token."""
        output, point = self.base(hidden), self.point
        if point.control.off:
            return output  # type: ignore[no-any-return]
        low = point.gated(self, hidden)
        if point.now.few:
            return output.add_(low @ self.few("up")[point.now.chosen])
        return torch.addmm(output.flatten(0, -2), low.flatten(0, -2), self.up.to(low.dtype).t()).view(output.shape)

    def refresh(self) -> None:
        """Reread the factors after their precision has changed."""
        self._few.clear()

    def few(self, name: str) -> Float[Tensor, "rank _"]:
        """A, or B transposed, with a row for each rank, in fp32: a small product on a CPU takes 15 us in bf16 and 3 us in fp32.

        Such products are most of the experts' cost per generated token.
        """
        if name not in self._few:
            factor: Tensor = getattr(self, name).detach().float()
            self._few[name] = (factor if name == "down" else factor.t()).contiguous()
        return self._few[name]


class FinalRouter:
    """One decision for the whole model, from the last hidden state of the base model alone (X-LoRA). Costs a second forward pass.

    With a key-value cache, the base model's cache is attached to the mixture's, so decisions are the same with and without a cache.
    """

    def __init__(self, body: Any, control: Control, router: nn.Linear) -> None:
        self.control, self.router = control, router
        self.cache: Any = None  # of the base model, for the current pass
        body.register_forward_pre_hook(self._decide, with_kwargs=True)
        body.register_forward_hook(self._keep)

    def _decide(self, body: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        from transformers import DynamicCache

        if self.control.off:
            return
        inputs = {name: value for name, value in kwargs.items() if not name.startswith("output_")}
        if (cache := inputs.get("past_key_values")) is not None:
            if not hasattr(cache, "of_the_base_model"):
                cache.of_the_base_model = DynamicCache(config=body.config)
            inputs["past_key_values"] = cache.of_the_base_model
        self.control.off = True
        try:
            with torch.no_grad(), _without_hooks(body):
                output = body(*args, **inputs)
        finally:
            self.control.off = False
        state, self.cache = output.last_hidden_state, output.past_key_values
        self.control.decided = nn.functional.linear(state.to(self.router.weight.dtype), self.router.weight)

    def _keep(self, _: Any, args: tuple[Any, ...], output: Any) -> None:
        if not self.control.off:
            cache = getattr(output, "past_key_values", None)
            if cache is not None:  # a model that is given no cache creates one, in each of the two passes
                cache.of_the_base_model = self.cache
                forbid_reordering(cache, "a router that decides once for the whole model (`final`)")
            self.cache = None


def forbid_reordering(cache: Any, feature: str) -> None:
    """Refuse beam search and assisted generation, which would reorder the cache but not the state attached to it."""

    def refuse(*_: Any, **__: Any) -> None:
        raise UnmaskError(f"Beam search and assisted generation do not work with {feature}. Use greedy search or sampling.")

    cache.reorder_cache = cache.crop = refuse


@contextmanager
def _without_hooks(body: nn.Module) -> Iterator[None]:
    """Hooks that read hidden states, or stop the pass at a layer, must not see the pass of the base model."""
    kinds = ("_forward_hooks", "_forward_pre_hooks")
    hooked = [(module, kind, hooks) for module in body.modules() for kind in kinds if (hooks := getattr(module, kind))]
    for module, kind, _ in hooked:
        setattr(module, kind, OrderedDict())
    try:
        yield
    finally:
        for module, kind, hooks in hooked:
            setattr(module, kind, hooks)


class RunningMean:
    """Routing by the text so far: the logits of a token are the mean of the router's logits over all real tokens up to it.

    A mean over the whole text would leak later tokens into a language model. With a key-value cache, the sums are attached to the cache.
    """

    def __init__(self, body: Any, control: Control) -> None:
        self.real: Tensor | None = None
        self.sums: dict[str, tuple[Tensor, Tensor]] = {}
        control.so_far = self.so_far
        body.register_forward_pre_hook(self._prepare, with_kwargs=True)
        body.register_forward_hook(self._keep)

    def _prepare(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        mask, cache = kwargs.get("attention_mask"), kwargs.get("past_key_values")
        self.real = mask if isinstance(mask, Tensor) and mask.dim() == 2 else None
        self.sums = dict(getattr(cache, "routed_so_far", {}))

    def _keep(self, _: Any, args: tuple[Any, ...], output: Any) -> None:
        cache = getattr(output, "past_key_values", None)  # the model creates one if it is given none
        if cache is not None:
            cache.routed_so_far = self.sums
            forbid_reordering(cache, "routing by the text so far (`--level sequence`)")
        self.sums = {}

    def so_far(self, name: str, logits: Float[Tensor, "batch token expert"]) -> Float[Tensor, "batch token expert"]:
        """For each token of a block, the mean of the logits up to that token, without padding."""
        real = torch.ones(logits.shape[:-1], device=logits.device)
        if self.real is not None:
            real = self.real[:, -logits.shape[1] :].to(real)
        sums, counts = (logits * real.unsqueeze(-1)).cumsum(dim=1), real.cumsum(dim=1).unsqueeze(-1)
        if name in self.sums:
            before, number = self.sums[name]
            sums, counts = sums + before, counts + number
        self.sums = {**self.sums, name: (sums[:, -1:], counts[:, -1:])}
        return sums / counts.clamp_min(1)
