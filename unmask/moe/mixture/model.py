"""The mixture: a base model whose linear layers carry all experts, with routing points that gate them.

Experts are put into the loaded model in place. Its decoder then declares the routing points as the mixtures of transformers declare their
routers. So `output_router_logits=True` works, and so does everything that reads routing weights.

`override_routing` evaluates a mixture under another routing, to show what its routing is worth:

| name | gates |
|---|---|
| learned | as the mixture was saved |
| top-K | the K best experts of the router, not renormalised |
| top-K renormalised | the same, with gates that sum to 1 |
| all | every expert, with the router's probabilities as gates ("soft") |
| renormalised | as saved, and made to sum to 1: keeps which expert acts, drops how strongly |
| random | as saved, shuffled among the experts for each token and block: the same strength, another expert |
| uniform | 1 / n for each expert |
| NAME | one expert alone at full strength (the oracle, if it is the expert of the domain) |
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import torch
from jaxtyping import Float
from torch import Tensor, nn

from unmask.errors import UnmaskError, unknown
from unmask.models.decoder import body_of, find_layers, model_lock
from unmask.models.loading import Source
from unmask.moe.mixture.expert_folder import Expert, linear_of, require_stackable
from unmask.moe.mixture.gating import (
    Control,
    ExpertLinear,
    FinalRouter,
    GateFunction,
    Routing,
    RoutingPoint,
    RunningMean,
    gates,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


_SPREAD = 0.01  # of a new router's weights: equal logits would send every token to the first expert


class MixtureModel:
    """A causal language model with experts in it (MiXSE; Self-MoE, arXiv 2406.12034, section 2.2).

    model: changed in place. experts: in the order of the router's rows. routing: can be changed at any time, except for the settings it is
    `made_for`. shared: one more expert, which acts on every token at full strength and is not routed.
    Raises UnmaskError for experts that cannot be stacked or do not fit the model.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        experts: Sequence[Expert],
        routing: Routing | None = None,
        *,
        shared: Expert | None = None,
        source: Source | None = None,
        seed: int = 0,
    ) -> None:
        """Put the experts in. The router starts near zero, by the seed. source: where the base model comes from."""
        require_stackable([*experts, shared] if shared else experts)
        self.model, self.experts, self.shared = model, list(experts), shared
        self.source = source or Source(experts[0].base)
        self.tokenizer: PreTrainedTokenizerBase | None = None
        self.body: Any = body_of(model)
        self._control = Control(routing or Routing())
        self._layers = find_layers(self.body)
        self._prefix = next(path for path, module in model.named_modules() if module is self._layers)
        for name in experts[0].factors:  # before anything is changed: refuse experts that do not fit
            linear_of(model, self.experts[0], name)
            self._block(name)
        self._linears = self._linear_names(self.routing)
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        self.points = self._install()
        for name, point in self.points.items():
            self._gate_block(name, point)
        if self.routing.router == "final":
            FinalRouter(self.body, self._control, self.routers["router"])
        if self.routing.level == "sequence":
            RunningMean(self.body, self._control)
        declare(self.body)
        # A base that is a mixture itself may ask for the balance loss of its routers, which would read our routing points, too.
        if getattr(model.config, "output_router_logits", False):
            model.config.output_router_logits = False
        forget_recording(model)  # transformers looks for routers only once, and this model may have recorded before
        self.body.mixture = self
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for router in self.routers.values():
                router.weight.copy_(torch.randn(router.weight.shape, generator=generator) * _SPREAD)
        self._share()

    @property
    def routing(self) -> Routing:
        """How tokens are given to experts."""
        return self._control.routing

    @routing.setter
    def routing(self, routing: Routing) -> None:
        for name, current in self.routing.made_for.items():
            if (requested := routing.made_for[name]) != current:
                raise UnmaskError(f"The routers of this mixture were made for {name}={current}, not {requested}.")
        self._control.routing = routing

    @property
    def in_use(self) -> str:
        """How experts are used at the moment: the routing, and what overrides it. Waits for other threads that have the model."""
        with self.turn():
            return f"{self.routing} {self._control.override}{' without experts' if self._control.off else ''}"

    @property
    def routers(self) -> dict[str, nn.Linear]:
        """Each router once, by name: "router", or for `layer` the name of its block."""
        if self.routing.router == "layer":
            return {name: point.router for name, point in self.deciding.items()}
        return {"router": next(iter(self.points.values())).router}

    @property
    def deciding(self) -> dict[str, RoutingPoint]:
        """The routing points that decide themselves, by the name of their block. The others take over an earlier decision."""
        return {name: point for name, point in self.points.items() if point.decides}

    @property
    def router_weights(self) -> list[nn.Parameter]:
        """The weights of the routers, each once."""
        return [router.weight for router in self.routers.values()]

    @property
    def stacks(self) -> dict[str, ExpertLinear]:
        """The linear layers that carry the experts, by the name that they have in the base."""
        return {name: self.model.get_submodule(name) for name in self._linears}  # type: ignore[misc]

    @property
    def expert_weights(self) -> list[nn.Parameter]:
        """The weights of the experts."""
        return [weight for stack in self.stacks.values() for weight in (stack.down, stack.up)]

    def refresh(self) -> None:
        """Reread the factors of the experts after their precision has changed."""
        for stack in self.stacks.values():
            stack.refresh()
        for point in self.points.values():
            point.refresh()

    def scale_experts(self, scale: float) -> None:
        """Multiply what the experts add. While they train, their factors do not include the scale yet."""
        self._control.scale = scale

    def load_routers(self, weights: Mapping[str, Tensor]) -> None:
        """Load the weights of routers. Raises UnmaskError for routers of other experts or of another kind."""
        routers = self.routers
        shapes = {name: tuple(router.weight.shape) for name, router in routers.items()}
        if {name: tuple(weight.shape) for name, weight in weights.items()} != shapes:
            raise UnmaskError(
                f"These routers are not of the kind '{self.routing.router}' for {len(self.experts)} experts of this model: they belong to "
                "another mixture."
            )
        with torch.no_grad():
            for name, router in routers.items():
                router.weight.copy_(weights[name])

    def turn(self) -> AbstractContextManager[None]:
        """Have the model alone inside a `with` block. Other threads that embed with it wait until the block ends."""
        return model_lock(self.model)

    @contextmanager
    def _controlled(self, **values: Any) -> Iterator[None]:
        """Have the model alone, with other values of its control, inside a `with` block."""
        with self.turn():
            before = {name: getattr(self._control, name) for name in values}
            try:
                vars(self._control).update(values)
                yield
            finally:
                vars(self._control).update(before)

    def with_gates(self, gate_function: GateFunction) -> AbstractContextManager[None]:
        """Compute the gates by a function of the logits inside a `with` block, in place of the routing: an oracle, chance."""
        # a function cannot be compared with another one, so each use of one counts as another mixture (`in_use`)
        return self._controlled(gate_function=gate_function, override=uuid4().hex)

    def with_routing(self, **changes: Any) -> AbstractContextManager[None]:
        """Use another `top_k` or `renormalise` inside a `with` block."""
        return self._controlled(routing=replace(self.routing, **changes))

    @contextmanager
    def record_logits(self) -> Iterator[list[Tensor]]:
        """Collect the logits of every routing point inside a `with` block, pass after pass. The caller may clear the list."""
        recorded: list[Tensor] = []
        with self._controlled(recorded=recorded):
            yield recorded

    def without_experts(self) -> AbstractContextManager[None]:
        """Leave all experts out inside a `with` block: exactly the base model."""
        return self._controlled(off=True)

    def only(self, name: str) -> AbstractContextManager[None]:
        """Use one expert alone, at full strength, inside a `with` block. Raises UnmaskError for an unknown name."""
        names = [expert.name for expert in self.experts]
        if name not in names:
            raise unknown("expert", name, names)
        index = names.index(name)
        return self.with_gates(
            lambda logits: nn.functional.one_hot(torch.full(logits.shape[:-1], index), len(names)).to(logits)
        )

    def _install(self) -> dict[str, RoutingPoint]:
        """Replace the linear layers. Returns the routing points by the name of their block."""
        first = self.experts[0]
        weight = next(self.model.parameters())
        shared: nn.Linear | None = None
        points: dict[str, RoutingPoint] = {}
        leaders: dict[int, RoutingPoint] = {}  # the first point of each group of layers that share a decision
        span, from_layer = self.routing.span, self.routing.from_layer
        for name in self._linears:
            linear = linear_of(self.model, first, name)
            block = self._block(name)
            if block not in points:
                leader = leaders.get(group := (self._layer(name) - from_layer) // span if span else len(points))
                if shared is None or (self.routing.router == "layer" and leader is None):
                    # fp32 whatever the precision of the model: the router trains, and is small
                    size = self.body.config.get_text_config(decoder=True).hidden_size
                    shared = nn.Linear(size, len(self.experts), bias=False, device=weight.device, dtype=torch.float32)
                always = first.rank if self.shared else 0
                points[block] = RoutingPoint(block, shared, first.rank, self._control, always, leader)
                leaders.setdefault(group, points[block])
            owner, _, leaf = name.rpartition(".")
            stacked = [*self.experts, self.shared] if self.shared else self.experts
            stack = ExpertLinear(linear, [expert.factors[name] for expert in stacked], points[block])
            setattr(self.model.get_submodule(owner), leaf, stack)
        for block, point in points.items():
            self.model.get_submodule(block).routing_point = point
        return points

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _share(self) -> None:
        """Find out, by a pass over one token, which linear layers read the input of their block itself."""
        inputs: dict[int, Any] = {}
        sharing: dict[RoutingPoint, list[nn.Module]] = {}
        hooks = [
            point.register_forward_pre_hook(lambda point, hidden: inputs.update({id(point): hidden[0]}))
            for point in self.points.values()
        ]

        def note(stack: Any, hidden: tuple[Any, ...]) -> None:
            point = stack.point
            if inputs.get(id(point)) is hidden[0]:
                sharing.setdefault(point, []).append(stack)

        hooks += [stack.register_forward_pre_hook(note) for stack in self.stacks.values()]
        training = self.model.training
        try:
            self.model.eval()
            self.body(input_ids=torch.zeros(1, 1, dtype=torch.long, device=self.model.device), use_cache=False)
        finally:
            self.model.train(training)
            for hook in hooks:
                hook.remove()
        for point, stacks in sharing.items():
            if len(stacks) > 1:
                point.share(stacks)

    def _block(self, name: str) -> str:
        """The name of the attention or MLP that a linear layer belongs to: a child of a decoder layer."""
        inside = name.removeprefix(f"{self._prefix}.").split(".")
        if not name.startswith(f"{self._prefix}.") or len(inside) < 3:
            raise UnmaskError(f"{name} is not part of a block (attention or MLP) of a layer, so its tokens cannot be routed.")
        return f"{self._prefix}.{inside[0]}.{inside[1]}"

    def _layer(self, name: str) -> int:
        """The number of the layer that a linear layer belongs to."""
        return int(self._block(name).rpartition(".")[0].rpartition(".")[2])

    def _linear_names(self, routing: Routing) -> list[str]:
        """The linear layers with experts. If layers share decisions, in the order in which the model runs them: the first one decides."""
        count = len(self._layers)
        if routing.from_layer >= count:
            raise UnmaskError(
                f"from_layer {routing.from_layer} leaves no layer with experts: this model has layers 0 to {count - 1}."
            )
        linears = [name for name in self.experts[0].factors if self._layer(name) >= routing.from_layer]
        if not linears:
            raise UnmaskError(
                f"These experts change no layer from {routing.from_layer} on, so the mixture would be its base model."
            )
        order = {name: index for index, (name, _) in enumerate(self.model.named_modules())}
        return sorted(linears, key=order.__getitem__) if routing.span else linears

    def _gate_block(self, name: str, point: RoutingPoint) -> None:
        def gate(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not point.control.off:
                point(args[0] if args else kwargs["hidden_states"])

        block = self.model.get_submodule(name)
        block.register_forward_pre_hook(gate, with_kwargs=True)
        block.register_forward_hook(lambda *_: point.now.clear())


def forget_recording(model: nn.Module) -> None:
    """Remove the hooks by which transformers records outputs, so that it looks for the modules to record again."""
    for module in model.modules():
        for key, hook in list(module._forward_hooks.items()):
            if getattr(hook, "__module__", "") == "transformers.utils.output_capturing":
                del module._forward_hooks[key]
        vars(module).pop("_output_capturing_hooks_installed", None)


def declare(body: Any) -> None:
    """Declare the routing points of a decoder as the source of `router_logits`, as transformers' mixtures do, for this instance only."""
    from transformers.utils.output_capturing import _CAN_RECORD_REGISTRY, OutputRecorder

    recorded = dict(type(body)._can_record_outputs or {})
    declared = recorded.get("router_logits", [])
    ours = OutputRecorder(RoutingPoint, index=0)
    recorded["router_logits"] = [*(declared if isinstance(declared, list) else [declared]), ours]
    body.__class__ = type(f"Mixture{type(body).__name__}", (type(body),), {"_can_record_outputs": recorded})
    _CAN_RECORD_REGISTRY[body] = recorded


NAMED = ("learned", "all", "renormalised", "random", "uniform")
_RANKED = re.compile(r"top-([1-9]\d{0,5})( renormalised)?")


def check_override(choice: str, experts: Sequence[str]) -> None:
    """Raise UnmaskError for a routing that a mixture of these experts does not have."""
    ranked = _RANKED.fullmatch(choice)
    if ranked and int(ranked[1]) > len(experts):
        raise UnmaskError(f"'{choice}' needs {ranked[1]} experts; this mixture has {len(experts)}.")
    if not ranked and choice not in (*NAMED, *experts):
        raise unknown("choice", choice, [*NAMED, "top-2", "top-2 renormalised", *experts])


@contextmanager
def override_routing(mixture: MixtureModel, choice: str, seed: int = 0) -> Iterator[None]:
    """Use another routing inside a `with` block. Raises UnmaskError for an unknown name."""
    check_override(choice, [expert.name for expert in mixture.experts])
    if ranked := _RANKED.fullmatch(choice):
        using = mixture.with_routing(top_k=int(ranked[1]), renormalise=bool(ranked[2]))
    elif choice == "learned":
        using = mixture.with_routing()
    elif choice == "all":
        using = mixture.with_routing(top_k=len(mixture.experts))
    elif choice == "renormalised":
        using = mixture.with_routing(renormalise=True)
    elif gate_function := {"random": shuffled(mixture.routing, seed), "uniform": uniform}.get(choice):
        using = mixture.with_gates(gate_function)
    else:
        using = mixture.only(choice)
    with using:
        yield


def uniform(logits: Float[Tensor, "*batch expert"]) -> Float[Tensor, "*batch expert"]:
    """A gate of 1 / n for every expert."""
    return torch.full(logits.shape, 1 / logits.shape[-1], device=logits.device)


def shuffled(routing: Routing, seed: int) -> GateFunction:
    """The gates of a routing, in a random order of the experts for each token: other experts act, as strongly as before."""
    generator = torch.Generator().manual_seed(seed)

    def gate_function(logits: Float[Tensor, "*batch expert"]) -> Float[Tensor, "*batch expert"]:
        order = torch.rand(logits.shape, generator=generator).argsort(dim=-1).to(logits.device)
        return gates(logits, routing).gather(-1, order)

    return gate_function
