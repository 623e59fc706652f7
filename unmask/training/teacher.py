"""The teacher of the stage `distill`: a sentence-transformers model, or a decoder under a design."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import torch
from torch import Tensor

from unmask.designs.design import Design
from unmask.encoding.words import without_surrogates
from unmask.training.data import DataSet

Teacher = Callable[[list[str]], Tensor]
"""Takes texts and gives their vectors, float32 of shape (text, dim)."""

FIT_TEXTS = 1000
"""Texts of the training data that a design is fitted on."""


def load_teacher(name: str, design: str | None, sets: Sequence[DataSet], seed: int, device: torch.device) -> Teacher:
    """A teacher that is ready to teach. design: how a decoder makes vectors; None for a sentence-transformers model.

    A design that needs a fit is fitted on texts of the training data, drawn by the seed. Raises UnmaskError if the model cannot be loaded,
    or cannot serve the design.
    """
    if design is None:
        return _sentence_transformer(name, device)
    from unmask.embedder import Embedder

    embedder = Embedder.from_pretrained(name, Design.parse(design), device=str(device))
    if embedder.design.needs_fit:
        embedder.fit(_sample(sets, seed))
    return lambda texts: torch.as_tensor(embedder.encode(texts)).to(device)


def _sentence_transformer(name: str, device: torch.device) -> Teacher:
    from unmask.evaluation.reference_rows import load_reference

    model = load_reference(name, device)

    def vectors(texts: list[str]) -> Tensor:
        readable = [without_surrogates(text) for text in texts]
        found: Tensor = model.encode(readable, convert_to_tensor=True, show_progress_bar=False)
        return found.float().clone()  # what inference mode returns cannot take part in a backward pass

    return vectors


def _sample(sets: Sequence[DataSet], seed: int) -> list[str]:
    texts = list(dict.fromkeys(text for data in sets for example in data.examples for text in example.texts))
    return Random(seed).sample(texts, min(FIT_TEXTS, len(texts)))
