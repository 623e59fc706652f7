"""Distillation: a decoder learns which texts are near each other from another embedder, its teacher.

The teacher is a sentence-transformers model, or a decoder under a design.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

import torch
from pydantic import Field, model_validator
from torch import Tensor

from unmask.designs.design import Design
from unmask.embedder import Embedder
from unmask.encoding.tokenization import MAX_LENGTH
from unmask.errors import UnmaskError
from unmask.io.unicode import without_surrogates
from unmask.models.source import is_trusted
from unmask.training.data import DataSet, DataSource, read_texts_or_pairs
from unmask.training.stages.contrastive import PoolingOptions, PoolingStage, prepare_pooling
from unmask.training.stages.stage import PreparedStage, TeacherName, TrainableModel

SELF = "self"
FIT_TEXTS = 1000
"""Texts of the training data that a teacher's design is fitted on."""

Teacher = Callable[[list[str]], Tensor]
"""From texts to their vectors, float32 of shape (text, dim)."""


class DistillOptions(PoolingOptions):
    """Relational distillation: in each batch, the neighbours of a text are to be those that the teacher gives it.

    teacher: any sentence-transformers model: `minilm`, a folder (a saved embedder, too), or a hub id. It reads texts without the
    instructions of the data.
    teacher_design: with it, the teacher is any decoder under this design. Without it, or with an empty one, the teacher is a
    sentence-transformers model. A design such as `zscore` is fitted on up to 1 000 texts of the stage, drawn by the seed. The teacher
    `self` is the base model of the recipe, before any training.

    With cosines s of the student, t of the teacher, and temperature T, the loss of a batch is the mean over its texts i of

        KL(softmax_j(t[i, j] / T), softmax_j(s[i, j] / T)), over all other texts j.

    It compares cosines with cosines, so both may have any number of dimensions, and turning either's vectors changes nothing
    (relational knowledge distillation, arXiv 1904.05068; this loss, over a queue of images: SEED, arXiv 2101.04731). Multilingual
    distillation (arXiv 2004.09813) copies the vectors themselves, which needs equal dimensions or one more layer; TAS-B (arXiv
    2104.06967) copies margins of labelled triples; CRD (arXiv 1910.10699) contrasts with a memory of vectors.

    Why not the mean squared error of the cosines: nearly all pairs of a batch are far ones, and they decide it. A softmax gives near
    texts more weight, the more so the lower T is. It does not see if all cosines are larger than the teacher's by the same amount, and
    no ranking depends on that. In a pilot (docs/notes-on-results.md) T = 0.2 was best: for rankings of near texts better than the
    squared error, the sum of both, and T = 0.05, and for scores of pairs better or equal.
    """

    teacher: str = Field(default="minilm", min_length=1)
    teacher_design: str | None = None
    temperature: float = Field(default=0.2, gt=0)

    @model_validator(mode="after")
    def _check_teacher(self) -> DistillOptions:
        if self.teacher_design:
            Design.parse(self.teacher_design).require_dense("A teacher")
        elif self.teacher == SELF:
            raise ValueError("a model that teaches itself needs a teacher_design")
        return self

    def resolve_self(self, base: str) -> DistillOptions:
        """The options with the base model in place of the teacher `self`."""
        return self.model_copy(update={"teacher": base}) if self.teacher == SELF else self


class Distill(PoolingStage[DistillOptions]):
    """Texts, alone or in pairs: both texts of a pair are in the batch, so that it holds near texts as well as far ones."""

    name = "distill"
    options = DistillOptions

    def teacher(self, options: DistillOptions) -> TeacherName | None:
        """The model that texts are compared by."""
        design = options.teacher_design
        return TeacherName(options.teacher, Design.parse(design).name if design else None)

    def read(self, name: str, source: DataSource, root: Path, seed: int) -> DataSet:
        """Pairs or triples, or single texts where there is a text column."""
        return read_texts_or_pairs(name, source, root, seed)

    def prepare(self, options: DistillOptions, model: TrainableModel, sets: Sequence[DataSet], seed: int) -> PreparedStage:
        """Batches that each come from one data set, with the vectors of the teacher, which are computed batch by batch.

        The teacher is loaded when training begins, so a stage that is done does not need it. Loading it may raise UnmaskError.
        """
        from unmask.training.losses import NeighbourLoss

        embedder = model.embedder
        device, dtype = embedder.backbone.device, embedder.source.dtype
        if options.teacher_design and options.teacher == embedder.source.model:
            embedder.backbone.check(Design.parse(options.teacher_design))

        @cache
        def teacher() -> Teacher:
            if options.teacher_design:
                return decoder_teacher(options, sets, seed, dtype=dtype, device=device)
            return sentence_transformer_teacher(options.teacher, device)

        @contextmanager
        def with_teacher() -> Iterator[None]:
            teacher()  # before the first step, whose random numbers loading must not use up
            yield

        prepared = prepare_pooling(
            options,
            model,
            sets,
            seed,
            loss=lambda module: NeighbourLoss(module, options.temperature, options.cache_tokens),
            labels=lambda batch: batch["teacher"],
            teacher=lambda texts: teacher()(texts),
        )
        return replace(prepared, around=with_teacher)


def decoder_teacher(
    options: DistillOptions, sets: Sequence[DataSet], seed: int, *, dtype: str, device: torch.device
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
        return torch.as_tensor(embedder.encoder.encode(texts, fits)[embedder.design]).to(device)

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
