"""Teachers: other embedders, whose similarities of the texts a stage learns from, or by which it recognises false negatives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import TypeVar

import torch
from torch import Tensor

from unmask.designs.design import Design
from unmask.embedder import Embedder
from unmask.encoding.tokenization import MAX_LENGTH
from unmask.errors import UnmaskError
from unmask.io.unicode import without_surrogates
from unmask.models.source import is_trusted
from unmask.training.data import DataSet

Row = TypeVar("Row")

FIT_TEXTS = 1000
"""Texts of the training data that a teacher's design is fitted on."""

Encode = Callable[[list[str]], Tensor]
"""From texts to their vectors, float32 of shape (text, dim)."""


class Teacher:
    """The vectors of another embedder, which is loaded when they are first needed. Texts that recur are encoded once.

    batches: the texts of each batch of the schedule. A text is always encoded together with the texts that are new in its first batch:
    the last bits of a vector depend on what it is encoded with, and a resumed run has to see the same bits as an unbroken one.
    """

    def __init__(self, load: Callable[[], Encode], batches: Iterable[Sequence[str]]) -> None:
        self._load = load
        self._encode: Encode | None = None
        self._group: dict[str, list[str]] = {}
        self._recurring: set[str] = set()
        self._vectors: dict[str, Tensor] = {}
        for texts in batches:
            group = [text for text in dict.fromkeys(texts) if text not in self._group]
            self._recurring.update(text for text in texts if text in self._group)
            self._group |= dict.fromkeys(group, group)

    def load(self) -> Encode:
        """The encoder. Raises UnmaskError if it cannot be loaded."""
        if self._encode is None:
            self._encode = self._load()
        return self._encode

    def __call__(self, texts: list[str]) -> Tensor:
        """The vectors of texts of the schedule, shape (text, dim)."""
        vectors = {text: self._vectors[text] for text in texts if text in self._vectors}
        for text in texts:
            if text not in vectors:
                group = self._group[text]
                vectors.update(zip(group, self.load()(group).cpu(), strict=True))
        # without clones, a single text would keep the vectors of its whole group in memory
        self._vectors.update(
            {text: vector.clone() for text, vector in vectors.items() if text in self._recurring and text not in self._vectors}
        )
        return torch.stack([vectors[text] for text in texts])


@contextmanager
def loaded(teachers: Iterable[Teacher]) -> Iterator[None]:
    """Load teachers before the first step of training, whose random numbers loading must not use up. Raises UnmaskError."""
    for teacher in teachers:
        teacher.load()
    yield


def shares(rows: Sequence[Row], size: int) -> list[Sequence[Row]]:
    """A schedule in parts of this many rows, which a process computes at once."""
    return [rows[start : start + max(1, size)] for start in range(0, len(rows), max(1, size))]


def decoder_encoder(
    name: str, design: Design, sets: Sequence[DataSet], seed: int, *, max_length: int, dtype: str, device: torch.device
) -> Encode:
    """A decoder under a design. One that needs a fit is fitted on texts of the training data, sampled by the seed.

    Raises UnmaskError if the model cannot be loaded, or cannot serve the design.
    """
    try:
        embedder = Embedder.from_pretrained(
            name,
            design,
            dtype=dtype,
            device=str(device),
            max_length=max(MAX_LENGTH, max_length),  # the longer prompts of a teacher need more room
            trust_remote_code=is_trusted(name),
        )
    except UnmaskError as error:
        raise UnmaskError(
            f"The teacher '{name}' cannot be read under the teacher_design '{design.name}'. If it is a "
            f'sentence-transformers model, set teacher_design = "". The reason: {error}'
        ) from error
    if embedder.design.needs_fit:
        texts = list(dict.fromkeys(text for data in sets for example in data.examples for text in example.texts))
        embedder.fit(Random(seed).sample(texts, min(FIT_TEXTS, len(texts))))
    fits = {embedder.design: embedder.fitted}

    def vectors(texts: list[str]) -> Tensor:  # without the bars and warnings of `encode`, for each batch
        return torch.as_tensor(embedder.encoder.encode(texts, fits)[embedder.design])

    return vectors


def sentence_transformer_encoder(name: str, device: torch.device) -> Encode:
    """A sentence-transformers model, which may be a saved embedder. Raises UnmaskError if it cannot be loaded."""
    from unmask.evaluation.reference_models import load_sentence_transformer

    # its code runs if UNMASK_TRUST_CODE_OF lists it: a recipe cannot say so itself
    model = load_sentence_transformer(name, device)

    def vectors(texts: list[str]) -> Tensor:
        readable = [without_surrogates(text) for text in texts]
        encoded: Tensor = model.encode(readable, convert_to_tensor=True, show_progress_bar=False)
        return encoded.float().clone()  # what inference mode returns cannot take part in a backward pass

    return vectors
