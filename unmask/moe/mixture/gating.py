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
from unmask.moe.names import RouterPlacement, RoutingLevel

_SMALL = 8
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

    router: RouterPlacement = "block"
    top_k: int = 1
    renormalise: bool = False
    level: RoutingLevel = "token"
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
    def fixed_settings(self) -> dict[str, str | int]:
        """The settings that a mixture is built for. They cannot be changed later."""
        return {"router": self.router, "level": self.level, "span": self.span, "from_layer": self.from_layer}

    @property
    def is_recomputable(self) -> bool:
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
    has. experts_off: the base model alone. final_logits: of a first pass (router "final"). lora_scale: alpha / r, applied here while
    experts train. collected_logits: a list that takes the logits of every routing point, in order. running_mean: the mean of the logits
    over the text up to each token.
    """

    def __init__(self, routing: Routing) -> None:
        self.routing = routing
        self.gate_function: GateFunction | None = None
        self.override = ""
        self.experts_off = False
        self.final_logits: Tensor | None = None
        self.lora_scale = 1.0
        self.collected_logits: list[Tensor] | None = None
        self.running_mean: Callable[[str, Tensor], Tensor] | None = None


class BlockState:
    """The state of a routing point during a forward pass of its block.

    gates: one per expert; None for a single token. rank_gates: gates repeated for each rank of their expert. hidden: input of the block.
    gated_down: gated A x of the linear layers that read it. is_small: few tokens on a CPU, where calls and memory traffic cost more than
    products. ranks: for a single token under top-1, the ranks of its expert; the factors of the others are not even read.
    """

    __slots__ = ("gated_down", "gates", "hidden", "is_small", "rank_gates", "ranks")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Reset everything."""
        self.rank_gates: Any = None
        self.gates: Tensor | None = None
        self.hidden: Tensor | None = None
        self.gated_down: Sequence[Tensor] = ()
        self.is_small = False
        self.ranks = slice(None)


class RoutingPoint(nn.Module):
    """Computes the gates of a block's tokens once for all linear layers of the block. Returns logits, as any router does.

    name: of the block. shared_rank: rank of an expert that acts on every token at full strength; its ranks follow the routed ones.
    leader: the earlier point whose decision this one reuses; None if it decides itself.
    Linear layers that read the block's own input (query, key and value; gate and up) are joined: one product with all their factors A.
    """

    joint_down: Tensor | None

    def __init__(
        self,
        name: str,
        router: nn.Linear,
        rank: int,
        control: Control,
        shared_rank: int = 0,
        leader: RoutingPoint | None = None,
    ) -> None:
        super().__init__()
        self._leader = [leader] if leader else []  # in a list, so that it is not registered as a submodule
        self._decision: Tensor | None = None
        self.name, self.router, self.rank, self.control, self.shared_rank = name, router, rank, control, shared_rank
        self.state = BlockState()
        self.is_frozen = True  # the factors do not train
        self._joint_index: dict[nn.Module, int] = {}
        self._down_by_expert: Tensor | None = None
        self.register_buffer("joint_down", None, persistent=False)

    def forward(self, hidden: Float[Tensor, "*batch dim"]) -> Float[Tensor, "row expert"]:
        """Logits of every token, shape (B * T, n). Sets `state` for the linear layers of the block."""
        control, state = self.control, self.state
        tokens = hidden.numel() // hidden.shape[-1]
        # not where gradients are computed: the factors for few tokens may have been made in inference mode
        state.is_small = self.is_frozen and not torch.is_grad_enabled() and tokens <= _SMALL and hidden.device.type == "cpu"
        wide = hidden.float() if state.is_small else hidden
        logits = self._decide(wide)
        if control.collected_logits is not None:
            control.collected_logits.append(logits)
        if state.is_small and tokens == 1 and control.routing.top_k == 1 and not control.gate_function and not self.shared_rank:
            gate, expert = logits.softmax(dim=-1).max(dim=-1, keepdim=True)
            state.rank_gates = torch.ones_like(gate) if control.routing.renormalise else gate
            state.ranks = slice(int(expert) * self.rank, (int(expert) + 1) * self.rank)
        else:
            weights = state.gates = control.gate_function(logits) if control.gate_function else gates(logits, control.routing)
            scaled = (weights if control.lora_scale == 1 else weights * control.lora_scale).to(wide.dtype)
            rank_gates = scaled.unsqueeze(-1).expand(*scaled.shape, self.rank).flatten(-2)
            state.rank_gates = (
                nn.functional.pad(rank_gates, (0, self.shared_rank), value=1.0) if self.shared_rank else rank_gates
            )
        if self._joint_index:
            state.hidden = hidden
            if state.is_small:
                state.gated_down = self._gated_down_small(wide)
            else:
                down = nn.functional.linear(wide, self.joint_down).unflatten(-1, (len(self._joint_index), -1))  # type: ignore[arg-type]
                state.gated_down = (down * state.rank_gates.unsqueeze(-2)).unbind(dim=-2)
        return logits.reshape(-1, logits.shape[-1])

    @property
    def is_leader(self) -> bool:
        """Whether this point decides itself."""
        return not self._leader

    def _decide(self, hidden: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch expert"]:
        if self._leader:
            decision = self._leader[0]._decision
            assert decision is not None, "the layers of a decoder run in order"
            return decision
        control, weight = self.control, self.router.weight
        logits = nn.functional.linear(hidden.to(weight.dtype), weight) if control.final_logits is None else control.final_logits
        if control.running_mean is not None:
            logits = control.running_mean(self.name, logits)
        if control.routing.span:
            self._decision = logits
        return logits

    def applied_gates(self, logits: Float[Tensor, "row expert"]) -> Float[Tensor, "row expert"]:
        """The gates of the tokens that the block works on, whatever computed them. logits: as `forward` has just returned them."""
        current = self.state.gates
        return gates(logits, self.control.routing) if current is None else current.reshape(logits.shape).float()

    def join(self, linears: Sequence[Any]) -> None:
        """Compute the gated A x of these linear layers at once: all of them read the block's input."""
        self._joint_index = {linear: index for index, linear in enumerate(linears)}
        self.joint_down = torch.cat([linear.down for linear in linears]).detach()

    def refresh(self) -> None:
        """Reread the factors after their precision has changed."""
        self._down_by_expert = None
        if self._joint_index:
            self.join(list(self._joint_index))

    def prepare_training(self) -> None:
        """Compute each linear layer by itself, from the factors as they are at the moment."""
        self._joint_index, self.joint_down, self._down_by_expert, self.is_frozen = {}, None, None, False

    def gated_down(self, linear: Any, hidden: Float[Tensor, "*batch input"]) -> Float[Tensor, "*batch rank"]:
        """A x of each expert for one linear layer, times its gate."""
        state = self.state
        if hidden is state.hidden and linear in self._joint_index:
            return state.gated_down[self._joint_index[linear]]
        rank_gates = state.rank_gates.reshape(*hidden.shape[:-1], -1)  # a block may flatten the batch into one row of tokens
        if state.is_small:
            return nn.functional.linear(hidden.float(), linear.fp32_factor("down")[state.ranks]) * rank_gates  # type: ignore[no-any-return]
        return nn.functional.linear(hidden, linear.down.to(hidden.dtype)) * rank_gates  # type: ignore[no-any-return]

    def _gated_down_small(self, hidden: Tensor) -> Sequence[Tensor]:
        """Gated A x of the joint linear layers, with the factors of an expert contiguous, so that one expert is a slice."""
        assert self.joint_down is not None
        linears, rank, state = len(self._joint_index), self.rank, self.state
        if self._down_by_expert is None:
            split = self.joint_down.float().unflatten(0, (linears, -1, rank))
            self._down_by_expert = split.transpose(0, 1).flatten(0, 2).contiguous()
        if state.ranks.stop is not None:
            factors = self._down_by_expert[state.ranks.start * linears : state.ranks.stop * linears]
            return (nn.functional.linear(hidden, factors) * state.rank_gates).split(rank, dim=-1)  # type: ignore[no-any-return]
        product = nn.functional.linear(hidden, self._down_by_expert).unflatten(-1, (-1, linears, rank))
        gated = product.transpose(-3, -2).flatten(-2) * state.rank_gates.unsqueeze(-2)
        return gated.unbind(dim=-2)  # type: ignore[no-any-return]


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
        self._fp32_factors: dict[str, Tensor] = {}
        self._point = [point]  # in a list, so that it is not registered as a submodule: it belongs to the block

    @property
    def point(self) -> RoutingPoint:
        """The routing point that computes the gates."""
        return self._point[0]

    def forward(self, hidden: Float[Tensor, "*batch input"]) -> Float[Tensor, "*batch output"]:
        """The linear layer of the base, plus the experts of each token."""
        output, point = self.base(hidden), self.point
        if point.control.experts_off:
            return output  # type: ignore[no-any-return]
        down = point.gated_down(self, hidden)
        if point.state.is_small:
            return output.add_(down @ self.fp32_factor("up")[point.state.ranks])
        return torch.addmm(output.flatten(0, -2), down.flatten(0, -2), self.up.to(down.dtype).t()).view(output.shape)

    def refresh(self) -> None:
        """Reread the factors after their precision has changed."""
        self._fp32_factors.clear()

    def fp32_factor(self, name: str) -> Float[Tensor, "rank _"]:
        """A, or B transposed, with a row for each rank, in fp32: a small product on a CPU takes 15 us in bf16 and 3 us in fp32.

        Such products are most of the experts' cost per generated token.
        """
        if name not in self._fp32_factors:
            factor: Tensor = getattr(self, name).detach().float()
            self._fp32_factors[name] = (factor if name == "down" else factor.t()).contiguous()
        return self._fp32_factors[name]


class FinalRouter:
    """One decision for the whole model, from the last hidden state of the base model alone (X-LoRA). Costs a second forward pass.

    With a key-value cache, the base model's cache is attached to the mixture's, so decisions are the same with and without a cache.
    """

    def __init__(self, body: Any, control: Control, router: nn.Linear) -> None:
        self.control, self.router = control, router
        self.cache: Any = None  # of the base model, for the current pass
        body.register_forward_pre_hook(self._decide, with_kwargs=True)
        body.register_forward_hook(self._store_cache)

    def _decide(self, body: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        from transformers import DynamicCache

        if self.control.experts_off:
            return
        inputs = {name: value for name, value in kwargs.items() if not name.startswith("output_")}
        if (cache := inputs.get("past_key_values")) is not None:
            if not hasattr(cache, "base_model_cache"):
                cache.base_model_cache = DynamicCache(config=body.config)
            inputs["past_key_values"] = cache.base_model_cache
        self.control.experts_off = True
        try:
            with torch.no_grad(), _without_hooks(body):
                output = body(*args, **inputs)
        finally:
            self.control.experts_off = False
        state, self.cache = output.last_hidden_state, output.past_key_values
        self.control.final_logits = nn.functional.linear(state.to(self.router.weight.dtype), self.router.weight)

    def _store_cache(self, _: Any, args: tuple[Any, ...], output: Any) -> None:
        if not self.control.experts_off:
            cache = getattr(output, "past_key_values", None)
            if cache is not None:  # a model that is given no cache creates one, in each of the two passes
                cache.base_model_cache = self.cache
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
    """Routing by the text so far: the logits of a token are the mean of the router's logits over all tokens up to it, without padding.

    A mean over the whole text would leak later tokens into a language model. With a key-value cache, the sums are attached to the cache.
    """

    def __init__(self, body: Any, control: Control) -> None:
        self.attention_mask: Tensor | None = None
        self.sums: dict[str, tuple[Tensor, Tensor]] = {}
        control.running_mean = self.mean_so_far
        body.register_forward_pre_hook(self._load_sums, with_kwargs=True)
        body.register_forward_hook(self._store_sums)

    def _load_sums(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        mask, cache = kwargs.get("attention_mask"), kwargs.get("past_key_values")
        self.attention_mask = mask if isinstance(mask, Tensor) and mask.dim() == 2 else None
        self.sums = dict(getattr(cache, "logit_sums", {}))

    def _store_sums(self, _: Any, args: tuple[Any, ...], output: Any) -> None:
        cache = getattr(output, "past_key_values", None)  # the model creates one if it is given none
        if cache is not None:
            cache.logit_sums = self.sums
            forbid_reordering(cache, "routing by the text so far (`--level sequence`)")
        self.sums = {}

    def mean_so_far(self, name: str, logits: Float[Tensor, "batch token expert"]) -> Float[Tensor, "batch token expert"]:
        """For each token of a block, the mean of the logits up to that token, without padding."""
        mask = torch.ones(logits.shape[:-1], device=logits.device)
        if self.attention_mask is not None:
            mask = self.attention_mask[:, -logits.shape[1] :].to(mask)
        sums, counts = (logits * mask.unsqueeze(-1)).cumsum(dim=1), mask.cumsum(dim=1).unsqueeze(-1)
        if name in self.sums:
            before, number = self.sums[name]
            sums, counts = sums + before, counts + number
        self.sums = {**self.sums, name: (sums[:, -1:], counts[:, -1:])}
        return sums / counts.clamp_min(1)
