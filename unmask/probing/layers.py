"""Layers: how much does a text's vector change from layer to layer, and how well does each layer serve a task?

Pooling and Attention (arXiv 2409.02727, figures 1 and 2) finds that adjacent deep layers have nearly equal embeddings while early ones
change much, and that scores are flat over a wide range of layers. All layers are read from one pass. States of a decoder share a
large common part, which makes the plain cosine of two layers high whatever they say of a text; so it stands beside the cosine of vectors
from which each layer's mean over the texts was taken.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from unmask.designs.design import Design
from unmask.encoding.batching import default_batch_tokens
from unmask.encoding.encode import fit_designs
from unmask.encoding.forward_pass import ForwardPass, SharedVectors
from unmask.encoding.loaded_model import LoadedModel, provenance
from unmask.encoding.vector_store import VectorStore
from unmask.errors import UnmaskError
from unmask.io.progress import progress_bar
from unmask.models.provenance import fingerprint_of
from unmask.probing.geometry import row_cosines
from unmask.probing.prompt_sensitivity import Estimate
from unmask.starter import reference_texts
from unmask.statistics.bootstrap import Items, bootstrap, interval
from unmask.statistics.correlations import RESAMPLES
from unmask.tasks.task import Task

if TYPE_CHECKING:
    from unmask.tasks.mteb.evaluator import Outcome

Stack = Float[NDArray[np.float64], "layer text dim"]
Square = Float[NDArray[np.float64], "layer layer"]


@dataclass(frozen=True)
class LayerScores:
    """Main score of each layer on a task, from layer 1 on, with 95 % intervals by bootstrap over items where the task has items.

    level: layers that the paired bootstrap does not tell from the best one, which is among them (not corrected for their number).
    """

    task: str
    metric: str
    n: int
    scores: tuple[float, ...]
    intervals: tuple[tuple[float, float], ...] | None
    best: int
    level: tuple[int, ...]


@dataclass(frozen=True)
class Layers:
    """How layers 1..L read texts. cosine, centred: means over texts of the cosine of a text's vectors in two layers, as they are and less
    each layer's mean; next_cosine, next_centred: of each layer and the next, with 95 % intervals by bootstrap over texts."""  # fmt: skip

    design: str
    cosine: tuple[tuple[float, ...], ...]
    centred: tuple[tuple[float, ...], ...]
    next_cosine: tuple[Estimate, ...]
    next_centred: tuple[Estimate, ...]
    scores: tuple[LayerScores, ...]
    texts: int
    data: str
    provenance: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """The result with everything that it depends on."""
        return asdict(self)


def cosine_between_layers(stack: Stack) -> Square:
    """Mean over texts of the cosine of each text's vectors in every two layers; a vector of zeros is like nothing."""
    lengths = np.linalg.norm(stack, axis=2, keepdims=True)
    flat = (stack / np.where(lengths > 0, lengths, 1.0)).reshape(len(stack), -1)
    return np.asarray(flat @ flat.T / stack.shape[1], np.float64)


def centre(stack: Stack) -> Stack:
    """Vectors less their layer's mean over the texts."""
    return np.asarray(stack - stack.mean(axis=1, keepdims=True), np.float64)


def next_layers(stack: Stack, seed: int = 0) -> tuple[Estimate, ...]:
    """Mean cosine of each layer with the next, and its interval over texts, for layers 1..L-1."""
    values = row_cosines(stack[:-1], stack[1:])
    drawn = np.random.default_rng(seed).integers(values.shape[1], size=(RESAMPLES, values.shape[1]))
    return tuple(Estimate(float(row.mean()), interval(row[drawn].mean(axis=1))) for row in values)


def layer_designs(design: Design, depth: int) -> list[Design]:
    """The same design at layers 1..L. Raises UnmaskError for one that has a layer already, or reads more than hidden states."""
    if design.layer is not None or design.features != "hidden" or design.needs_head:
        raise UnmaskError(f"'{design.name}' cannot be read layer by layer: give a pooling of hidden states without '@layer'.")
    return [replace(design, layer=layer) for layer in range(1, depth + 1)]


def probe_layers(
    model: LoadedModel,
    design: Design,
    texts: Sequence[str],
    tasks: Sequence[Task] = (),
    *,
    max_length: int | None = None,
    batch_tokens: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Layers:
    """Compare the layers of a model under a design. Raises UnmaskError for fewer than two distinct texts."""
    texts = list(dict.fromkeys(texts))
    if len(texts) < 2:
        raise UnmaskError("Layers are compared over two different texts or more.")
    designs = layer_designs(design, model.backbone.depth)
    vectors = model.encode(designs, texts, max_length=max_length, batch_tokens=batch_tokens, progress=progress)
    stack = np.stack([vectors[one] for one in designs]).astype(np.float64)
    centred = centre(stack)
    return Layers(
        design.name,
        tuple(tuple(row) for row in cosine_between_layers(stack).tolist()),
        tuple(tuple(row) for row in cosine_between_layers(centred).tolist()),
        next_layers(stack),
        next_layers(centred),
        tuple(score_layers(model, designs, task, max_length=max_length, batch_tokens=batch_tokens) for task in tasks),
        len(texts),
        fingerprint_of(texts),
        provenance(model.backbone, model.source) | {"design": design.name, "max_length": model.limit(max_length)},
    )


def score_layers(
    model: LoadedModel, designs: Sequence[Design], task: Task, *, max_length: int | None = None, batch_tokens: int | None = None
) -> LayerScores:
    """Score designs of one attention and prompt on a task, every text computed once. Raises UnmaskError as scoring does."""
    from unmask.tasks.mteb.evaluator import evaluate

    backbone = model.backbone
    prompt = model.prompt_tokenizer(designs[0].prompt, max_length)
    budget = batch_tokens or default_batch_tokens(backbone)
    fits = fit_designs(backbone, prompt, designs, reference_texts(), batch_tokens=budget)

    with tempfile.TemporaryDirectory() as folder:
        source = ForwardPass(backbone, prompt, fits, VectorStore(Path(folder)), "layers", budget)
        shared = SharedVectors(source, designs, lambda total: progress_bar(f"layers on {task.name}", total))

        def score(design: Design) -> Outcome:
            return evaluate(task, design.name, lambda texts, instruction: shared.get(design, texts, instruction))

        outcomes = [score(design) for design in designs]
    scores = [outcome.main_score for outcome in outcomes]
    best, items = int(np.argmax(scores)), [outcome.items for outcome in outcomes if outcome.items is not None]
    told = _intervals(items, scores) if len(items) == len(scores) and items[0].n > 1 else None
    return LayerScores(
        task.name,
        outcomes[0].metric,
        items[0].n if items else shared.tally.texts,
        tuple(scores),
        None if told is None else told[0],
        best + 1,
        (best + 1,) if told is None else told[1],
    )


def _intervals(items: Sequence[Items], scores: Sequence[float]) -> tuple[tuple[tuple[float, float], ...], tuple[int, ...]]:
    """Interval of every layer's score, and the layers (from 1) whose paired difference from the best may be 0."""
    # resamples of v-measure score higher than the items do: they are shifted to the score (see resampling.v_measure)
    samples = [bootstrap(one, RESAMPLES) for one in items]
    if items[0].metric == "v-measure":
        samples = [some - some.mean() + score for some, score in zip(samples, scores, strict=True)]
    best = int(np.argmax(scores))
    level = [layer + 1 for layer, some in enumerate(samples) if layer == best or interval(samples[best] - some)[0] <= 0]
    return tuple(interval(some) for some in samples), tuple(level)
