"""Distillation: a decoder learns which texts are near each other from another embedder, its teacher."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from unmask.designs.design import Design
from unmask.training.data import DataSet, DataSource, read_texts_or_pairs
from unmask.training.stages.contrastive import PoolingOptions, PoolingStage, prepare_pooling
from unmask.training.stages.stage import PreparedStage, StageOptions, TeacherName, TrainableModel
from unmask.training.teachers import Encode, decoder_encoder, sentence_transformer_encoder

SELF = "self"


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


def teacher_loader(options: TeacherOptions, model: TrainableModel, sets: Sequence[DataSet], seed: int) -> Callable[[], Encode]:
    """What loads the teacher. Raises UnmaskError at once for a design that the model, as its own teacher, cannot serve."""
    embedder = model.embedder
    device, dtype = embedder.backbone.device, embedder.source.dtype
    design = Design.parse(options.teacher_design) if options.teacher_design else None
    if design and options.teacher == embedder.source.model:
        embedder.backbone.check(design)

    def load() -> Encode:
        if design is None:
            return sentence_transformer_encoder(options.teacher, device)
        return decoder_encoder(options.teacher, design, sets, seed, max_length=options.max_length, dtype=dtype, device=device)

    return load


class DistillOptions(PoolingOptions, TeacherOptions):
    """Relational distillation: in each batch, the neighbours of a text are to be those that the teacher gives it.

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

    temperature: float = Field(default=0.2, gt=0)


class Distill(PoolingStage[DistillOptions]):
    """Texts, alone or in pairs: both texts of a pair are in the batch, so that it holds near texts as well as far ones."""

    name = "distill"
    options = DistillOptions

    def teachers(self, options: DistillOptions) -> dict[str, TeacherName]:
        """The model that texts are compared by."""
        return {"teacher": options.teacher_name}

    def read(self, name: str, source: DataSource, root: Path, seed: int) -> DataSet:
        """Pairs or triples, or single texts where there is a text column."""
        return read_texts_or_pairs(name, source, root, seed)

    def prepare(self, options: DistillOptions, model: TrainableModel, sets: Sequence[DataSet], seed: int) -> PreparedStage:
        """Batches that each come from one data set, with the vectors of the teacher, which are computed batch by batch."""
        from unmask.training.losses import NeighbourLoss

        return prepare_pooling(
            options,
            model,
            sets,
            seed,
            loss=lambda module: NeighbourLoss(module, options.temperature, options.cache_tokens),
            labels=lambda batch: batch["teacher"],
            teachers={"teacher": teacher_loader(options, model, sets, seed)},
        )
