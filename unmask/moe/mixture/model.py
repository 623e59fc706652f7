"""The mixture: a base model whose linear layers carry all experts, with routing points that gate them.

Experts are put into the loaded model in place. Its decoder then declares the routing points as the mixtures of transformers declare their
routers. So `output_router_logits=True` works, and so does everything that reads routing weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import torch
from torch import Tensor, nn

from unmask.errors import UnmaskError, unknown
from unmask.io.files import atomic_folder, inside, only_writer_of
from unmask.io.seals import check_seal, load_tensors, save_tensors, seal
from unmask.models.decoder import body_of, find_layers, model_lock
from unmask.models.identity import pinned, require_unchanged_base
from unmask.models.loading import Source, base_of, load_base_language_model, own_tokenizer
from unmask.moe.mixture.expert_folder import Expert, linear_of, read_expert, require_stackable
from unmask.moe.mixture.gating import (
    Control,
    ExpertLinear,
    FinalRouter,
    GateFunction,
    Routing,
    RoutingPoint,
    RunningMean,
)
from unmask.moe.mixture.mixture_folder import (
    EXPERTS,
    ROUTERS,
    SETTINGS,
    MixtureSettings,
    base_of_experts,
    copy_expert,
    read_mixture_settings,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


_SPREAD = 0.01  # of a new router's weights: equal logits would send every token to the first expert


class Mixture:
    """A causal language model with experts in it (MiXSE; Self-MoE, arXiv 2406.12034, section 2.2).

    model: changed in place. experts: in the order of the router's rows. routing: can be changed at any time, except for the settings it is
    `fixed_settings`. shared: one more expert, which acts on every token at full strength and is not routed.
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
        self.points = self._insert_experts()
        for name, point in self.points.items():
            self._gate_block(name, point)
        if self.routing.router == "final":
            FinalRouter(self.body, self._control, self.routers["router"])
        if self.routing.level == "sequence":
            RunningMean(self.body, self._control)
        declare_routers(self.body)
        # A base that is a mixture itself may ask for the balance loss of its routers, which would read our routing points, too.
        if getattr(model.config, "output_router_logits", False):
            model.config.output_router_logits = False
        forget_recording(model)  # transformers looks for routers only once, and this model may have recorded before
        self.body.mixture = self
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for router in self.routers.values():
                router.weight.copy_(torch.randn(router.weight.shape, generator=generator) * _SPREAD)
        self._join_linears()

    @classmethod
    def from_pretrained(cls, folder: str | Path, **source: Any) -> Mixture:
        """Load a saved mixture, with its `tokenizer`. source: options of Source, such as dtype and device. Raises UnmaskError."""
        mixture, tokenizer = load_mixture(Path(folder), Source(str(folder), **source))
        mixture.tokenizer = tokenizer
        return mixture

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the experts, the routers and the settings into a new folder. Raises UnmaskError if the folder exists."""
        with only_writer_of(Path(folder)), atomic_folder(Path(folder)) as scratch:
            self.write_files(scratch)
            seal(scratch)

    def write_files(self, folder: Path) -> None:
        """Write into an existing folder. Raises UnmaskError if the files of the base or of an expert changed since they were loaded."""
        require_unchanged_base(self.body)
        for expert in self._all_experts:
            copy_expert(expert, inside(folder / EXPERTS, expert.name))
        save_tensors(folder / ROUTERS, {name: router.weight for name, router in self.routers.items()})
        names = tuple(expert.name for expert in self.experts)
        base = pinned(self.source, self.model)
        settings = MixtureSettings(
            base=base.base,
            revision=base.revision,
            base_weights=base.base_weights,
            experts=names,
            shared=self.shared.name if self.shared else None,
            routing=self.routing,
        )
        (folder / SETTINGS).write_text(settings.model_dump_json(indent=2) + "\n", encoding="utf-8")

    @property
    def routing(self) -> Routing:
        """How tokens are given to experts."""
        return self._control.routing

    @routing.setter
    def routing(self, routing: Routing) -> None:
        for name, current in self.routing.fixed_settings.items():
            if (requested := routing.fixed_settings[name]) != current:
                raise UnmaskError(f"The routers of this mixture were made for {name}={current}, not {requested}.")
        self._control.routing = routing

    @property
    def _all_experts(self) -> list[Expert]:
        return [*self.experts, self.shared] if self.shared else self.experts

    @property
    def in_use(self) -> str:
        """How experts are used at the moment: the routing, and what overrides it. Waits for other threads that have the model."""
        with self.turn():
            return f"{self.routing} {self._control.override}{' without experts' if self._control.experts_off else ''}"

    @property
    def routers(self) -> dict[str, nn.Linear]:
        """Each router once, by name: "router", or for `layer` the name of its block."""
        if self.routing.router == "layer":
            return {name: point.router for name, point in self.deciding_points.items()}
        return {"router": next(iter(self.points.values())).router}

    @property
    def deciding_points(self) -> dict[str, RoutingPoint]:
        """The routing points that decide themselves, by the name of their block. The others take over an earlier decision."""
        return {name: point for name, point in self.points.items() if point.is_leader}

    @property
    def router_weights(self) -> list[nn.Parameter]:
        """The weights of the routers, each once."""
        return [router.weight for router in self.routers.values()]

    @property
    def expert_linears(self) -> dict[str, ExpertLinear]:
        """The linear layers that carry the experts, by the name that they have in the base."""
        return {name: self.model.get_submodule(name) for name in self._linears}  # type: ignore[misc]

    @property
    def expert_weights(self) -> list[nn.Parameter]:
        """The weights of the experts."""
        return [weight for linear in self.expert_linears.values() for weight in (linear.down, linear.up)]

    def refresh(self) -> None:
        """Reread the factors of the experts after their precision has changed."""
        for linear in self.expert_linears.values():
            linear.refresh()
        for point in self.points.values():
            point.refresh()

    def scale_experts(self, scale: float) -> None:
        """Multiply what the experts add. While they train, their factors do not include the scale yet."""
        self._control.lora_scale = scale

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
        collected: list[Tensor] = []
        with self._controlled(collected_logits=collected):
            yield collected

    def without_experts(self) -> AbstractContextManager[None]:
        """Leave all experts out inside a `with` block: exactly the base model."""
        return self._controlled(experts_off=True)

    def only(self, name: str) -> AbstractContextManager[None]:
        """Use one expert alone, at full strength, inside a `with` block. Raises UnmaskError for an unknown name."""
        names = [expert.name for expert in self.experts]
        if name not in names:
            raise unknown("expert", name, names)
        index = names.index(name)
        return self.with_gates(
            lambda logits: nn.functional.one_hot(torch.full(logits.shape[:-1], index), len(names)).to(logits)
        )

    def _insert_experts(self) -> dict[str, RoutingPoint]:
        """Replace the linear layers. Returns the routing points by the name of their block."""
        first = self.experts[0]
        weight = next(self.model.parameters())
        router: nn.Linear | None = None
        points: dict[str, RoutingPoint] = {}
        leaders: dict[int, RoutingPoint] = {}  # the first point of each group of layers that share a decision
        span, from_layer = self.routing.span, self.routing.from_layer
        for name in self._linears:
            linear = linear_of(self.model, first, name)
            block = self._block(name)
            if block not in points:
                leader = leaders.get(group := (self._layer(name) - from_layer) // span if span else len(points))
                if router is None or (self.routing.router == "layer" and leader is None):
                    # fp32 whatever the precision of the model: the router trains, and is small
                    size = self.body.config.get_text_config(decoder=True).hidden_size
                    router = nn.Linear(size, len(self.experts), bias=False, device=weight.device, dtype=torch.float32)
                shared_rank = first.rank if self.shared else 0
                points[block] = RoutingPoint(block, router, first.rank, self._control, shared_rank, leader)
                leaders.setdefault(group, points[block])
            owner, _, leaf = name.rpartition(".")
            factors = [expert.factors[name] for expert in self._all_experts]
            setattr(self.model.get_submodule(owner), leaf, ExpertLinear(linear, factors, points[block]))
        for block, point in points.items():
            self.model.get_submodule(block).routing_point = point
        return points

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _join_linears(self) -> None:
        """Join the linear layers that read the input of their block itself, which a pass over one token shows."""
        inputs: dict[int, Any] = {}
        readers: dict[RoutingPoint, list[nn.Module]] = {}
        hooks = [
            point.register_forward_pre_hook(lambda point, hidden: inputs.update({id(point): hidden[0]}))
            for point in self.points.values()
        ]

        def note(linear: Any, hidden: tuple[Any, ...]) -> None:
            if inputs.get(id(linear.point)) is hidden[0]:
                readers.setdefault(linear.point, []).append(linear)

        hooks += [linear.register_forward_pre_hook(note) for linear in self.expert_linears.values()]
        training = self.model.training
        try:
            self.model.eval()
            self.body(input_ids=torch.zeros(1, 1, dtype=torch.long, device=self.model.device), use_cache=False)
        finally:
            self.model.train(training)
            for hook in hooks:
                hook.remove()
        for point, linears in readers.items():
            if len(linears) > 1:
                point.join(linears)

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
            if not point.control.experts_off:
                point(args[0] if args else kwargs["hidden_states"])

        block = self.model.get_submodule(name)
        block.register_forward_pre_hook(gate, with_kwargs=True)
        block.register_forward_hook(lambda *_: point.state.clear())


def forget_recording(model: nn.Module) -> None:
    """Remove the hooks by which transformers records outputs, so that it looks for the modules to record again."""
    for module in model.modules():
        for key, hook in list(module._forward_hooks.items()):
            if getattr(hook, "__module__", "") == "transformers.utils.output_capturing":
                del module._forward_hooks[key]
        vars(module).pop("_output_capturing_hooks_installed", None)


def declare_routers(body: Any) -> None:
    """Declare the routing points of a decoder as the source of `router_logits`, as transformers' mixtures do, for this instance only."""
    from transformers.utils.output_capturing import _CAN_RECORD_REGISTRY, OutputRecorder

    recorders = dict(type(body)._can_record_outputs or {})
    declared = recorders.get("router_logits", [])
    ours = OutputRecorder(RoutingPoint, index=0)
    recorders["router_logits"] = [*(declared if isinstance(declared, list) else [declared]), ours]
    body.__class__ = type(f"Mixture{type(body).__name__}", (type(body),), {"_can_record_outputs": recorders})
    _CAN_RECORD_REGISTRY[body] = recorders


def build_mixture(
    folders: Sequence[Path], routing: Routing, source: Source | None = None, seed: int = 0, shared: Path | None = None
) -> tuple[Mixture, PreTrainedTokenizerBase]:
    """Load the base model of some experts and put them in, under an untrained router.

    source: the base and how to load it; by default, the base that the experts name. shared: an expert that always acts. Raises UnmaskError.
    """
    experts = [read_expert(folder) for folder in folders]
    shared_expert = read_expert(shared) if shared else None
    require_stackable(experts)
    source = base_of_experts([*experts, shared_expert] if shared_expert else experts, source or Source(""))
    model, tokenizer = load_base_language_model(source)
    return Mixture(model, experts, routing, shared=shared_expert, source=source, seed=seed), tokenizer


def load_mixture(folder: Path, source: Source) -> tuple[Mixture, PreTrainedTokenizerBase]:
    """Read what `Mixture.write_files` wrote. Raises UnmaskError, also for a damaged folder and for a base model that has changed.

    source: how to load the base. If its adapter is the mixture, its model is the base.
    """
    check_seal(folder)
    settings = read_mixture_settings(folder)
    experts = [read_expert(inside(folder / EXPERTS, name), name) for name in settings.experts]
    shared = read_expert(inside(folder / EXPERTS, settings.shared), settings.shared) if settings.shared else None
    base = replace(source, adapters=(), merge=False) if source.adapters else base_of(folder, source)
    model, tokenizer = load_base_language_model(base)
    mixture = Mixture(model, experts, settings.routing, shared=shared, source=base)
    if not (folder / ROUTERS).is_file():
        raise UnmaskError(f"'{folder}' is a mixture without its routers ({ROUTERS}).")
    mixture.load_routers(load_tensors(folder / ROUTERS))
    saved_tokenizer = own_tokenizer(folder, source)
    return mixture, tokenizer if saved_tokenizer is None else saved_tokenizer
