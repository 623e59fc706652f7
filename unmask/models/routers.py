"""Routers: finds the modules of a model that give tokens to experts, and what they output, on the loaded model.

transformers declares for each of its families which module produces `router_logits`, and at which place of its output
(`_can_record_outputs`). Reading that declaration works for every architecture, and gives exactly what `output_router_logits=True`
gives. Shared experts and dense layers have no router, so they never appear.

Code that comes with a model declares nothing. There, a router is a sibling of n equally shaped experts in a decoder layer, with a weight
that has a row for each expert. One pass checks what it returns. A module that does not behave like a router is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from unmask.errors import UnmaskError
from unmask.models.decoder import find_layers, vocabulary_of
from unmask.models.placement import main_device

if TYPE_CHECKING:
    from transformers import PreTrainedModel


_TEXTS, _TOKENS = 8, 8
_AGREE = 0.9  # share of tokens for which the product must rank the experts as the router does: in bf16 a few ranks change
_ROUNDING = 1e-2  # rounding error of a sum of 1 in bf16
Calls = dict[nn.Module, tuple[tuple[Any, ...], Any]]
"""Arguments and output of modules in one pass."""


def find_routers(model: PreTrainedModel) -> list[Router]:
    """The routers of a model, in the order of its layers; empty for a dense model."""
    declared: dict[type, int] = {}
    for module in model.modules():
        recorder = (getattr(module, "_can_record_outputs", None) or {}).get("router_logits")
        for target in recorder if isinstance(recorder, list) else [recorder]:
            if target is not None:
                declared[getattr(target, "target_class", target)] = getattr(target, "index", 0)
    routers = [Router(module, declared[type(module)]) for module in model.modules() if type(module) in declared]
    return routers or [
        Router(gate, weight=weight) for _, gate, weight in expert_blocks(model) if gate is not None and weight is not None
    ]


@torch.inference_mode()  # type: ignore[untyped-decorator]
def verify_routers(model: PreTrainedModel) -> list[Router]:
    """The routers of a model, checked by one pass. This is decided once: a score must not depend on the rest of a batch.

    Empty also if a module in the place of a router does not behave like one. `why_no_routers` gives the reason.
    """
    routers = find_routers(model)
    calls = _run_routers(model, routers) if routers else {}
    located = [_locate_scores(router, calls) for router in routers]
    working = [router for router in located if router is not None]
    if len(working) < len(located):
        return []
    tokens: dict[type, list[Tensor]] = {}
    expert_indices: dict[nn.Module, int] = {}
    for router in working:
        if router.module in calls:
            inputs, output = calls[router.module]
            output = router.add_scores(inputs, output)
            expert_indices[router.module] = router.index_of_experts(output)
            tokens.setdefault(type(router.module), []).append(_are_probabilities(router.scores(output).float()))
    # by class, as its `forward` decides; by majority, as rounding may move a token
    applied = {kind for kind, checks in tokens.items() if torch.cat(checks).float().mean() > 0.5}
    return [
        replace(router, probabilities=type(router.module) in applied, experts_index=expert_indices.get(router.module))
        for router in working
    ]


def why_no_routers(model: PreTrainedModel) -> str:
    """Why a model has no routing weights, as the end of a sentence."""
    names = {module: name for name, module in model.named_modules()}
    blocks = [names[block] for block, _, _ in expert_blocks(model)]
    if not blocks:
        return "has no router: it is dense"
    return (
        f"has experts ({blocks[0]}{' and others' if len(blocks) > 1 else ''}), but no router that can be read: transformers declares none, "
        "and no module next to the experts scores all of them"
    )


def expert_blocks(model: PreTrainedModel) -> Iterator[tuple[nn.Module, nn.Module | None, Tensor | None]]:
    """Modules of decoder layers that hold experts of one shape. With each, the one child that has a row of weights for every expert."""
    size = model.config.get_text_config(decoder=True).hidden_size
    for layer in find_layers(model):
        for block in layer.modules():
            if number := _experts_of(block, size):
                gates = [(child, weights[0]) for child in block.children() if len(weights := _rows(child, (number, size))) == 1]
                yield (block, *gates[0]) if len(gates) == 1 else (block, None, None)


def _experts_of(block: nn.Module, size: int) -> int:
    """The number of experts in a module: a list of equal modules, or a stack of matrices in a child. 0 if it has none."""
    for child in block.children():
        if isinstance(child, nn.ModuleList) and len(child) > 1:
            shapes = [(type(module), [tuple(weight.shape) for weight in module.parameters()]) for module in child]
            if shapes[0][1] and all(shape == shapes[0] for shape in shapes) and any(size in shape for shape in shapes[0][1]):
                return len(child)
        if type(child).__module__ != nn.Conv1d.__module__:
            stacks = {tuple(weight.shape) for weight in child.parameters(recurse=False) if weight.dim() == 3}
            if stacks and len({shape[0] for shape in stacks}) == 1 and all(size in shape[1:] for shape in stacks):
                return int(next(iter(stacks))[0])
    return 0


def _rows(module: nn.Module, shape: tuple[int, int]) -> list[Tensor]:
    return [weight for weight in module.parameters() if tuple(weight.shape) == shape]


def _run_routers(model: PreTrainedModel, routers: Sequence[Router]) -> Calls:
    """The arguments and the output of each router in a pass over a few tokens."""
    calls: Calls = {}

    def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        calls[module] = ((*args, *kwargs.values()), output)

    vocabulary = vocabulary_of(model)
    ids = (torch.arange(_TEXTS * _TOKENS, device=main_device(model)) * 7919 + 3) % vocabulary
    with ExitStack() as hooks:
        for router in routers:
            hooks.callback(router.module.register_forward_hook(keep, with_kwargs=True).remove)
        model(input_ids=ids.reshape(_TEXTS, _TOKENS), use_cache=False)
    return calls


def _locate_scores(router: Router, calls: Calls) -> Router | None:
    """A router with the index of its scores in its output. None if the module does not output router scores."""
    if router.weight is None:  # declared
        return router
    if router.module not in calls:
        return None
    inputs, output = calls[router.module]
    parts = list(output) if isinstance(output, tuple) else [output]
    product = router.add_scores(inputs, ())[0]
    floats = [index for index, part in enumerate(parts) if isinstance(part, Tensor) and part.is_floating_point()]
    full = [index for index in floats if parts[index].numel() == product.numel()]
    if len(full) == 1:
        return Router(router.module, full[0])
    selected = next((part for part in parts if isinstance(part, Tensor) and not part.is_floating_point()), None)
    if selected is None or selected.numel() % len(product) or not 0 < selected.numel() // len(product) < product.shape[1]:
        return None
    selected = selected.reshape(len(product), -1)
    best = product.topk(selected.shape[1], dim=-1).indices
    agreement = (best.sort(dim=-1).values == selected.sort(dim=-1).values).all(dim=-1)
    return router if agreement.float().mean() >= _AGREE else None


def _are_probabilities(scores: Tensor) -> Tensor:
    """For each token, whether its scores look like probabilities. Gemma 4's router returns those; others return logits."""
    return (scores >= 0).all(dim=-1) & ((scores.sum(dim=-1) - 1).abs() < _ROUNDING)


@dataclass(frozen=True)
class Router:
    """One router of a model.

    index: index of the scores over experts in the module's output. weight: set if the output does not hold them (DeepSeekMoE's gate
    returns the chosen experts only). The scores are then the product of the module's input with this weight, and `add_scores` adds them.
    probabilities: whether the scores are probabilities, after a softmax. experts_index: that of the numbers of the chosen experts in the
    output; -1 if it has none; None if that was not found out by a pass over many tokens: then each output decides.
    """

    module: nn.Module
    index: int = 0
    weight: Tensor | None = None
    probabilities: bool = False
    experts_index: int | None = None

    def add_scores(self, inputs: Iterable[Any], output: Any) -> Any:
        """The output of the module, with the scores of every expert added."""
        if self.weight is None:
            return output
        hidden = next(value for value in inputs if isinstance(value, Tensor))
        scores = nn.functional.linear(hidden.reshape(-1, hidden.shape[-1]).float(), self.weight.float())
        return (scores, *(output if isinstance(output, tuple) else (output,)))

    def scores(self, output: Tensor | tuple[Any, ...]) -> Float[Tensor, "row expert"]:
        """Scores of every expert, before top-k selection, with a row for each token."""
        scores = output[self.index] if isinstance(output, tuple) else output
        return scores.reshape(-1, scores.shape[-1])

    def applied_weights(self, output: Tensor | tuple[Any, ...]) -> Float[Tensor, "row expert"]:
        """The weights that the model itself applies: zero outside the chosen experts. Raises UnmaskError if it does not expose them."""
        scores = self.scores(output)
        if applied_gates := getattr(self.module, "applied_gates", None):  # a mixture of ours computes its gates itself
            return applied_gates(scores)  # type: ignore[no-any-return]
        other_outputs = self._others(output)
        index = self.index_of_experts(output) if self.experts_index is None else self.experts_index
        indices = other_outputs[index].reshape(scores.shape[0], -1).long() if index >= 0 else None
        size = -1 if indices is None else indices.numel()
        if all(
            part.is_floating_point() for part in other_outputs.values()
        ):  # no expert indices: these are the weights of every expert
            size = scores.numel()
        weights = next((part for part in other_outputs.values() if part.is_floating_point() and part.numel() == size), None)
        if weights is None:
            name = type(self.module).__name__
            raise UnmaskError(f"{name} does not expose the weights of its chosen experts; use softmax, logits or sigmoid.")
        if indices is None:
            return weights.reshape(scores.shape).float()
        return torch.zeros_like(scores, dtype=torch.float32).scatter(1, indices, weights.reshape(indices.shape).float())

    def index_of_experts(self, output: Tensor | tuple[Any, ...]) -> int:
        """The index in an output of the integers that can be the experts which each token chose; -1 if there are none."""
        scores = self.scores(output)
        parts = self._others(output).items()
        return next((index for index, part in parts if not part.is_floating_point() and _names_experts(part, scores)), -1)

    def _others(self, output: Tensor | tuple[Any, ...]) -> dict[int, Tensor]:
        """The tensors of the output other than the scores, by index."""
        parts = enumerate(output) if isinstance(output, tuple) else ()
        return {index: part for index, part in parts if index != self.index and isinstance(part, Tensor)}


def _names_experts(part: Tensor, scores: Tensor) -> bool:
    """Whether integers are numbers of experts, and none twice for a token.

    JetMoE's router returns as many integers, but they index a list of tokens. With few tokens, they could pass for experts.
    """
    if part.numel() == 0 or part.numel() % len(scores):
        return False
    ordered = part.reshape(len(scores), -1).long().sort(dim=1).values
    return bool((ordered >= 0).all() and (ordered < scores.shape[1]).all() and (ordered.diff(dim=1) > 0).all())


RoutingFunction = Callable[[Router, "Tensor | tuple[Any, ...]"], Tensor]


def softmax(router: Router, output: Tensor | tuple[Any, ...]) -> Tensor:
    """Softmax over ALL experts in fp32, before any top-k (MoEE, section 3). Scores that are probabilities already stay."""
    scores = router.scores(output).float()
    return scores if router.probabilities else scores.softmax(dim=-1)


def logits(router: Router, output: Tensor | tuple[Any, ...]) -> Tensor:
    """The router's raw scores."""
    return router.scores(output).float()


def sigmoid(router: Router, output: Tensor | tuple[Any, ...]) -> Tensor:
    """The sigmoid of each score, as DeepSeek-V3 and GLM-4 compute gates. Their selection bias is left out."""
    return router.scores(output).float().sigmoid()


def topk(router: Router, output: Tensor | tuple[Any, ...]) -> Tensor:
    """The weights that the model applies, zero for experts that were not chosen."""
    return router.applied_weights(output)


ROUTINGS: dict[str, RoutingFunction] = {"softmax": softmax, "logits": logits, "sigmoid": sigmoid, "topk": topk}
