"""Teachers: any sentence-transformers model, or a decoder under a design, whose vectors a stage learns from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from random import Random
from typing import Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from unmask.designs.design import Design
from unmask.embedder import Embedder
from unmask.encoding.tokenization import MAX_LENGTH
from unmask.errors import UnmaskError
from unmask.io.unicode import without_surrogates
from unmask.models.source import is_trusted
from unmask.training.data import DataSet
from unmask.training.stages.stage import PreparedStage, StageOptions, TeacherName, TrainableModel

SELF = "self"
FIT_TEXTS = 1000
"""Texts of the training data that a teacher's design is fitted on."""

Teacher = Callable[[list[str]], Tensor]
"""From texts to their vectors, float32 of shape (text, dim)."""


class TeacherOptions(StageOptions):
    """Which model teaches.

    teacher: any sentence-transformers model: `minilm`, a folder (a saved embedder, too), or a hub id. It reads texts without the
    instructions of the data.
    teacher_design: with it, the teacher is any decoder under this design. Without it, or with an empty one, the teacher is a
    sentence-transformers model. A design such as `zscore` is fitted on up to 1 000 texts of the stage, drawn by the seed. The teacher
    `self` is the base model of the recipe, before any training.
    """

    teacher: str = Field(default="minilm", min_length=1)
    teacher_design: str | None = None

    @model_validator(mode="after")
    def _check_teacher(self) -> Self:
        if self.teacher_design:
            Design.parse(self.teacher_design).require_dense("A teacher")
        elif self.teacher == SELF:
            raise ValueError("a model that teaches itself needs a teacher_design")
        return self

    def resolve_self(self, base: str) -> Self:
        """The options with the base model in place of the teacher `self`."""
        return self.model_copy(update={"teacher": base}) if self.teacher == SELF else self

    @property
    def teacher_name(self) -> TeacherName:
        """The teacher and its design, by its readable name."""
        return TeacherName(self.teacher, Design.parse(self.teacher_design).name if self.teacher_design else None)


def lazy_teacher(options: TeacherOptions, model: TrainableModel, sets: Sequence[DataSet], seed: int) -> Callable[[], Teacher]:
    """The teacher, which is loaded when it is first asked for: a stage that is done does not need it. Loading may raise UnmaskError."""
    embedder = model.embedder
    device, dtype = embedder.backbone.device, embedder.source.dtype
    if options.teacher_design and options.teacher == embedder.source.model:
        embedder.backbone.check(Design.parse(options.teacher_design))

    @cache
    def teacher() -> Teacher:
        if options.teacher_design:
            return decoder_teacher(options, sets, seed, dtype=dtype, device=device)
        return sentence_transformer_teacher(options.teacher, device)

    return teacher


def around_teacher(prepared: PreparedStage, teacher: Callable[[], Teacher]) -> PreparedStage:
    """The stage with its teacher loaded before the first step, whose random numbers loading must not use up."""

    @contextmanager
    def with_teacher() -> Iterator[None]:
        teacher()
        yield

    return replace(prepared, around=with_teacher)


def decoder_teacher(
    options: TeacherOptions, sets: Sequence[DataSet], seed: int, *, dtype: str, device: torch.device
) -> Teacher:
    """A decoder as a teacher. A design that needs a fit is fitted on texts of the training data, sampled by the seed.

    Raises UnmaskError if the model cannot be loaded, or cannot serve the design.
    """
    assert options.teacher_design is not None
    try:
        embedder = Embedder.from_pretrained(
            options.teacher,
            Design.parse(options.teacher_design),
            dtype=dtype,
            device=str(device),
            max_length=max(MAX_LENGTH, options.max_length),  # the longer prompts of a teacher need more room
            trust_remote_code=is_trusted(options.teacher),
        )
    except UnmaskError as error:
        raise UnmaskError(
            f"The teacher '{options.teacher}' cannot be read under the teacher_design '{options.teacher_design}'. If it is a "
            f'sentence-transformers model, set teacher_design = "". The reason: {error}'
        ) from error
    if embedder.design.needs_fit:
        texts = list(dict.fromkeys(text for data in sets for example in data.examples for text in example.texts))
        embedder.fit(Random(seed).sample(texts, min(FIT_TEXTS, len(texts))))
    fits = {embedder.design: embedder.fitted}

    def vectors(texts: list[str]) -> Tensor:  # without the bars and warnings of `encode`, for each batch
        return torch.as_tensor(embedder.encoder.encode(texts, fits, share_text=False)[embedder.design]).to(device)

    return vectors


def sentence_transformer_teacher(name: str, device: torch.device) -> Teacher:
    """A sentence-transformers model as a teacher. Raises UnmaskError if it cannot be loaded."""
    from unmask.evaluation.reference_models import load_sentence_transformer

    # its code runs if UNMASK_TRUST_CODE_OF lists it: a recipe cannot say so itself
    model = load_sentence_transformer(name, device)

    def vectors(texts: list[str]) -> Tensor:
        readable = [without_surrogates(text) for text in texts]
        encoded: Tensor = model.encode(readable, convert_to_tensor=True, show_progress_bar=False)
        return encoded.float().clone()  # what inference mode returns cannot take part in a backward pass

    return vectors
