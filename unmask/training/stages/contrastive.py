"""Contrastive learning: vectors of related texts come together, others are pushed apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from unmask.errors import UnmaskError
from unmask.training.data import DataSet, DataSource
from unmask.training.labels import read_related
from unmask.training.stages.pooling import PoolingOptions, PoolingStage, prepare_chunks
from unmask.training.stages.stage import Prepared, TrainableModel


class ContrastiveOptions(PoolingOptions):
    """InfoNCE on cosines, with in-batch negatives and negatives from the data (LLM2Vec, section 4).

    false_negative_margin: leave out a negative whose cosine exceeds the positive's by more than this (None: keep all).
    matryoshka: the loss is averaged over these dimensions and the whole.
    """

    false_negative_margin: float | None = None
    matryoshka: tuple[Annotated[int, Field(ge=1)], ...] = ()


class Contrastive(PoolingStage[ContrastiveOptions]):
    """Pairs, triples and texts with labels, with in-batch negatives."""

    name = "contrastive"
    options = ContrastiveOptions
    too_easy = (
        "Mine hard negatives with `unmask mine`, raise contrastive.batch, or put similar examples into one batch with "
        "contrastive.similar = 8. Or train fewer steps."
    )

    def read(self, name: str, source: DataSource, root: Path, seed: int) -> DataSet:
        """Pairs, triples, or texts with labels."""
        return read_related(name, source, root, seed)

    def require_learnable(self, options: ContrastiveOptions, sets: Sequence[DataSet]) -> None:
        """Raise UnmaskError for a batch that cannot be filled, and for one pair without negatives: its positive has no other text."""
        super().require_learnable(options, sets)
        for data in sets:
            if options.batch == 1 and len(data.examples[0].texts) == 2:
                raise UnmaskError(
                    f"A batch of 1 from data set '{data.name}' holds no negative, so its loss is always 0: raise contrastive.batch, or use "
                    "data with negatives."
                )

    def prepare(self, options: ContrastiveOptions, model: TrainableModel, sets: Sequence[DataSet], seed: int) -> Prepared:
        """Batches that each come from one data set."""
        return prepare_pairs(options, model, sets, seed)


def prepare_pairs(options: ContrastiveOptions, model: TrainableModel, sets: Sequence[DataSet], seed: int) -> Prepared:
    """The loss of pairs, their schedule and their collator. Raises UnmaskError for data that cannot fill a batch.

    It also does so for more dimensions than a vector has.
    """
    from unmask.training.collate import PairCollator
    from unmask.training.losses import RankingLoss, require_dimensions

    require_dimensions(options.matryoshka, model.embedder.dim)

    return prepare_chunks(
        options,
        model,
        sets,
        seed,
        lambda module, agree: RankingLoss(
            module, options.temperature, options.cache_tokens, options.false_negative_margin, options.matryoshka, agree
        ),
        lambda tokenizer: PairCollator(tokenizer, options.cache_tokens),
        ("order", "candidate_ids", "positive_ids"),
    )
