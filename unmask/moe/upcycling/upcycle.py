"""Sparse upcycling: it turns a dense decoder into a mixture of experts with the same logits (Komatsuzaki et al. 2022).

Every expert starts as a copy of the layer's MLP. The weights of the chosen experts sum to one. So the mixture's logits ARE the dense
model's, whatever its new router says. This is checked on the built model, in fp32, before noise is added. The name of the dense
architecture plays no role. Each row of TARGETS is tried: the first row that has a place for every weight and gives equal logits is
used. A model that no row reproduces is refused. Branches of the dense model take the place of the copies after this check.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from unmask.errors import UnmaskError, cause_of
from unmask.models.routers import find_routers
from unmask.moe.upcycling.branches import Branch, is_expert, mix_branches, require_different

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOLERANCE = 1e-4  # of the largest logit, in fp32; thirty layers differ by about 1e-6
_GATE_UP, _DOWN = ".experts.gate_up_proj", ".experts.down_proj"
_WINDOWS = ("sliding_window", "attention_chunk_size")


@dataclass(frozen=True)
class UpcycleOptions:
    """How to make a mixture from a dense model. Raises UnmaskError for options that cannot work.

    experts: copies of each MLP, or branches. top_k: how many of them a token uses. every: each n-th layer becomes a mixture.
    noise: Gaussian noise on each expert's weights, as a share of their deviation. The default changes the model very little, but the
    router can learn from the first step. Without noise all copies are equal, and the router's gradient is exactly zero. Branches differ
    without it.
    drop: share of each expert's neurons that get new random weights (Drop-Upcycling, Nakamura et al. 2025; they use 0.5 and train on
    billions of tokens). The default is 0, because a short training does not repair the damage. On SmolLM2-135M, 0.25 raises the loss
    on a text from 2.3 to 6.0; the default noise does not change it.
    router_std: deviation of the new routers' weights. aux_loss: weight of the load-balancing loss in training.
    """

    experts: int = 8
    top_k: int = 2
    every: int = 1
    noise: float = 0.01
    drop: float = 0.0
    router_std: float = 0.02
    aux_loss: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse options that cannot work."""
        if not 2 <= self.top_k <= self.experts:
            raise UnmaskError(
                f"top-k must be between 2 and the number of experts ({self.experts}), not {self.top_k}. With top-k 1 the weight of the "
                "chosen expert is always 1, so the router could not learn."
            )
        if self.every < 1 or self.noise < 0 or self.aux_loss < 0 or not 0 <= self.drop < 1:
            raise UnmaskError("every must be at least 1, noise and aux-loss at least 0, and drop at least 0 and below 1.")
        if self.router_std <= 0:
            raise UnmaskError("router-std must be above 0: a router with zero weights sends all tokens to the same experts.")


@dataclass(frozen=True)
class Target:
    """A mixture-of-experts architecture of transformers, and the names in its configuration.

    like: the dense decoders that it reproduces. experts, width, every: the keys for the number of experts, for an expert's
    intermediate size, and for the step between sparse layers (None: all layers are sparse). settings: more keys. router: end of the
    name of the router's weight. silent: parts that dense models lack; they are set to zero, so they add nothing.
    """

    model_type: str
    like: str
    experts: str = "num_local_experts"
    width: str = "intermediate_size"
    every: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    router: str = ".gate.weight"
    silent: str | None = None


_QWEN: dict[str, Any] = {"experts": "num_experts", "width": "moe_intermediate_size", "every": "decoder_sparse_step"}
_NORMALISED: dict[str, Any] = {"norm_topk_prob": True}
# a shared expert needs at least one neuron
_ONE_SHARED: dict[str, Any] = {**_NORMALISED, "shared_expert_intermediate_size": 1}
TARGETS: tuple[Target, ...] = (
    Target("mixtral", "Llama, Mistral"),
    Target("qwen3_moe", "Qwen3", **_QWEN, settings={**_NORMALISED, "mlp_only_layers": []}),
    Target("qwen2_moe", "Qwen2", **_QWEN, settings={**_ONE_SHARED, "mlp_only_layers": []}, silent=".shared_expert"),
    Target("granitemoe", "Granite", router=".router.weight"),
    Target("flex_olmo", "OLMo 2", experts="num_experts", settings=_NORMALISED),
)


@dataclass(frozen=True)
class Upcycled:
    """A mixture, its architecture, how much the logits of plain copies differed from the dense model's, and its branches by name."""

    model: PreTrainedModel
    target: Target
    difference: float
    branches: tuple[str, ...] = ()


class _Unfit(Exception):
    """The reason why a target cannot hold a dense model."""


def upcycle(dense: PreTrainedModel, options: UpcycleOptions, branches: Sequence[Branch] = ()) -> Upcycled:
    """Make a mixture of experts from a dense causal language model, in its dtype and on its device. `dense` does not change.

    branches: trained copies of `dense`. Their MLPs become the experts, and their other weights are averaged; without branches, every
    expert is a copy of the MLP of `dense`. Raises UnmaskError for a model that is a mixture already, that has no language-model head,
    or that no row of TARGETS reproduces, and for two equal branches without noise.
    """
    if branches and len(branches) != options.experts:
        raise UnmaskError(f"{len(branches)} branches make {len(branches)} experts, not {options.experts}.")
    if find_routers(dense):
        raise UnmaskError(f"{type(dense).__name__} is already a mixture of experts. Upcycling needs a dense model.")
    if dense.get_output_embeddings() is None:
        raise UnmaskError(f"{type(dense).__name__} has no language-model head. Load it with AutoModelForCausalLM.")
    if options.every > (layers := dense.config.get_text_config().num_hidden_layers):
        raise UnmaskError(
            f"--every {options.every} makes no layer sparse: the model has {layers} layers. Use a smaller number."
        )
    unfit: list[str] = []
    unequal: list[str] = []
    dtype = dense.dtype
    with _in_float32(dense):
        for target in TARGETS:
            try:
                sparse = _build(dense, target, options)
            except _Unfit as reason:
                unfit.append(f"as {target.model_type}, {reason}")
                continue
            if (difference := prove_equal(dense, sparse)) < TOLERANCE:
                break
            unequal.append(f"as {target.model_type}, the logits differ by {difference:.2g} of the largest logit")
        else:
            known = ", ".join(f"{target.like} ({target.model_type})" for target in TARGETS)
            raise UnmaskError(
                f"{type(dense).__name__} cannot be upcycled: {'; '.join(unequal or unfit[:1])}. "
                f"Models of these families can be upcycled: {known}."
            )
        if branches:
            _branch_out(dense, sparse, target, options, branches)
    break_symmetry(sparse, options)
    for parameter in sparse.parameters():  # model.to() would also round the rotary frequencies
        parameter.data = parameter.data.to(dtype)
    sparse.config.dtype = dtype
    return Upcycled(sparse, target, difference, tuple(branch.name for branch in branches))


def _branch_out(
    dense: PreTrainedModel, sparse: PreTrainedModel, target: Target, options: UpcycleOptions, branches: Sequence[Branch]
) -> None:
    """Put branches in the place of the copies."""
    weights = dict(dense.named_parameters())
    plan = _plan(weights, {name: weight.shape for name, weight in sparse.named_parameters()}, target)
    if not (options.noise or options.drop):
        require_different(branches, [path for name, paths in plan.items() if is_expert(name) for path in paths])
    mix_branches(sparse, weights, branches, plan)


def prove_equal(dense: PreTrainedModel, sparse: PreTrainedModel) -> float:
    """Largest difference between the logits of two models, divided by the largest logit of `dense`. Infinite if a logit is not finite.

    It uses random tokens, without padding and with padding on either side. Attention windows are made small for this: the texts are
    short, and with large windows they would not show which layers have one.
    """
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(dense.config.get_text_config().vocab_size, (3, 24), generator=generator)
    real = torch.ones_like(ids)
    real[1, 17:], real[2, :9] = 0, 0
    ids, real = ids.to(dense.device), real.to(dense.device)
    positions = (real.cumsum(-1) - 1).clamp(0)
    logits = []
    for model in (dense, sparse):
        with torch.no_grad(), _narrow_windows(model, 5), _evaluating(model):
            padded = model(input_ids=ids, attention_mask=real, position_ids=positions, use_cache=False).logits
            logits.append(torch.cat([padded[real.bool()], model(input_ids=ids[:1], use_cache=False).logits[0]]).double())
    difference = float((logits[0] - logits[1]).abs().max() / logits[0].abs().max())
    return difference if difference == difference else float("inf")


def break_symmetry(sparse: nn.Module, options: UpcycleOptions) -> None:
    """Make the copies differ, in place. Dropped neurons get random weights with the same mean and deviation. Then noise is added."""
    generator = torch.Generator().manual_seed(
        options.seed + 1
    )  # not the routers' seed: noise and drop must not change the routers
    for experts in _experts(sparse):
        for gate_up, down in zip(experts.gate_up_proj.data, experts.down_proj.data, strict=True):
            gate, up = gate_up.chunk(2)
            _change(gate, up, down, options, generator)


def _change(gate: Tensor, up: Tensor, down: Tensor, options: UpcycleOptions, generator: torch.Generator) -> None:
    """Change one expert in place. The weights are views of the stacked parameters."""
    if count := round(options.drop * len(gate)):
        chosen = torch.randperm(len(gate), generator=generator)[:count].to(gate.device)
        for neurons in (gate, up, down.T):  # each row is a neuron
            old = neurons[chosen]
            neurons[chosen] = old.mean() + old.std() * _normal(old, generator)
    if options.noise:
        for weight in (gate, up, down):
            weight += options.noise * weight.std() * _normal(weight, generator)


def sizes(model: nn.Module, top_k: int) -> tuple[int, int]:
    """The number of all parameters, and of those that one token uses."""
    total = sum(parameter.numel() for parameter in model.parameters())
    idle = 0
    for experts in _experts(model):
        count = len(experts.gate_up_proj)
        idle += (count - top_k) * (experts.gate_up_proj[0].numel() + experts.down_proj[0].numel())
    return total, total - idle


def _build(dense: PreTrainedModel, target: Target, options: UpcycleOptions) -> PreTrainedModel:
    """The mixture with copied weights, in fp32. Raises _Unfit if it cannot hold all weights of the dense model, and no others."""
    from transformers import AutoModelForCausalLM

    weights = dict(dense.named_parameters())
    try:
        config = _config(dense.config, target, options)
        with torch.device("meta"):  # only shapes: experts take memory, and most targets do not fit
            shapes = {name: weight.shape for name, weight in AutoModelForCausalLM.from_config(config).named_parameters()}
    except _Unfit:
        raise
    except Exception as error:  # these settings are from another family, so anything may fail
        raise _Unfit(f"it cannot be built ({cause_of(error)})") from error
    plan = _plan(weights, shapes, target)
    attention = dense.config._attn_implementation
    sparse = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attention)
    generator = torch.Generator().manual_seed(options.seed)
    with torch.no_grad():
        for name, weight in sparse.named_parameters():
            if plan[name]:
                weight.copy_(torch.cat([weights[source] for source in plan[name]]))  # one MLP fills every expert
            elif name.endswith(target.router):
                weight.copy_(options.router_std * _normal(weight, generator))
            else:
                weight.zero_()
    sparse.generation_config = copy.deepcopy(dense.generation_config)
    return sparse.to(dense.device).train(dense.training)  # type: ignore[no-any-return]


def _config(dense: Any, target: Target, options: UpcycleOptions) -> Any:
    """The dense model's configuration, with the target's keys."""
    from transformers import AutoConfig

    given = dense.to_dict()
    known = set(AutoConfig.for_model(target.model_type).to_dict()) | {
        "head_dim"
    }  # all targets use it, but only some declare it
    known -= {"model_type", "architectures", "transformers_version", "_name_or_path", "quantization_config"}
    if options.every > 1 and target.every is None:
        raise _Unfit(f"every layer is sparse, so --every {options.every} is not possible")
    settings = {
        target.experts: options.experts,
        target.width: dense.intermediate_size if hasattr(dense, "intermediate_size") else None,
        "num_experts_per_tok": options.top_k,
        "router_aux_loss_coef": options.aux_loss,
        "output_router_logits": True,  # otherwise transformers leaves the load-balancing loss out
        **target.settings,
    }
    if settings[target.width] is None:
        raise _Unfit("its configuration has no intermediate_size")
    if target.every:
        settings[target.every] = options.every
    carried = {name: value for name, value in given.items() if name in known}
    config = AutoConfig.for_model(target.model_type, **{**carried, **settings})
    if hasattr(dense, "is_causal"):
        config.is_causal = dense.is_causal
    return config


def _plan(dense: dict[str, nn.Parameter], sparse: dict[str, torch.Size], target: Target) -> dict[str, tuple[str, ...]]:
    """The dense weights that fill each weight of the mixture (none for routers and silent parts). Raises _Unfit if one is missing."""
    plan: dict[str, tuple[str, ...]] = {}
    for name, shape in sparse.items():
        layer = name.rsplit(".", 3)[0]
        if name.endswith(_GATE_UP):
            plan[name] = (f"{layer}.mlp.gate_proj.weight", f"{layer}.mlp.up_proj.weight")
        elif name.endswith(_DOWN):
            plan[name] = (f"{layer}.mlp.down_proj.weight",)
        elif name.endswith(target.router) or (target.silent and target.silent in name):
            plan[name] = ()
            continue
        else:
            plan[name] = (name,)
        if lacking := [source for source in plan[name] if source not in dense]:
            raise _Unfit(f"it has no {lacking[0]}")
        filled = [sum(dense[source].shape[0] for source in plan[name]), *dense[plan[name][0]].shape[1:]]
        if filled != list(shape[-len(filled) :]):
            raise _Unfit(f"its {plan[name][0]} has another shape")
    if left := sorted(set(dense) - {source for sources in plan.values() for source in sources}):
        raise _Unfit(f"its {left[0]} has no place")
    return plan


def _experts(model: nn.Module) -> list[Any]:
    """The modules that hold the experts, one for each layer, stacked in 3-D parameters."""
    names = [name.removesuffix(_GATE_UP) + ".experts" for name, _ in model.named_parameters() if name.endswith(_GATE_UP)]
    return [model.get_submodule(name) for name in names]


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    """Standard normal numbers. They are drawn on the CPU, so they are the same on every device."""
    return torch.randn(like.shape, generator=generator).to(like.device)


@contextmanager
def _in_float32(model: PreTrainedModel) -> Iterator[None]:
    """Weights in fp32 inside the `with` block. Afterwards the model has its own tensors again."""
    before = [(parameter, parameter.data) for parameter in model.parameters()]
    try:
        for parameter, data in before:
            parameter.data = data.float()
        yield
    finally:
        for parameter, data in before:
            parameter.data = data


@contextmanager
def _narrow_windows(model: PreTrainedModel, size: int) -> Iterator[None]:
    before = {name: getattr(model.config, name, None) for name in _WINDOWS}
    try:
        for name, value in before.items():
            if value:
                setattr(model.config, name, size)
        yield
    finally:
        for name, value in before.items():
            if value:
                setattr(model.config, name, value)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = model.training
    try:
        model.eval()
        yield
    finally:
        model.train(training)
