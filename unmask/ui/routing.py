"""Routing view: the experts of each token of a text, at every routing point of a mixture of experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import nn

from unmask.designs.design import Attention
from unmask.designs.prompts import Prompts
from unmask.embedder import Embedder
from unmask.encoding.backbone import Backbone, TokenBatch
from unmask.encoding.batching import collate
from unmask.errors import UnmaskError
from unmask.io.array_types import NDArray
from unmask.models.routers import expert_blocks, why_no_routers
from unmask.moe.mixture.gating import gates
from unmask.moe.mixture.model import Mixture
from unmask.moe.routing.recording import read_routers
from unmask.ui.embedders import Embedders
from unmask.ui.worker import Stop

MAX_TOKENS = 200
_TOP_EXPERTS = 10
Weights = Float[NDArray[np.float32], "token point expert"]


@dataclass(frozen=True)
class Routes:
    """The routing of one text."""

    tokens: tuple[str, ...]
    start: int
    """Index of the first embedded token."""
    points: tuple[str, ...]
    """Layer of each routing point, with a second number if a layer has several."""
    experts: Int[NDArray[np.int64], "token point choice"]
    """Selected experts, best first."""
    weights: Float[NDArray[np.float32], "token point choice"]
    applied: bool
    """Whether the model selected these experts. If it does not expose its selection, they are the two most probable ones."""
    mean: Float[NDArray[np.float32], "point expert"]
    """Mean weight over the embedded tokens."""


def is_dense(backbone: Backbone) -> bool:
    """Whether a model has no experts, as opposed to experts whose router cannot be read."""
    return not backbone.routers and not any(expert_blocks(backbone.model))


def why_no_routing(backbone: Backbone) -> str | None:
    """Why there is no routing to show and what to do, or None."""
    if backbone.routers:
        return None
    return (
        f"This model {why_no_routers(backbone.model)}, so there is no routing to show. "
        "Load a mixture of experts, or make one with `unmask upcycle` or `unmask mix`."
    )


def routes(embedder: Embedder, text: str) -> Routes:
    """The routing of a text in its prompt. Raises UnmaskError for a dense model or a long text."""
    backbone = embedder.backbone
    if missing := why_no_routing(backbone):
        raise UnmaskError(missing)
    embedder.design.require_one_prompt("The view of routing")
    tokenized = next(embedder.prompt.tokenize([text]))
    if len(tokenized.ids) > MAX_TOKENS:
        raise UnmaskError(f"The text has {len(tokenized.ids)} tokens with its prompt; this view shows at most {MAX_TOKENS}.")
    weights, points, applied = _read_weights(backbone, collate([tokenized], embedder.prompt.pad_id))
    choices = max(1, int((weights > 0).sum(axis=-1).max())) if applied else min(2, weights.shape[-1])
    order = np.argsort(-weights, axis=-1, kind="stable")[..., :choices]
    layer_of = {module: number for number, layer in enumerate(backbone.layers, 1) for module in layer.modules()}
    layers = [layer_of.get(point, 0) for point in points]
    return Routes(
        tokens=tuple(embedder.tokenizer.decode([token], clean_up_tokenization_spaces=False) for token in tokenized.ids),
        start=tokenized.start,
        points=tuple(
            f"{layer}" if layers.count(layer) == 1 else f"{layer}.{layers[: index + 1].count(layer)}"
            for index, layer in enumerate(layers)
        ),
        experts=order,
        weights=np.take_along_axis(weights, order, axis=-1),
        applied=applied,
        mean=weights[tokenized.start :].mean(axis=0),
    )


def _read_weights(backbone: Backbone, batch: TokenBatch) -> tuple[Weights, list[nn.Module], bool]:
    """The weights that the model applies, if it exposes them, else the probabilities of all experts; and the routing points."""
    mixture = _mixture(backbone)
    if mixture is not None:
        points = set(mixture.points.values())  # the base may be a mixture of experts, too
        logits = [(module, logits) for module, logits in read_routers(backbone, batch, "logits") if module in points]
        outputs, applied = [(module, gates(values, mixture.routing)) for module, values in logits], True
    else:
        try:
            outputs, applied = read_routers(backbone, batch, "topk"), True
        except UnmaskError:
            outputs, applied = read_routers(backbone, batch, "softmax"), False
    weights = torch.stack([weights[0] for _, weights in outputs], dim=1)
    return np.asarray(weights.numpy(), np.float32), [module for module, _ in outputs], applied


def _mixture(backbone: Backbone) -> Mixture | None:
    mixture = getattr(backbone.model, "mixture", None)
    return mixture if isinstance(mixture, Mixture) else None


def routes_by_design(embedders: Embedders, names: Sequence[str], text: str, stop: Stop) -> dict[str, Any]:
    """The routes of a text, each with the names of the designs that share them, as JSON.

    Experts have names only in a mixture made by unmask.
    """
    groups: dict[tuple[Attention, Prompts], tuple[list[str], Routes]] = {}
    for name in dict.fromkeys(names):
        stop()
        embedder = embedders.embedder(name)
        key = embedder.design.attention, embedder.design.prompt  # routing depends on nothing else of a design
        if key not in groups:
            groups[key] = [], routes(embedder, text)
        groups[key][0].append(name)
    mixture = _mixture(embedders.base.backbone)
    return {
        "expert_names": [expert.name for expert in mixture.experts] if mixture else [],
        "routes": [
            {
                "names": names,
                "tokens": route.tokens,
                "start": route.start,
                "points": route.points,
                "number": route.mean.shape[1],
                "applied": route.applied,
                "experts": route.experts.tolist(),
                "weights": route.weights.astype(float).round(4).tolist(),
                "top": _most_used(route),
            }
            for names, route in groups.values()
        ],
    }


def _most_used(route: Routes) -> list[dict[str, Any]]:
    """The experts with the highest mean weight."""
    order = np.argsort(-route.mean, axis=None, kind="stable")[:_TOP_EXPERTS]
    return [
        {
            "point": int(index // route.mean.shape[1]),
            "expert": int(index % route.mean.shape[1]),
            "weight": round(float(route.mean.flat[index]), 4),
        }
        for index in order
    ]
