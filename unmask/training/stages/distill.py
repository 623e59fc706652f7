"""Distillation: a decoder learns which texts are near each other from another embedder, its teacher."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

from pydantic import Field, model_validator

from unmask.designs.design import Design
from unmask.errors import UnmaskError
from unmask.training.data import DataSet, DataSource, read_any
from unmask.training.stages.pooling import PoolingOptions, PoolingStage, prepare_chunks
from unmask.training.stages.stage import Prepared, TeacherName, TrainableModel

SELF = "self"
_FEWEST = 3  # with two texts each is the other's only neighbour, whatever its vector


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
    no ranking depends on that. In a pilot (docs/log.md) T = 0.2 was best: for rankings of near texts better than the squared error,
    the sum of both, and T = 0.05, and for scores of pairs better or equal.
    """

    teacher: str = Field(default="minilm", min_length=1)
    teacher_design: str | None = None
    temperature: float = Field(default=0.2, gt=0)

    @model_validator(mode="after")
    def _can_teach(self) -> DistillOptions:
        if self.teacher_design:
            Design.parse(self.teacher_design).require_dense("A teacher")
        elif self.teacher == SELF:
            raise ValueError("a model that teaches itself needs a teacher_design")
        return self

    def of_model(self, base: str) -> DistillOptions:
        """The options with the name of the base model in place of `self`."""
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
        return read_any(name, source, root, seed)

    def require_learnable(self, options: DistillOptions, sets: Sequence[DataSet]) -> None:
        """Raise UnmaskError for a batch that cannot be filled, or has too few texts to say which of them are near each other."""
        super().require_learnable(options, sets)
        for data in sets:
            texts = options.batch * len(data.examples[0].texts)
            if texts < _FEWEST:
                raise UnmaskError(
                    f"A batch of {options.batch} from data set '{data.name}' holds {texts} texts, and to say which texts are near each "
                    f"other takes {_FEWEST}: raise distill.batch."
                )

    def prepare(self, options: DistillOptions, model: TrainableModel, sets: Sequence[DataSet], seed: int) -> Prepared:
        """Batches that each come from one data set, with the vectors of the teacher, which are computed batch by batch.

        The teacher is loaded when training begins, so a stage that is done does not need it. Loading it may raise UnmaskError.
        """
        from unmask.training.collate import PairCollator, TeacherCollator
        from unmask.training.losses import NeighbourLoss
        from unmask.training.teacher import Teacher, load_decoder_teacher, load_sentence_transformer

        embedder = model.embedder
        if options.teacher_design and options.teacher == embedder.source.model:
            embedder.backbone.check(Design.parse(options.teacher_design))

        @cache
        def teacher() -> Teacher:
            if not options.teacher_design:
                return load_sentence_transformer(options.teacher, embedder.backbone.device)
            return load_decoder_teacher(
                options.teacher,
                options.teacher_design,
                sets,
                seed,
                dtype=embedder.source.dtype,
                device=embedder.backbone.device,
                max_length=options.max_length,
            )

        @contextmanager
        def taught() -> Iterator[None]:
            teacher()  # before the first step, whose random numbers loading must not use up
            yield

        pairs = prepare_chunks(
            options,
            model,
            sets,
            seed,
            lambda module, agree: NeighbourLoss(module, options.temperature, options.cache_tokens, agree),
            lambda tokenizer: PairCollator(tokenizer, options.cache_tokens),
            ("teacher",),
        )
        return replace(pairs, collate=TeacherCollator(pairs.collate, lambda texts: teacher()(texts)), around=taught)
