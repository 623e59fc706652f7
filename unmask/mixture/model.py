"""The mixture: a base model whose linear maps carry all experts, with routing points that gate them.

Experts are put into the loaded model in place. Its decoder then declares the routing points as transformers' own mixtures declare their
routers, so `output_router_logits=True` works, and whatever reads routing weights reads these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from unmask.errors import UnmaskError, unknown
from unmask.mixture.expert_folder import Expert, require_alike
from unmask.mixture.expert_linear import ExpertLinear
from unmask.mixture.final_router import FirstPass
from unmask.mixture.gating import Control, GateFunction, Routing, RoutingPoint
from unmask.mixture.running_mean import RunningMean
from unmask.models.decoder import body_of, find_layers
from unmask.models.loading import Source

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_SPREAD = 0.01  # of a new router: equal logits would send every token to the first expert


class MixtureModel:
    """A causal language model with experts in it (MiXSE; Self-MoE, arXiv 2406.12034, section 2.2).

    model: changed in place; experts: in the order of the router's rows; routing: may be set anew at any time, but not its `router` and
    its `level`; shared: an expert beside them that acts on every token at full strength, without being routed.
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
        """Put the experts in; the router starts near zero, by the seed. source: where the base model comes from."""
        require_alike([*experts, shared] if shared else experts)
        self.model, self.experts, self.shared = model, list(experts), shared
        self.source = source or Source(experts[0].base)
        self.tokenizer: PreTrainedTokenizerBase | None = None
        self.body: Any = body_of(model)
        self._control = Control(routing or Routing())
        for name in experts[0].factors:  # what does not fit is refused while nothing has changed
            self._linear(name)
            self._block(name)
        self._before = BaseState.of(model, self.body)
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        self.points = self._install()
        self._hooks: list[Any] = []
        for name, point in self.points.items():
            self._gate_block(name, point)
        if self.routing.router == "final":
            self._hooks.append(FirstPass(self.body, self._control, self.routers["router"]).attach())
        if self.routing.level == "sequence":
            self._hooks.append(RunningMean(self.body, self._control).attach())
        self._plain_class = type(self.body)
        declare(self.body)
        forget_recording(model)  # transformers would not look for routing points in a model that has recorded before
        self.body.mixture = self
        self.initialise(seed)
        self._share()

    @property
    def routing(self) -> Routing:
        """How tokens are given to experts."""
        return self._control.routing

    @routing.setter
    def routing(self, routing: Routing) -> None:
        for made, asked in ((self.routing.router, routing.router), (self.routing.level, routing.level)):
            if made != asked:
                raise UnmaskError(f"The routers of this mixture were made for '{made}', not '{asked}'.")
        self._control.routing = routing

    @property
    def routers(self) -> dict[str, nn.Linear]:
        """Each router once, by name: "router", or for `layer` the block that it belongs to."""
        if self.routing.router == "layer":
            return {name: point.router for name, point in self.points.items()}
        return {"router": next(iter(self.points.values())).router}

    @property
    def router_weights(self) -> list[nn.Parameter]:
        """What a router learns, each weight once."""
        return [router.weight for router in self.routers.values()]

    @property
    def stacks(self) -> dict[str, ExpertLinear]:
        """The linear maps that carry the experts, by the name that they have in the base."""
        return {name: self.model.get_submodule(name) for name in self.experts[0].factors}  # type: ignore[misc]

    @property
    def expert_weights(self) -> list[nn.Parameter]:
        """What experts learn."""
        return [weight for stack in self.stacks.values() for weight in (stack.down, stack.up)]

    def scale_experts(self, scale: float) -> None:
        """Multiply what the experts add by a scale that their factors do not hold yet, while they train."""
        self._control.scale = scale

    def initialise(self, seed: int) -> None:
        """Give every router small random weights."""
        chance = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for router in self.routers.values():
                router.weight.copy_(torch.randn(router.weight.shape, generator=chance) * _SPREAD)

    def load_routers(self, weights: Mapping[str, Tensor]) -> None:
        """Take routers over. Raises UnmaskError for routers of other experts or of another kind."""
        routers = self.routers
        if weights.keys() != routers.keys():
            raise UnmaskError(f"These routers are not of the kind '{self.routing.router}', or of another model.")
        with torch.no_grad():
            for name, router in routers.items():
                if weights[name].shape != router.weight.shape:
                    raise UnmaskError(
                        f"The router '{name}' has the shape {tuple(weights[name].shape)}, and {len(self.experts)} experts of this "
                        f"model need {tuple(router.weight.shape)}: it belongs to other experts."
                    )
                router.weight.copy_(weights[name])

    @contextmanager
    def with_gates(self, force: GateFunction) -> Iterator[None]:
        """Let a function of the logits give the gates in place of the routing: an oracle, chance, all alike."""
        before, self._control.force = self._control.force, force
        try:
            yield
        finally:
            self._control.force = before

    @contextmanager
    def record_logits(self) -> Iterator[list[Tensor]]:
        """Collect the logits of every routing point, pass after pass, for the time of a `with`; the list may be cleared."""
        heard: list[Tensor] = []
        self._control.heard = heard
        try:
            yield heard
        finally:
            self._control.heard = None

    @contextmanager
    def without_experts(self) -> Iterator[None]:
        """Leave all experts out: the base model, bit by bit."""
        before, self._control.off = self._control.off, True
        try:
            yield
        finally:
            self._control.off = before

    def only(self, name: str) -> Any:
        """One expert alone at full strength, for the time of a `with`. Raises UnmaskError for a name that there is not."""
        names = [expert.name for expert in self.experts]
        if name not in names:
            raise unknown("expert", name, names)
        place = names.index(name)
        return self.with_gates(
            lambda logits: nn.functional.one_hot(torch.full(logits.shape[:-1], place), len(names)).to(logits)
        )

    def remove(self) -> PreTrainedModel:
        """Take all experts out again and give the base model back as it was: its weights, what of them trains, its mode, its hooks."""
        for hook in self._hooks:
            hook.remove()
        forget_recording(self.model)
        for name in self.experts[0].factors:
            owner, _, leaf = name.rpartition(".")
            setattr(self.model.get_submodule(owner), leaf, self.model.get_submodule(name).base)
        for name in self.points:
            del self.model.get_submodule(name).routing_point
        self.body.__class__ = self._plain_class
        del self.body.mixture
        self._before.restore(self.body)
        return self.model

    def _install(self) -> dict[str, RoutingPoint]:
        """Replace the linear maps; the routing points by the name of their block."""
        first = self.experts[0]
        weight = next(self.model.parameters())
        shared: nn.Linear | None = None
        points: dict[str, RoutingPoint] = {}
        for name in first.factors:
            linear = self._linear(name)
            block = self._block(name)
            if block not in points:
                if shared is None or self.routing.router == "layer":
                    # the router trains and is small: fp32 beside weights of any precision
                    size = self.body.config.get_text_config(decoder=True).hidden_size
                    shared = nn.Linear(size, len(self.experts), bias=False, device=weight.device, dtype=torch.float32)
                points[block] = RoutingPoint(block, shared, first.rank, self._control, always=first.rank if self.shared else 0)
            owner, _, leaf = name.rpartition(".")
            stacked = [*self.experts, self.shared] if self.shared else self.experts
            stack = ExpertLinear(linear, [expert.factors[name] for expert in stacked], points[block])
            setattr(self.model.get_submodule(owner), leaf, stack)
        for block, point in points.items():
            self.model.get_submodule(block).routing_point = point
        return points

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _share(self) -> None:
        """Find out, by one token, which maps read the very input of their block."""
        given: dict[int, Any] = {}
        sharing: dict[RoutingPoint, list[nn.Module]] = {}
        hooks = [
            point.register_forward_pre_hook(lambda point, hidden: given.update({id(point): hidden[0]}))
            for point in self.points.values()
        ]

        def note(stack: Any, hidden: tuple[Any, ...]) -> None:
            point = stack.point
            if given.get(id(point)) is hidden[0]:
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

    def _linear(self, name: str) -> nn.Linear:
        try:
            linear = self.model.get_submodule(name)
        except AttributeError:
            linear = None
        down, up = self.experts[0].factors[name]
        if type(linear) is not nn.Linear or (up.shape[0], down.shape[1]) != tuple(linear.weight.shape):
            what = "no linear map" if type(linear) is not nn.Linear else "another shape there"
            raise UnmaskError(
                f"'{self.experts[0].name}' changes {name}, and this model has {what}: it is an expert of another model."
            )
        return linear

    def _block(self, name: str) -> str:
        """The attention or MLP that a map stands in: the child of a decoder layer."""
        layers = find_layers(self.body)
        prefix = next(path for path, module in self.model.named_modules() if module is layers)
        inside = name.removeprefix(f"{prefix}.").split(".")
        if not name.startswith(f"{prefix}.") or len(inside) < 3:
            raise UnmaskError(f"{name} stands in no block of a layer, so nothing there can route its tokens.")
        return f"{prefix}.{inside[0]}.{inside[1]}"

    def _gate_block(self, name: str, point: RoutingPoint) -> None:
        def gate(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            if not point.control.off:
                point(given[0] if given else named["hidden_states"])

        block = self.model.get_submodule(name)
        self._hooks.append(block.register_forward_pre_hook(gate, with_kwargs=True))
        self._hooks.append(block.register_forward_hook(lambda *_: point.forget()))


@dataclass(frozen=True)
class BaseState:
    """What a mixture changes in its base beside the experts: which weights train, which modules are in training mode, what is recorded."""

    trains: tuple[tuple[nn.Parameter, bool], ...]
    modes: tuple[tuple[nn.Module, bool], ...]
    recorded: tuple[nn.Module, ...]
    declared: Any

    @classmethod
    def of(cls, model: nn.Module, body: Any) -> BaseState:
        """As a model is now."""
        from transformers.utils.output_capturing import _CAN_RECORD_REGISTRY

        return cls(
            tuple((weight, weight.requires_grad) for weight in model.parameters()),
            tuple((module, module.training) for module in model.modules()),
            tuple(module for module in model.modules() if _recorded(module)),
            _CAN_RECORD_REGISTRY.get(body),
        )

    def restore(self, body: Any) -> None:
        """Make a model so again, whose experts have been taken out."""
        from transformers.utils.output_capturing import _CAN_RECORD_REGISTRY, install_all_output_capturing_hooks

        for weight, trains in self.trains:
            weight.requires_grad_(trains)
        for module, training in self.modes:
            module.training = training
        _CAN_RECORD_REGISTRY[body] = self.declared
        for module in self.recorded:
            if not _recorded(module):  # not inside one before it
                install_all_output_capturing_hooks(module)  # type: ignore[arg-type]


def forget_recording(model: nn.Module) -> None:
    """Take away the hooks by which transformers records outputs. It puts them in again, at what there is to record then."""
    for module in model.modules():
        for key, hook in list(module._forward_hooks.items()):
            if getattr(hook, "__module__", "") == "transformers.utils.output_capturing":
                del module._forward_hooks[key]
        if _recorded(module):
            del module._output_capturing_hooks_installed


def _recorded(module: nn.Module) -> bool:
    return "_output_capturing_hooks_installed" in vars(module)


def declare(body: Any) -> None:
    """Make a decoder say that its routing points give `router_logits`, as transformers' mixtures do. Of this instance only."""
    from transformers.utils.output_capturing import _CAN_RECORD_REGISTRY, OutputRecorder

    recorded = dict(type(body)._can_record_outputs or {})
    own = recorded.get("router_logits", [])
    ours = OutputRecorder(RoutingPoint, index=0)
    recorded["router_logits"] = [*(own if isinstance(own, list) else [own]), ours]
    body.__class__ = type(f"Mixture{type(body).__name__}", (type(body),), {"_can_record_outputs": recorded})
    _CAN_RECORD_REGISTRY[body] = recorded
