"""Layers: how much does a text's vector change from layer to layer, and what does each layer score?

Pooling and Attention (arXiv 2409.02727, figures 1 and 2) finds that adjacent deep layers have nearly equal embeddings, that early ones
change much, and that scores are flat over a wide range of layers. All layers are read from one forward pass. States of a decoder share a
large common part, so the cosine of two layers is high whatever the text. Therefore the cosine of centred vectors is given too,
minus their layer's mean over the texts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from unmask.designs.design import Design
from unmask.encoding.cached_pass import CachedPass
from unmask.encoding.encoder import Encoder
from unmask.encoding.vector_cache import VectorCache
from unmask.errors import UnmaskError
from unmask.io.array_types import NDArray
from unmask.models.provenance import fingerprint_of
from unmask.probing.inputs import ProbeResult, design_vectors, row_cosines
from unmask.starter import reference_texts
from unmask.statistics.bootstrap import bootstrap, interval
from unmask.statistics.correlations import RESAMPLES
from unmask.statistics.intervals import Estimate
from unmask.tasks.task import Task

Stack = Float[NDArray[np.float64], "layer text dim"]
Square = Float[NDArray[np.float64], "layer layer"]


@dataclass(frozen=True)
class LayerScores:
    """The main score of each layer on a task, from layer 1, with 95 % intervals by bootstrap over items if the task has items.

    level: the best layer, and the layers that a paired bootstrap does not tell apart from it (not corrected for the number of layers).
    """

    task: str
    metric: str
    n: int
    scores: tuple[float, ...]
    intervals: tuple[tuple[float, float], ...] | None
    best: int
    level: tuple[int, ...]


@dataclass(frozen=True)
class Layers(ProbeResult):
    """The vectors of texts at layers 1..L.

    intrinsic: the intrinsic dimension of the texts' vectors at each layer (`intrinsic_dimension`). KV-Embedding (arXiv 2601.01046) reroutes
    the layers around its minimum.
    cosine, centred: the cosine of a text's vectors at two layers, mean over texts, plain and centred; next_cosine, next_centred: the same
    of each layer and the next, with 95 % intervals by bootstrap over texts.
    """

    design: str
    intrinsic: tuple[float, ...]
    cosine: tuple[tuple[float, ...], ...]
    centred: tuple[tuple[float, ...], ...]
    next_cosine: tuple[Estimate, ...]
    next_centred: tuple[Estimate, ...]
    scores: tuple[LayerScores, ...]
    texts: int
    data: str
    provenance: dict[str, Any]


def cosine_between_layers(stack: Stack) -> Square:
    """For every two layers, the cosine of a text's vectors, mean over texts. A vector of zeros has cosine 0."""
    lengths = np.linalg.norm(stack, axis=2, keepdims=True)
    flat = (stack / np.where(lengths > 0, lengths, 1.0)).reshape(len(stack), -1)
    return np.asarray(flat @ flat.T / stack.shape[1], np.float64)


def intrinsic_dimension(vectors: Float[NDArray[np.float64], "text dim"]) -> float:
    """The TwoNN estimate: texts over the sum of log(distance of the second neighbour / distance of the nearest); nan below three texts.

    Source: Facco et al., Scientific Reports 7, 2017, by maximum likelihood.
    """
    from sklearn.neighbors import NearestNeighbors

    if len(vectors) < 3:
        return float("nan")
    distances, _ = NearestNeighbors(n_neighbors=3).fit(vectors).kneighbors()
    ratios = np.log(distances[:, 1] / np.maximum(distances[:, 0], np.finfo(np.float64).tiny))
    return float(len(vectors) / ratios.sum())


def next_layers(stack: Stack, seed: int = 0) -> tuple[Estimate, ...]:
    """For layers 1..L-1, the mean cosine with the next layer, and its interval over texts."""
    values = row_cosines(stack[:-1], stack[1:])
    resamples = np.random.default_rng(seed).integers(values.shape[1], size=(RESAMPLES, values.shape[1]))
    return tuple(Estimate(float(row.mean()), interval(row[resamples].mean(axis=1))) for row in values)


def layer_designs(design: Design, depth: int) -> list[Design]:
    """The same design at layers 1..L. Raises UnmaskError for a design that already has a layer or needs more than hidden states."""
    if design.layer is not None or design.features != "hidden" or design.needs_head:
        raise UnmaskError(
            f"'{design.name}' cannot be read layer by layer. Give a design of hidden states with a plain pooling and without '@layer'."
        )
    design.require_one_prompt("Comparing layers")
    return [replace(design, layer=layer) for layer in range(1, depth + 1)]


def probe_layers(
    encoder: Encoder,
    design: Design,
    texts: Sequence[str],
    tasks: Sequence[Task] = (),
) -> Layers:
    """Compare the layers of a model under a design. Raises UnmaskError for fewer than two distinct texts."""
    texts = list(dict.fromkeys(texts))
    if len(texts) < 2:
        raise UnmaskError("Comparing layers needs at least 2 different texts.")
    designs = layer_designs(design, encoder.backbone.depth)
    vectors = design_vectors(encoder, designs, texts)
    stack = np.stack([vectors[layer_design] for layer_design in designs]).astype(np.float64)
    centred = stack - stack.mean(axis=1, keepdims=True)
    return Layers(
        design=design.name,
        intrinsic=tuple(map(intrinsic_dimension, stack)),
        cosine=tuple(tuple(row) for row in cosine_between_layers(stack).tolist()),
        centred=tuple(tuple(row) for row in cosine_between_layers(centred).tolist()),
        next_cosine=next_layers(stack),
        next_centred=next_layers(centred),
        scores=tuple(score_layers(encoder, designs, task) for task in tasks),
        texts=len(texts),
        data=fingerprint_of(texts),
        provenance=encoder.provenance | {"design": design.name, "max_length": encoder.max_length},
    )


def score_layers(encoder: Encoder, designs: Sequence[Design], task: Task) -> LayerScores:
    """Score designs of one attention and prompt on a task. Every text is computed once. Raises UnmaskError as scoring does."""
    from unmask.tasks.mteb.evaluator import evaluate

    fits = encoder.fit(designs, reference_texts())
    with tempfile.TemporaryDirectory() as folder:
        shared = CachedPass(encoder, fits, VectorCache(Path(folder)), "layers", f"layers on {task.name}")
        outcomes = [evaluate(task, design.name, partial(shared.get, design)) for design in designs]
    scores = [outcome.main_score for outcome in outcomes]
    best, items = int(np.argmax(scores)), [outcome.items for outcome in outcomes if outcome.items is not None]
    intervals, level = None, [best]
    if len(items) == len(scores) and items[0].n > 1:
        samples = [bootstrap(layer_items, RESAMPLES) for layer_items in items]
        if items[0].metric == "v-measure":  # resamples score higher than the items do: they are shifted to the score
            samples = [sample - sample.mean() + score for sample, score in zip(samples, scores, strict=True)]
        intervals = tuple(interval(sample) for sample in samples)
        level = [layer for layer, sample in enumerate(samples) if layer == best or interval(samples[best] - sample)[0] <= 0]
    return LayerScores(
        task=task.name,
        metric=outcomes[0].metric,
        n=items[0].n if items else shared.tally.texts,
        scores=tuple(scores),
        intervals=intervals,
        best=best + 1,
        level=tuple(layer + 1 for layer in level),
    )
