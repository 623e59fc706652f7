"""The anchor: the first layer whose states tell the domains apart about as well as those of the best layer. It decides for all above it.

For each layer, the mean state of a lesson is standardised and given to the nearest domain mean (by cosine). Without standardising, the few
dimensions with huge values in middle layers (arXiv 2402.17762) would decide alone. Mean, deviation and domain means come from one half of
the lessons to learn, the accuracy from the other half. Held-out lessons are not looked at.

Few layers are left above a late anchor. So of all layers within one standard error of the best accuracy, the first is taken (the rule of
Breiman et al., 1984).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from unmask.designs.design import Design
from unmask.encoding.backbone import Backbone
from unmask.encoding.encoder import Encoder
from unmask.encoding.features import Fit
from unmask.io.array_types import NDArray
from unmask.models.decoder import body_of, find_layers
from unmask.models.source import Source

if TYPE_CHECKING:
    from unmask.studies.routers.lesson_sets import Lessons


@dataclass(frozen=True)
class Anchor:
    """The chosen layer (its input is read), and the accuracy of every layer, from layer 1 on."""

    layer: int
    accuracies: tuple[float, ...]

    def as_json(self) -> dict[str, Any]:
        """For a record."""
        return asdict(self)


def find_anchor(model: Any, tokenizer: Any, domains: Lessons, max_length: int) -> Anchor:
    """The first layer that tells the domains of these lessons apart about as well as the best one. model: a base model, without experts."""
    body = body_of(model)
    encoder = Encoder(Backbone(body, "causal"), tokenizer, Source(""), max_length)
    designs = [Design("causal", "plain", "mean", layer) for layer in range(1, len(find_layers(body)))]
    texts = [lesson.prompt + lesson.output for lessons in domains.values() for lesson in lessons]
    labels = np.repeat(np.arange(len(domains)), [len(lessons) for lessons in domains.values()])
    places = np.concatenate([np.arange(len(lessons)) for lessons in domains.values()])
    vectors = encoder.encode(texts, {design: Fit() for design in designs})
    accuracies = [prototype_accuracy(vectors[design], labels, places % 2 == 0) for design in designs]
    best, tested = max(accuracies), int((places % 2 == 1).sum())
    error = float(np.sqrt(best * (1 - best) / tested))
    return Anchor(1 + int(np.argmax(np.array(accuracies) >= best - error)), tuple(accuracies))


def prototype_accuracy(
    vectors: Float[NDArray[Any], "text dim"], labels: Int[NDArray[Any], " text"], known: Sequence[bool] | NDArray[np.bool_]
) -> float:
    """The share of the other texts whose nearest domain mean, of the known texts, is that of their own domain. Vectors are standardised."""
    known = np.asarray(known)
    standardised = (vectors - vectors[known].mean(axis=0)) / vectors[known].std(axis=0).clip(1e-6)
    means = np.stack([standardised[known & (labels == label)].mean(axis=0) for label in np.unique(labels)])
    scaled = means / np.linalg.norm(means, axis=1, keepdims=True).clip(1e-12)
    return float((np.argmax(standardised[~known] @ scaled.T, axis=1) == labels[~known]).mean())
