"""Routing weights: the scores that the routers of a mixture-of-experts model give to each token. `unmask.models.routers` finds routers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from unmask.errors import UnmaskError


@dataclass(frozen=True)
class Router:
    """One router of a model.

    index: the place of the scores of all experts in the module's output. weight: set if the output does not hold them (DeepSeekMoE's gate
    returns the chosen experts only). The scores are then the product of the module's input with this weight, and `completed` adds them.
    probabilities: whether the scores are probabilities, after a softmax. named_at: the place of the numbers of the chosen experts in the
    output; -1 if it has none; None if that was not found out by a pass over many tokens: then each output decides.
    """

    module: nn.Module
    index: int = 0
    weight: Tensor | None = None
    probabilities: bool = False
    named_at: int | None = None

    def completed(self, inputs: Iterable[Any], output: Any) -> Any:
        """The output of the module, with the scores of all experts in it."""
        if self.weight is None:
            return output
        hidden = next(value for value in inputs if isinstance(value, Tensor))
        scores = nn.functional.linear(hidden.reshape(-1, hidden.shape[-1]).float(), self.weight.float())
        return (scores, *(output if isinstance(output, tuple) else (output,)))

    def scores(self, output: Tensor | tuple[Any, ...]) -> Float[Tensor, "row expert"]:
        """Scores of all experts, before any selection, with a row for each token."""
        scores = output[self.index] if isinstance(output, tuple) else output
        return scores.reshape(-1, scores.shape[-1])

    def chosen(self, output: Tensor | tuple[Any, ...]) -> Float[Tensor, "row expert"]:
        """The weights that the model itself applies: zero outside the chosen experts. Raises UnmaskError if it does not expose them."""
        scores = self.scores(output)
        if own := getattr(self.module, "applied", None):  # a mixture of ours computes its gates itself
            return own(scores)  # type: ignore[no-any-return]
        others = self._others(output)
        at = self.place_of_experts(output) if self.named_at is None else self.named_at
        indices = others[at].reshape(scores.shape[0], -1).long() if at >= 0 else None
        size = -1 if indices is None else indices.numel()
        if all(part.is_floating_point() for part in others.values()):  # it numbers no experts, so it gives the weights of all
            size = scores.numel()
        weights = next((part for part in others.values() if part.is_floating_point() and part.numel() == size), None)
        if weights is None:
            name = type(self.module).__name__
            raise UnmaskError(f"{name} does not expose the weights of its chosen experts; use softmax, logits or sigmoid.")
        if indices is None:
            return weights.reshape(scores.shape).float()
        return torch.zeros_like(scores, dtype=torch.float32).scatter(1, indices, weights.reshape(indices.shape).float())

    def place_of_experts(self, output: Tensor | tuple[Any, ...]) -> int:
        """The place in an output of integers that can be the experts which each token chose; -1 if there are none."""
        scores = self.scores(output)
        parts = self._others(output).items()
        return next((at for at, part in parts if not part.is_floating_point() and _names_experts(part, scores)), -1)

    def _others(self, output: Tensor | tuple[Any, ...]) -> dict[int, Tensor]:
        """The tensors beside the scores, by their place."""
        parts = enumerate(output) if isinstance(output, tuple) else ()
        return {at: part for at, part in parts if at != self.index and isinstance(part, Tensor)}


def _names_experts(part: Tensor, scores: Tensor) -> bool:
    """Whether integers are numbers of experts, and none twice for a token.

    JetMoE's router returns as many integers, which are places in a list of all tokens. Of few tokens, they could be experts.
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
    """The router's scores as they are."""
    return router.scores(output).float()


def sigmoid(router: Router, output: Tensor | tuple[Any, ...]) -> Tensor:
    """The sigmoid of each score, as DeepSeek-V3 and GLM-4 compute gates. Their selection bias is left out."""
    return router.scores(output).float().sigmoid()


def topk(router: Router, output: Tensor | tuple[Any, ...]) -> Tensor:
    """The weights that the model applies, zero for experts that were not chosen."""
    return router.chosen(output)


ROUTINGS: dict[str, RoutingFunction] = {"softmax": softmax, "logits": logits, "sigmoid": sigmoid, "topk": topk}
