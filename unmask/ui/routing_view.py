"""Routing view: which experts each token of a text goes to, at every routing point of a mixture of experts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from unmask.embedder import Embedder
from unmask.encoding.backbone import Backbone, RoutingRead
from unmask.encoding.batching import collate
from unmask.errors import UnmaskError
from unmask.models.routers import why_no_routers

MOST_TOKENS = 200
_TOP = 10


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
    tokenized = next(embedder.prompt.tokenize([text]))
    if len(tokenized.ids) > MOST_TOKENS:
        raise UnmaskError(f"The text has {len(tokenized.ids)} tokens with its prompt; this view shows at most {MOST_TOKENS}.")
    batch = collate([tokenized], embedder.prompt.pad_id)
    weights, applied = _weights(backbone, batch)
    choices = max(1, int((weights > 0).sum(axis=-1).max())) if applied else min(2, weights.shape[-1])
    order = np.argsort(-weights, axis=-1, kind="stable")[..., :choices]
    return Routes(
        tuple(str(embedder.tokenizer.decode([token], clean_up_tokenization_spaces=False)) for token in tokenized.ids),
        tokenized.start,
        _names(backbone, weights.shape[1]),
        order,
        np.take_along_axis(weights, order, axis=-1),
        applied,
        weights[tokenized.start :].mean(axis=0),
    )


def _weights(backbone: Backbone, batch: Any) -> tuple[Float[NDArray[np.float32], "token point expert"], bool]:
    """The weights that the model applies, if it exposes them; else the probabilities of all experts."""
    with suppress(UnmaskError):
        return _read(backbone, batch, "topk"), True
    return _read(backbone, batch, "softmax"), False


@torch.inference_mode()  # type: ignore[untyped-decorator]
def _read(backbone: Backbone, batch: Any, kind: str) -> Float[NDArray[np.float32], "token point expert"]:
    seen: list[Tensor] = []

    def keep(weights: Tensor, _: Tensor) -> Tensor:
        seen.append(weights[0].float().cpu())
        return weights[:, 0]

    backbone.read(batch, [RoutingRead(kind, keep)])
    return np.asarray(torch.stack(seen, dim=1).numpy(), np.float32)


def _names(backbone: Backbone, points: int) -> tuple[str, ...]:
    """The number of the layer of each routing point, with a second number where a layer has several."""
    inside = {module: number for number, layer in enumerate(backbone.layers, 1) for module in layer.modules()}
    layers = [inside.get(router.module) for router in backbone.routers]
    if len(layers) != points or None in layers:
        return tuple(str(place) for place in range(1, points + 1))
    seen: dict[int | None, int] = {}
    names = []
    for layer in layers:
        seen[layer] = seen.get(layer, 0) + 1
        names.append(f"{layer}" if layers.count(layer) == 1 else f"{layer}.{seen[layer]}")
    return tuple(names)


def _expert_names(backbone: Backbone) -> list[str]:
    """The names of the experts of a mixture of ours; empty for other models, whose experts have numbers only."""
    return [expert.name for expert in getattr(getattr(backbone.model, "mixture", None), "experts", [])]


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
