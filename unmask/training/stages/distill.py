"""Distillation: a decoder learns which texts are near each other from another embedder, its teacher."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from unmask.training.data import DataSet, DataSource, read_texts_or_pairs
from unmask.training.stages.contrastive import PoolingOptions, PoolingStage, prepare_pooling
from unmask.training.stages.stage import PreparedStage, TeacherName, TrainableModel
from unmask.training.stages.teachers import TeacherOptions, around_teacher, lazy_teacher


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

    def teacher(self, options: DistillOptions) -> TeacherName | None:
        """The model that texts are compared by."""
        return options.teacher_name

    def read(self, name: str, source: DataSource, root: Path, seed: int) -> DataSet:
        """Pairs or triples, or single texts where there is a text column."""
        return read_texts_or_pairs(name, source, root, seed)

    def prepare(self, options: DistillOptions, model: TrainableModel, sets: Sequence[DataSet], seed: int) -> PreparedStage:
        """Batches that each come from one data set, with the vectors of the teacher, which are computed batch by batch."""
        from unmask.training.losses import NeighbourLoss

        teacher = lazy_teacher(options, model, sets, seed)
        prepared = prepare_pooling(
            options,
            model,
            sets,
            seed,
            loss=lambda module: NeighbourLoss(module, options.temperature, options.cache_tokens),
            labels=lambda batch: batch["teacher"],
            teacher=lambda texts: teacher()(texts),
        )
        return around_teacher(prepared, teacher)
