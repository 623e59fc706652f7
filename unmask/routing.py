"""Routing weights: what the routers of a mixture-of-experts model say about each token.

transformers declares, for every family, which module produces `router_logits` and at which place of its output
(`_can_record_outputs`). Reading that declaration is architecture-independent and gives exactly what
`output_router_logits=True` gives. Shared experts and dense layers have no router and so never appear.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from unmask.errors import UnmaskError


@dataclass(frozen=True)
class Router:
    """One router of a model: the module, and where its output holds the scores of all experts."""

    module: nn.Module
    index: int

    def scores(self, output: Tensor | tuple[Tensor, ...]) -> Float[Tensor, "row expert"]:
        """Scores of all experts, before any selection, one row a token."""
        scores = output[self.index] if isinstance(output, tuple) else output
        return scores.reshape(-1, scores.shape[-1])

    def chosen(self, output: Tensor | tuple[Tensor, ...]) -> Float[Tensor, "row expert"]:
        """The weights that the model itself applies: zero outside the chosen experts. Raises UnmaskError if not exposed."""
        scores = self.scores(output)
        others = [part for at, part in enumerate(output) if at != self.index] if isinstance(output, tuple) else []
        indices = next((part for part in others if not part.is_floating_point()), None)
        weights = next((part for part in others if part.is_floating_point()), None)
        if weights is None or (indices is None and weights.numel() != scores.numel()):
            name = type(self.module).__name__
            raise UnmaskError(f"{name} does not expose the weights of its chosen experts; use softmax, logits or sigmoid.")
        if indices is None:
            return weights.reshape(scores.shape).float()
        indices = indices.reshape(len(scores), -1)
        return torch.zeros_like(scores, dtype=torch.float32).scatter(1, indices, weights.reshape(indices.shape).float())


RoutingRead = Callable[[Router, "Tensor | tuple[Tensor, ...]"], Tensor]


def softmax(router: Router, output: Tensor | tuple[Tensor, ...]) -> Tensor:
    """Softmax over ALL experts in fp32, before any top-k (MoEE, section 3). Scores that are probabilities already stay."""
    scores = router.scores(output).float()
    return scores if _are_probabilities(scores) else scores.softmax(dim=-1)


def logits(router: Router, output: Tensor | tuple[Tensor, ...]) -> Tensor:
    """The router's scores as they are."""
    return router.scores(output).float()


def sigmoid(router: Router, output: Tensor | tuple[Tensor, ...]) -> Tensor:
    """Each expert's score on its own, as DeepSeek-V3 and GLM-4 gate; their selection bias is left out."""
    return router.scores(output).float().sigmoid()


def topk(router: Router, output: Tensor | tuple[Tensor, ...]) -> Tensor:
    """The weights that the model applies, zero for experts that were not chosen."""
    return router.chosen(output)


ROUTINGS: dict[str, RoutingRead] = {"softmax": softmax, "logits": logits, "sigmoid": sigmoid, "topk": topk}


def find_routers(model: nn.Module) -> list[Router]:
    """The routers of a model, in the order of its layers; empty for a dense model."""
    declared: dict[type, int] = {}
    for module in model.modules():
        recorder = (getattr(module, "_can_record_outputs", None) or {}).get("router_logits")
        for one in recorder if isinstance(recorder, list) else [recorder]:
            if one is not None:
                declared[getattr(one, "target_class", one)] = getattr(one, "index", 0)
    return [Router(module, declared[type(module)]) for module in model.modules() if type(module) in declared]


def _are_probabilities(scores: Tensor) -> bool:
    """Gemma 4's router returns probabilities where the others return logits; a second softmax would flatten them."""
    return bool((scores >= 0).all() and ((scores.sum(dim=-1) - 1).abs() < 1e-3).all())
