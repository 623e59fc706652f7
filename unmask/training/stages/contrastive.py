"""Contrastive learning: vectors of related texts come together, others are pushed apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator
from torch import Tensor, nn

from unmask.training.data import DataSet, DataSource
from unmask.training.labels import read_related
from unmask.training.stages.stage import Options, Prepared, StageOptions, TrainableModel, TrainingStage


class ContrastiveOptions(StageOptions):
    """InfoNCE on cosines, with in-batch negatives and those of the data (LLM2Vec, section 4).

    temperature: divides the cosines. cache_tokens: a step with more tokens than this is computed in parts of this size by GradCache,
    which bounds memory whatever the batch. false_negative_margin: leave out a negative whose cosine exceeds that of the positive by
    more than this (None: keep all). matryoshka: the loss is averaged over these dimensions and the whole.
    """

    temperature: float = Field(default=0.05, gt=0)
    cache_tokens: int = Field(default=2048, ge=1)
    false_negative_margin: float | None = None
    matryoshka: tuple[Annotated[int, Field(ge=1)], ...] = ()

    @model_validator(mode="after")
    def _whole(self) -> ContrastiveOptions:
        if self.accumulate > 1:
            raise ValueError(
                "a batch in parts has fewer negatives: leave accumulate out, cache_tokens already limits the memory"
            )
        return self


class PoolingStage(TrainingStage[Options]):
    """A stage that trains vectors of texts, and the head of a design that has one."""

    pools = True


class Contrastive(PoolingStage[ContrastiveOptions]):
    """Pairs, triples and texts with labels, with in-batch negatives."""

    name = "contrastive"
    options = ContrastiveOptions

    def read(self, name: str, source: DataSource, root: Path, seed: int) -> DataSet:
        """Pairs, triples, or texts with labels."""
        return read_related(name, source, root, seed)

    def prepare(self, options: ContrastiveOptions, model: TrainableModel, sets: Sequence[DataSet], seed: int) -> Prepared:
        """Batches that each come from one data set."""
        return prepare_pairs(options, model, sets, seed)


def prepare_pairs(options: ContrastiveOptions, model: TrainableModel, sets: Sequence[DataSet], seed: int) -> Prepared:
    """The loss of pairs, their schedule and their collator. Raises UnmaskError for data that cannot fill a batch."""
    from unmask.encoding.tokenization import PromptTokenizer
    from unmask.st_module import UnmaskModule
    from unmask.training.collate import PairCollator
    from unmask.training.losses import RankingLoss
    from unmask.training.schedule import ScheduledExample, contrastive_schedule
    from unmask.training.sharding import agreed_chunks

    embedder = model.embedder
    longest = embedder.backbone.within_positions(options.max_length)
    tokenizer = PromptTokenizer(embedder.tokenizer, embedder.design.require_one_prompt("Training"), longest)
    module = UnmaskModule(embedder)
    agree = agreed_chunks if model.sharded else None
    loss = RankingLoss(
        module, options.temperature, options.cache_tokens, options.false_negative_margin, options.matryoshka, agree
    )

    def objective(wrapped: nn.Module, inputs: dict[str, Any], _: Any) -> Tensor:
        loss.model = wrapped  # as the loop has wrapped it
        return loss(inputs["chunks"], inputs["order"], inputs.get("classes"))  # type: ignore[no-any-return]

    rows = contrastive_schedule(sets, options.steps, options.batch, seed)
    collate = PairCollator(tokenizer, options.cache_tokens)
    for data in sets:  # an instruction that the prompt does not take, or a limit that leaves no room, shows before training
        collate([ScheduledExample(data, data.examples[0])])
    return Prepared(module, rows, collate, objective)
