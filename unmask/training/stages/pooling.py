"""What stages that train vectors of texts share: every batch comes from one data set, and its texts are compared with each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field, model_validator
from torch import Tensor, nn

from unmask.training.data import DataSet
from unmask.training.stages.stage import Options, Prepared, StageOptions, TrainableModel, TrainingStage

if TYPE_CHECKING:
    from unmask.encoding.tokenization import PromptTokenizer
    from unmask.training.collate import PairCollator
    from unmask.training.losses import Agree, ChunkedLoss


class PoolingOptions(StageOptions):
    """Options of stages on vectors of texts.

    temperature: divides the cosines. cache_tokens: a step with more tokens than this is computed in parts of this size by GradCache,
    which bounds memory whatever the batch. similar: a batch is made of groups of this many examples whose first texts share telling
    words, and which are harder to tell apart than examples at random (1: at random). Source: topic-aware sampling (TAS-B, arXiv
    2104.06967), which groups by vectors of a model; here TF-IDF is enough.
    """

    temperature: float = Field(default=0.05, gt=0)
    cache_tokens: int = Field(default=2048, ge=1)
    similar: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _whole(self) -> PoolingOptions:
        if self.accumulate > 1:
            raise ValueError(
                "a batch in parts compares fewer texts: leave accumulate out, cache_tokens already limits the memory"
            )
        if self.batch % self.similar:
            raise ValueError(f"a batch of {self.batch} is not made of whole groups of {self.similar} (similar)")
        return self


class PoolingStage(TrainingStage[Options]):
    """A stage that trains vectors of texts, and the head of a design that has one."""

    pools = True

    def require_learnable(self, options: Options, sets: Sequence[DataSet]) -> None:
        """Raise UnmaskError for a data set that cannot fill a batch."""
        from unmask.training.schedule import require_full_batch

        for data in sets:
            require_full_batch(data, options.batch)


def prepare_chunks(
    options: PoolingOptions,
    model: TrainableModel,
    sets: Sequence[DataSet],
    seed: int,
    loss_of: Callable[[nn.Module, Agree | None], ChunkedLoss],
    collator: Callable[[PromptTokenizer], PairCollator],
    labels: Sequence[str],
) -> Prepared:
    """A stage whose batches each come from one data set.

    loss_of: makes the loss of a module. collator: makes the batches. labels: further inputs of the loss from a batch
    (None if the batch lacks them). Raises UnmaskError for data that cannot fill a batch.
    """
    from unmask.encoding.tokenization import PromptTokenizer
    from unmask.sentence_transformers_module import UnmaskModule
    from unmask.training.schedule import ScheduledExample, contrastive_schedule
    from unmask.training.sharding import agreed_chunks

    embedder = model.embedder
    longest = embedder.backbone.within_positions(options.max_length)
    prompt = embedder.design.require_one_prompt("Training")
    tokenizer = PromptTokenizer(embedder.tokenizer, prompt, longest, embedder.backbone.vocabulary)
    module = UnmaskModule(embedder)
    loss = loss_of(module, agreed_chunks if model.sharded else None)

    def objective(wrapped: nn.Module, inputs: dict[str, Any], _: Any) -> Tensor:
        loss.model = wrapped  # as the loop has wrapped it
        return loss(inputs["chunks"], *(inputs.get(name) for name in labels))  # type: ignore[no-any-return]

    rows = contrastive_schedule(sets, options.steps, options.batch, seed, options.similar)
    collate = collator(tokenizer)
    for data in sets:  # an instruction that the prompt does not take, or a limit that leaves no room, shows before training
        collate([ScheduledExample(data, data.examples[0])])
    return Prepared(module, rows, collate, objective, cut=lambda: collate.cut(rows))
