"""Routing view: which experts each token of a text goes to, at every routing point of a mixture of experts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from unmask.embedder import Embedder
from unmask.encoding.backbone import Backbone, RoutingRead, TokenBatch
from unmask.encoding.batching import collate
from unmask.errors import UnmaskError
from unmask.io.array_types import NDArray
from unmask.models.decoder import model_lock
from unmask.models.routers import expert_blocks, why_no_routers
from unmask.moe.mixture.gating import gates
from unmask.moe.mixture.model import MixtureModel

MOST_TOKENS = 200
_TOP = 10
Weights = Float[NDArray[np.float32], "token point expert"]


@dataclass(frozen=True)
class Routes:
    """The routing of one text.

    tokens: as text; start: the first one that is embedded. points: name of each routing point. experts: the chosen ones, best first;
    weights: that the model gives them. applied: whether these are what the model chose; if not, it does not say, and they are the two
    with the highest probability. mean: of each expert's weight, over the embedded tokens.
    """

    tokens: tuple[str, ...]
    start: int
    points: tuple[str, ...]
    experts: Int[NDArray[np.int64], "token point choice"]
    weights: Float[NDArray[np.float32], "token point choice"]
    applied: bool
    mean: Float[NDArray[np.float32], "point expert"]


def is_dense(backbone: Backbone) -> bool:
    """Whether a model has no experts at all, as opposed to experts whose router cannot be read."""
    return not backbone.routers and not any(expert_blocks(backbone.model))


def why_no_routing(backbone: Backbone) -> str | None:
    """Why a model has no routing to show, and what to do; None if it has."""
    if backbone.routers:
        return None
    return (
        f"This model {why_no_routers(backbone.model)}, so there is no routing to show. "
        "Load a mixture of experts, or make one with `unmask upcycle` or `unmask mix`."
    )


def routes(embedder: Embedder, text: str) -> Routes:
    """Route a text in its prompt. Raises UnmaskError for a dense model, and for a text with too many tokens."""
    backbone = embedder.backbone
    if missing := why_no_routing(backbone):
        raise UnmaskError(missing)
    embedder.design.require_one_prompt("The view of routing")
    tokenized = next(embedder.prompt.tokenize([text]))
    if len(tokenized.ids) > MOST_TOKENS:
        raise UnmaskError(f"The text has {len(tokenized.ids)} tokens with its prompt; this view shows at most {MOST_TOKENS}.")
    weights, points, applied = _weights(backbone, collate([tokenized], embedder.prompt.pad_id))
    choices = max(1, int((weights > 0).sum(axis=-1).max())) if applied else min(2, weights.shape[-1])
    order = np.argsort(-weights, axis=-1, kind="stable")[..., :choices]
    return Routes(
        tuple(str(embedder.tokenizer.decode([token], clean_up_tokenization_spaces=False)) for token in tokenized.ids),
        tokenized.start,
        _names(backbone, points),
        order,
        np.take_along_axis(weights, order, axis=-1),
        applied,
        weights[tokenized.start :].mean(axis=0),
    )


def _weights(backbone: Backbone, batch: TokenBatch) -> tuple[Weights, list[nn.Module], bool]:
    """The weights that the model applies, if it exposes them, else the probabilities of all experts; and the routing points.

    Of a mixture of ours, only its own experts: its base may be a mixture of experts, too.
    """
    mixture = _mixture(backbone)
    if mixture is not None:
        own = set(mixture.points.values())
        seen = [
            (module, gates(logits, mixture.routing)) for module, logits in _read(backbone, batch, "logits") if module in own
        ]
        return (*_stacked(seen), True)
    with suppress(UnmaskError):
        return (*_stacked(_read(backbone, batch, "topk")), True)
    return (*_stacked(_read(backbone, batch, "softmax")), False)


def _stacked(seen: Sequence[tuple[nn.Module, Tensor]]) -> tuple[Weights, list[nn.Module]]:
    weights = torch.stack([weights for _, weights in seen], dim=1)
    return np.asarray(weights.numpy(), np.float32), [module for module, _ in seen]


@torch.inference_mode()  # type: ignore[untyped-decorator]
def _read(backbone: Backbone, batch: TokenBatch, kind: str) -> list[tuple[nn.Module, Tensor]]:
    """Each routing point in the order of the pass, and what its router gives the tokens of the one text of a batch."""
    points: list[nn.Module] = []
    seen: list[Tensor] = []

    def keep(weights: Tensor, _: Tensor) -> Tensor:
        seen.append(weights[0].float().cpu())
        return weights[:, 0]

    with model_lock(backbone.model), ExitStack() as hooks:
        for router in backbone.routers:
            hooks.callback(router.module.register_forward_hook(lambda module, *_: points.append(module)).remove)
        backbone.read(batch, [RoutingRead(kind, keep)])
    return list(zip(points, seen, strict=True))


def _names(backbone: Backbone, points: Sequence[nn.Module]) -> tuple[str, ...]:
    """The number of the layer of each routing point, with a second number where a layer has several."""
    inside = {module: number for number, layer in enumerate(backbone.layers, 1) for module in layer.modules()}
    layers = [inside.get(point, 0) for point in points]
    return tuple(
        f"{layer}" if layers.count(layer) == 1 else f"{layer}.{layers[: place + 1].count(layer)}"
        for place, layer in enumerate(layers)
    )


def _mixture(backbone: Backbone) -> MixtureModel | None:
    """The mixture of ours that a model is, or None."""
    found = getattr(backbone.model, "mixture", None)
    return found if isinstance(found, MixtureModel) else None


def _expert_names(backbone: Backbone) -> list[str]:
    """The names of the experts of a mixture of ours; empty for other models, whose experts have numbers only."""
    mixture = _mixture(backbone)
    return [expert.name for expert in mixture.experts] if mixture else []


def as_json(backbone: Backbone, found: Sequence[tuple[Sequence[str], Routes]]) -> dict[str, Any]:
    """What the page shows: routes, each with the names of the designs that have them."""
    return {
        "expert_names": _expert_names(backbone),
        "routes": [
            {
                "names": list(names),
                "tokens": route.tokens,
                "start": route.start,
                "points": route.points,
                "number": route.mean.shape[1],
                "applied": route.applied,
                "experts": route.experts.tolist(),
                "weights": route.weights.astype(float).round(4).tolist(),
                "top": _most_used(route),
            }
            for names, route in found
        ],
    }


def _most_used(route: Routes) -> list[dict[str, Any]]:
    """The experts with the highest mean weight over the embedded tokens."""
    order = np.argsort(-route.mean, axis=None, kind="stable")[:_TOP]
    return [
        {
            "point": int(place // route.mean.shape[1]),
            "expert": int(place % route.mean.shape[1]),
            "weight": round(float(route.mean.flat[place]), 4),
        }
        for place in order
    ]
