"""The teacher of the stage `distill`: a sentence-transformers model, or a decoder under a design."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import torch
from torch import Tensor

from unmask.designs.design import Design
from unmask.encoding.tokenization import MAX_LENGTH
from unmask.errors import UnmaskError
from unmask.io.unicode import without_surrogates
from unmask.models.source import is_trusted
from unmask.training.data import DataSet

Teacher = Callable[[list[str]], Tensor]
"""Takes texts and gives their vectors, float32 of shape (text, dim)."""

FIT_TEXTS = 1000
"""Texts of the training data that a design is fitted on."""


def load_decoder_teacher(
    name: str, design: str, sets: Sequence[DataSet], seed: int, *, dtype: str, device: torch.device, max_length: int
) -> Teacher:
    """A decoder that is ready to teach. A design that needs a fit is fitted on texts of the training data, drawn by the seed.

    max_length: most tokens of a text in training. The longer prompts of a teacher have room for more. Raises UnmaskError if the model
    cannot be loaded, or cannot serve the design.
    """
    from unmask.embedder import Embedder

    room = max(MAX_LENGTH, max_length)
    try:
        embedder = Embedder.from_pretrained(
            name,
            Design.parse(design),
            dtype=dtype,
            device=str(device),
            max_length=room,
            trust_remote_code=is_trusted(name),
        )
    except UnmaskError as error:
        raise UnmaskError(
            f"The teacher '{name}' cannot be read under the teacher_design '{design}'. If it is a sentence-transformers model, set "
            f'teacher_design = "". The reason: {error}'
        ) from error
    if embedder.design.needs_fit:
        embedder.fit(_sample(sets, seed))
    fits = {embedder.design: embedder.fitted}

    def vectors(texts: list[str]) -> Tensor:  # without the bars and warnings of `encode`, for each batch
        return torch.as_tensor(embedder.encoder.encode(texts, fits, share_text=False)[embedder.design]).to(device)

    return vectors


def load_sentence_transformer(name: str, device: torch.device) -> Teacher:
    """A sentence-transformers model that is ready to teach. Raises UnmaskError if it cannot be loaded."""
    from unmask.evaluation.reference_rows import load_reference

    model = load_reference(name, device)  # its code runs if UNMASK_TRUST_CODE_OF lists it: a recipe cannot say so itself

    def vectors(texts: list[str]) -> Tensor:
        readable = [without_surrogates(text) for text in texts]
        encoded: Tensor = model.encode(readable, convert_to_tensor=True, show_progress_bar=False)
        return encoded.float().clone()  # what inference mode returns cannot take part in a backward pass

    return vectors


def _sample(sets: Sequence[DataSet], seed: int) -> list[str]:
    texts = list(dict.fromkeys(text for data in sets for example in data.examples for text in example.texts))
    return Random(seed).sample(texts, min(FIT_TEXTS, len(texts)))
