"""Sparse upcycling: turn a dense decoder into a mixture of experts with the same logits (Komatsuzaki et al. 2022).

Every expert starts as a copy of the layer's MLP, and the weights of the chosen experts sum to one, so the mixture's logits ARE the dense
model's, whatever its new router says. This is checked on the built model, in fp32, before noise is added. The name of the dense
architecture plays no role: each row of TARGETS is tried, and the first row that has a slot for every weight and gives equal logits is
used. A model that no row reproduces is refused.

Branches are copies of one base model that were each trained on other texts. In Branch-Train-MiX (Sukhbaatar et al. 2024, arXiv 2403.07816,
section 3.2) their MLPs replace the copies after this check. All other weights are averaged over the branches, as the base plus the mean
change, so weights that no branch changed stay bit-equal.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from unmask.errors import UnmaskError, cause_of
from unmask.io.files import atomic_folder, only_writer_of
from unmask.io.seals import seal
from unmask.models.decoder import body_of
from unmask.models.loading import HeadMissing, Source, dtype_name, load_base_language_model, load_decoder, places_of
from unmask.models.provenance import versions
from unmask.models.routers import find_routers

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


_RELATED = 0.5  # cosine of a branch's weights with its base's: 0 if trained apart, above 0.9 after fine-tuning
_ROUTER_STD, _AUX_LOSS = 0.02, 0.01
WeightSources = Mapping[str, Sequence[str]]
"""The dense weights that fill each weight of the mixture; none for routers."""


@dataclass(frozen=True)
class Branch:
    """A trained copy of the base model: the name of its expert, and its weights under the names of the base's."""

    name: str
    weights: dict[str, Tensor]


def load_branch(name: str, source: Source, dense: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Branch:
    """Load a branch of a dense language model. Raises UnmaskError if it has another tokenizer, or if it is not a branch of this model.

    An embedder is saved without the head that predicts tokens. If that head is not tied, the branch uses the base model's head.
    """
    base = dict(dense.named_parameters())
    try:
        model, branch_tokenizer = load_base_language_model(source)
        weights = dict(model.named_parameters())
    except HeadMissing:
        body, branch_tokenizer = load_decoder(source)
        prefix = next(path for path, module in dense.named_modules() if module is body_of(dense))
        weights = base | {f"{prefix}.{path}": weight for path, weight in body.named_parameters()}
    if branch_tokenizer.get_vocab() != tokenizer.get_vocab():
        raise UnmaskError(f"Branch '{name}' has another tokenizer than the base model, so its tokens mean something else.")
    for path in sorted(base.keys() | weights.keys()):
        first, second = base.get(path), weights.get(path)
        if first is None or second is None or first.shape != second.shape:
            raise UnmaskError(
                f"Branch '{name}' is another kind of model than the base: they differ in {path}. A branch is a copy of the base model "
                "that was trained further."
            )
    matrices = [path for path, weight in base.items() if weight.ndim > 1]  # norms are near 1 in every model
    sums = torch.zeros(3, dtype=torch.float64)
    for path in matrices:
        first, second = base[path].detach().float().flatten(), weights[path].detach().float().flatten()
        sums += torch.stack([first @ second, first @ first, second @ second]).double().cpu()
    if (cosine := float(sums[0] / (sums[1] * sums[2]).sqrt())) < _RELATED:
        raise UnmaskError(
            f"Branch '{name}' was not trained from this base model: the cosine of their weights is {cosine:.2f}. "
            f"Above {_RELATED} is allowed."
        )
    return Branch(name, {path: weight.detach() for path, weight in weights.items()})


@torch.no_grad()  # type: ignore[untyped-decorator]
def mix_branches(sparse: nn.Module, base: Mapping[str, Tensor], branches: Sequence[Branch], plan: WeightSources) -> None:
    """Give each expert of a mixture the MLP of its branch, and all other weights the mean over the branches, in place.

    plan: the dense weights behind each weight of the mixture. Routers, which have none, are not changed.
    """
    for name, weight in sparse.named_parameters():
        if plan[name] and _is_expert(name):
            for expert, branch in zip(weight, branches, strict=True):
                expert.copy_(torch.cat([branch.weights[path].float() for path in plan[name]]))
        elif plan[name]:
            (path,) = plan[name]
            start = base[path].float()
            weight.copy_(start + torch.stack([branch.weights[path].float() - start for branch in branches]).mean(dim=0))


def _is_expert(name: str) -> bool:
    return ".experts." in name


TOLERANCE = 1e-4  # of the largest logit, in fp32; thirty layers differ by about 1e-6
_GATE_UP, _DOWN = ".experts.gate_up_proj", ".experts.down_proj"
_WINDOWS = ("sliding_window", "attention_chunk_size")


@dataclass(frozen=True)
class UpcycleOptions:
    """How to make a mixture from a dense model. Raises UnmaskError for options that cannot work.

    experts: copies of each MLP, or branches. top_k: how many of them a token uses.
    noise: Gaussian noise on each expert's weights, as a share of their deviation. The default changes the model very little, but the
    router can learn from the first step. Without noise all copies are equal, and the router's gradient is exactly zero. Branches differ
    without it.
    """

    experts: int = 8
    top_k: int = 2
    noise: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse options that cannot work."""
        if not 2 <= self.top_k <= self.experts:
            raise UnmaskError(
                f"top-k must be between 2 and the number of experts ({self.experts}), not {self.top_k}. With top-k 1 the weight of the "
                "chosen expert is always 1, so the router could not learn."
            )
        if self.noise < 0:
            raise UnmaskError(f"noise must be at least 0, not {self.noise}.")


@dataclass(frozen=True)
class Target:
    """A mixture-of-experts architecture of transformers, and the names in its configuration.

    like: the dense decoders that it reproduces. experts, width: the keys for the number of experts and for an expert's intermediate
    size. settings: more keys. router: end of the name of the router's weight. silent: parts that dense models lack; they are set to zero,
    so they add nothing.
    """

    model_type: str
    like: str
    experts: str = "num_local_experts"
    width: str = "intermediate_size"
    settings: dict[str, Any] = field(default_factory=dict)
    router: str = ".gate.weight"
    silent: str | None = None


_QWEN: dict[str, Any] = {"experts": "num_experts", "width": "moe_intermediate_size"}
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
class UpcycledModel:
    """A mixture, its architecture, how much the logits of plain copies differed from the dense model's, and its branches by name."""

    model: PreTrainedModel
    target: Target
    difference: float
    branches: tuple[str, ...] = ()


class _DoesNotFit(Exception):
    """The reason why a target cannot hold a dense model."""


def upcycle(dense: PreTrainedModel, options: UpcycleOptions, branches: Sequence[Branch] = ()) -> UpcycledModel:
    """Make a mixture of experts from a dense causal language model, in its dtype and on its device. `dense` does not change.

    branches: trained copies of `dense`. Their MLPs become the experts, and their other weights are averaged; without branches, every
    expert is a copy of the MLP of `dense`. Raises UnmaskError for a model that is a mixture already, that has no language-model head,
    or that no row of TARGETS reproduces, and for two equal branches without noise.
    """
    if find_routers(dense):
        raise UnmaskError(f"{type(dense).__name__} is already a mixture of experts. Upcycling needs a dense model.")
    if dense.get_output_embeddings() is None:
        raise UnmaskError(f"{type(dense).__name__} has no language-model head. Load it with AutoModelForCausalLM.")
    original, dense = dense, copy.deepcopy(dense).float()
    reasons: list[str] = []
    for target in TARGETS:
        try:
            sparse = _build_sparse(dense, target, options)
        except _DoesNotFit as reason:
            reasons.append(f"as {target.model_type}, {reason}")
            continue
        if (difference := prove_equal(dense, sparse)) < TOLERANCE:
            break
        reasons.insert(0, f"as {target.model_type}, the logits differ by {difference:.2g} of the largest logit")
    else:
        supported = ", ".join(f"{target.like} ({target.model_type})" for target in TARGETS)
        raise UnmaskError(
            f"{type(dense).__name__} cannot be upcycled: {reasons[0]}. Models of these families can be upcycled: {supported}."
        )
    if branches:
        weights = dict(dense.named_parameters())
        plan = _weight_sources(weights, {name: weight.shape for name, weight in sparse.named_parameters()}, target)
        mlps = [path for name, paths in plan.items() if _is_expert(name) for path in paths]
        for first, second in combinations(branches, 2) if not options.noise else ():
            if all(torch.equal(first.weights[path], second.weights[path]) for path in mlps):
                raise UnmaskError(
                    f"Branches '{first.name}' and '{second.name}' have equal MLPs, so a router could not tell them apart. "
                    "Leave one out, or add noise."
                )
        mix_branches(sparse, weights, branches, plan)
    if options.noise:
        add_noise(sparse, options)
    for parameter in sparse.parameters():  # model.to() would also round the rotary frequencies
        parameter.data = parameter.data.to(original.dtype)
    sparse.config.dtype = original.dtype
    return UpcycledModel(sparse, target, difference, tuple(branch.name for branch in branches))


def prove_equal(dense: PreTrainedModel, sparse: PreTrainedModel) -> float:
    """Largest difference between the logits of two models, divided by the largest logit of `dense`. Infinite if a logit is not finite.

    It uses random tokens, without padding and with padding on either side. Attention windows are made small for this: the texts are
    short, and with large windows they would not show which layers have one.
    """
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(dense.config.get_text_config().vocab_size, (3, 24), generator=generator)
    attention_mask = torch.ones_like(ids)
    attention_mask[1, 17:], attention_mask[2, :9] = 0, 0
    ids, attention_mask = ids.to(dense.device), attention_mask.to(dense.device)
    positions = (attention_mask.cumsum(-1) - 1).clamp(0)
    logits = []
    for model in (dense, sparse):
        with torch.no_grad(), _narrow_windows(model, 5):
            padded = model(input_ids=ids, attention_mask=attention_mask, position_ids=positions, use_cache=False).logits
            logits.append(
                torch.cat([padded[attention_mask.bool()], model(input_ids=ids[:1], use_cache=False).logits[0]]).double()
            )
    difference = float((logits[0] - logits[1]).abs().max() / logits[0].abs().max())
    return difference if difference == difference else float("inf")


def add_noise(sparse: nn.Module, options: UpcycleOptions) -> None:
    """Add noise to each expert, in place."""
    generator = torch.Generator().manual_seed(options.seed + 1)  # not the routers' seed: noise must not change the routers
    for experts in _experts(sparse):
        for gate_up, down in zip(experts.gate_up_proj.data, experts.down_proj.data, strict=True):
            gate, up = gate_up.chunk(2)  # views of the stacked parameters
            for weight in (gate, up, down):
                weight += options.noise * weight.std() * _normal(weight, generator)


def sizes(model: nn.Module, top_k: int) -> tuple[int, int]:
    """The number of parameters, and of the parameters that one token uses."""
    total = sum(parameter.numel() for parameter in model.parameters())
    idle = 0
    for experts in _experts(model):
        count = len(experts.gate_up_proj)
        idle += (count - top_k) * (experts.gate_up_proj[0].numel() + experts.down_proj[0].numel())
    return total, total - idle


def _build_sparse(dense: PreTrainedModel, target: Target, options: UpcycleOptions) -> PreTrainedModel:
    """The mixture with copied weights, in fp32. Raises _DoesNotFit if it cannot hold all weights of the dense model, and no others."""
    from transformers import AutoModelForCausalLM

    weights = dict(dense.named_parameters())
    try:
        config = _sparse_config(dense.config, target, options)
        with torch.device("meta"):  # only shapes: experts take memory, and most targets do not fit
            shapes = {name: weight.shape for name, weight in AutoModelForCausalLM.from_config(config).named_parameters()}
    except _DoesNotFit:
        raise
    except Exception as error:  # these settings are from another family, so anything may fail
        raise _DoesNotFit(f"it cannot be built ({cause_of(error)})") from error
    plan = _weight_sources(weights, shapes, target)
    attention = dense.config._attn_implementation
    sparse = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attention)
    generator = torch.Generator().manual_seed(options.seed)
    with torch.no_grad():
        for name, weight in sparse.named_parameters():
            if plan[name]:
                weight.copy_(torch.cat([weights[source] for source in plan[name]]))  # one MLP fills every expert
            elif name.endswith(target.router):
                weight.copy_(_ROUTER_STD * _normal(weight, generator))
            else:
                weight.zero_()
    sparse.generation_config = copy.deepcopy(dense.generation_config)
    return sparse.to(dense.device).train(dense.training)  # type: ignore[no-any-return]


def _sparse_config(dense: Any, target: Target, options: UpcycleOptions) -> Any:
    """The dense model's configuration, with the target's keys."""
    from transformers import AutoConfig

    if not hasattr(dense, "intermediate_size"):
        raise _DoesNotFit("its configuration has no intermediate_size")
    # all targets use head_dim, but only some declare it
    allowed = {*AutoConfig.for_model(target.model_type).to_dict(), "head_dim"}
    allowed -= {"model_type", "architectures", "transformers_version", "_name_or_path", "quantization_config"}
    settings = {
        target.experts: options.experts,
        target.width: dense.intermediate_size,
        "num_experts_per_tok": options.top_k,
        "router_aux_loss_coef": _AUX_LOSS,
        "output_router_logits": True,  # otherwise transformers leaves the load-balancing loss out
        **target.settings,
    }
    carried = {name: value for name, value in dense.to_dict().items() if name in allowed}
    config = AutoConfig.for_model(target.model_type, **{**carried, **settings})
    if hasattr(dense, "is_causal"):
        config.is_causal = dense.is_causal
    return config


def _weight_sources(
    dense: dict[str, nn.Parameter], sparse: dict[str, torch.Size], target: Target
) -> dict[str, tuple[str, ...]]:
    """The dense weights that fill each weight of the mixture (none for routers and silent parts). Raises _DoesNotFit if one is missing."""
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
            raise _DoesNotFit(f"it has no {lacking[0]}")
        filled = [sum(dense[source].shape[0] for source in plan[name]), *dense[plan[name][0]].shape[1:]]
        if filled != list(shape[-len(filled) :]):
            raise _DoesNotFit(f"its {plan[name][0]} has another shape")
    if unused := sorted(set(dense) - {source for sources in plan.values() for source in sources}):
        raise _DoesNotFit(f"its {unused[0]} has no place")
    return plan


def _experts(model: nn.Module) -> list[Any]:
    """The modules that hold the experts, one for each layer, stacked in 3-D parameters."""
    names = [name.removesuffix(_GATE_UP) + ".experts" for name, _ in model.named_parameters() if name.endswith(_GATE_UP)]
    return [model.get_submodule(name) for name in names]


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    """Standard normal numbers. They are drawn on the CPU, so they are the same on every device."""
    return torch.randn(like.shape, generator=generator).to(like.device)


@contextmanager
def _narrow_windows(model: PreTrainedModel, size: int) -> Iterator[None]:
    """Evaluation with small attention windows inside the `with` block."""
    before = {name: value for name in _WINDOWS if (value := getattr(model.config, name, None))}
    training = model.training
    try:
        model.eval()
        model.config.update(dict.fromkeys(before, size))
        yield
    finally:
        model.train(training)
        model.config.update(before)


def upcycle_to_folder(
    source: Source,
    branches: Mapping[str, str],
    folder: Path,
    *,
    experts: int | None = None,
    top_k: int = 2,
    seed: int = 0,
) -> dict[str, Any]:
    """Upcycle a model to a new folder; returns sizes and the proof of equality as JSON.

    branches: trained copies by name, whose MLPs become the experts. experts: default 8 copies. Copies get noise, branches
    get none.
    """
    if len(branches) == 1:
        raise UnmaskError("One branch makes one expert, but a mixture needs two or more: repeat --branch NAME=MODEL.")
    if branches and experts not in (None, len(branches)):
        raise UnmaskError(f"{len(branches)} branches make {len(branches)} experts: leave --experts out.")
    noise = 0.0 if branches else UpcycleOptions.noise
    settings = UpcycleOptions(len(branches) or experts or 8, top_k, noise, seed)
    _require_free(folder)
    # the revision is the model's
    sources = {name: replace(source, model=model, revision=None) for name, model in branches.items()}
    for branch in sources.values():  # a wrong path is reported before anything is loaded
        places_of(branch)
    with only_writer_of(folder):
        dense, tokenizer = load_base_language_model(source)
        dense_parameters = sum(parameter.numel() for parameter in dense.parameters())
        loaded = [load_branch(name, branch, dense, tokenizer) for name, branch in sources.items()]
        result = upcycle(dense, settings, loaded)
        save_upcycled(result, tokenizer, folder, source.model, settings)
    total, active = sizes(result.model, settings.top_k)
    return {
        "folder": str(folder),
        "architecture": result.target.model_type,
        "dtype": dtype_name(result.model),
        "dense_parameters": dense_parameters,
        "parameters": total,
        "active_parameters": active,
        "difference": result.difference,
        "branches": result.branches,
    }


def save_upcycled(
    upcycled: UpcycledModel, tokenizer: PreTrainedTokenizerBase, folder: Path, source: str, options: UpcycleOptions
) -> None:
    """Write the mixture, its tokenizer and a model card to a new folder, all or nothing. Raises UnmaskError if the folder exists."""
    _require_free(folder)
    with atomic_folder(folder) as scratch:
        upcycled.model.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        (scratch / "README.md").write_text(_card(upcycled, source, options), encoding="utf-8")
        seal(scratch)


def _require_free(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UnmaskError(f"'{folder}' exists and is not empty. It is not overwritten: choose another folder.")


def _card(upcycled: UpcycledModel, source: str, options: UpcycleOptions) -> str:
    total, active = sizes(upcycled.model, options.top_k)
    base = Path(source).name
    settings = "\n".join(
        f"- {name}: {value}" for name, value in {**asdict(options), "architecture": upcycled.target.model_type}.items()
    )
    used = ", ".join(f"{name} {version}" for name, version in versions().items() if name in ("unmask", "torch", "transformers"))
    if upcycled.branches:
        experts = "\n".join(f"- expert {number}: {name}" for number, name in enumerate(upcycled.branches))
        origin = (
            f"A mixture of experts, made by Branch-Train-MiX (arXiv 2403.07816). Its experts are the MLPs of branches of `{base}`:\n\n"
            f"{experts}\n\n"
            "All other weights are means over the branches. The routers have NOT been trained: they are random. Train them before use."
        )
    else:
        origin = (
            f"A mixture of experts, made by sparse upcycling (arXiv 2212.05055). Its experts are copies of the MLPs of `{base}`.\n"
            "It has NOT been trained: its routers are random and its experts almost equal. Train it before use."
        )
    return f"""---
base_model: {base if Path(source).exists() else source}
tags: [upcycled, mixture-of-experts]
---
# {base}, upcycled to {options.experts} experts

{origin}

{total:,} parameters. A token uses {active:,} of them.
With plain copies as experts, the logits differed from the dense model's by at most {upcycled.difference:.2g} of the largest logit
(in fp32, with and without padding).

{settings}

Made with {used}.
"""
