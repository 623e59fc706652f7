"""A stage of training: its options, its data, how it becomes batches, and what it minimises. loop.py runs every stage."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, Literal, NamedTuple, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn

from unmask.designs.design import Attention, Design
from unmask.embedder import Embedder
from unmask.training.data import DataSet, DataSource, read_sentences

MOST_STEPS: Final = 10_000_000
MOST: Final = 1_000_000_000
MOST_RATE: Final = 1_000_000
"""Upper bounds that catch typing mistakes."""

Objective = Callable[[nn.Module, dict[str, Any], Any], Tensor]
"""From the model, the inputs of a batch and the number of items of the whole step to a loss."""


class Table(BaseModel):
    """A table of a recipe: no other keys, no infinite numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class StageOptions(Table):
    """Options that every stage has."""

    data: tuple[str, ...] = Field(min_length=1)
    steps: int = Field(ge=1, le=MOST_STEPS)
    """Optimizer steps."""
    batch: int = Field(default=32, ge=1, le=MOST)
    """Examples of one step, over all processes."""
    accumulate: int = Field(default=1, ge=1, le=MOST)
    """Forward passes that a step is split into."""
    lr: float = Field(gt=0, le=MOST_RATE)
    warmup: int = Field(default=0, ge=0, le=MOST_STEPS)
    """Steps until the learning rate reaches `lr`."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    max_length: int = Field(default=128, ge=2, le=MOST)
    """Tokens of one text."""
    checkpointing: bool = False
    """Compute activations twice to save memory."""
    evaluate_every: int = Field(default=0, ge=0, le=MOST)
    """Steps between evaluations; 0: only at the end."""
    save_every: int = Field(default=100, ge=1, le=MOST)
    """Steps between checkpoints; a run with `evaluate_every` writes one at each evaluation instead."""
    average: int = Field(default=1, ge=1, le=MOST)
    """The result is the mean of the trained weights at this many last checkpoints (or at all, if there are fewer), and scores choose no
    checkpoint. 1: the best one, or without scores the last (model soups: arXiv 2203.05482; EmbeddingGemma: arXiv 2509.20354)."""

    @model_validator(mode="after")
    def _check_accumulate(self) -> StageOptions:
        if self.batch % self.accumulate:
            raise ValueError(f"batch {self.batch} cannot be split into {self.accumulate} equal parts (accumulate)")
        return self


class TeacherName(NamedTuple):
    """A model that a stage learns from. design: of a decoder, by its readable name; None for a sentence-transformers model."""

    model: str
    design: str | None


class TrainableModel(Protocol):
    """What a stage needs of the model that it trains (see Trainee). language_model: the decoder with its head, or None."""

    embedder: Embedder
    language_model: nn.Module | None


@dataclass(frozen=True)
class PreparedStage:
    """A stage that is ready for the loop.

    module: what trains. rows: the schedule. collate: from rows to tensors. around: a context that training has to run in.
    """

    module: nn.Module
    rows: Sequence[Any]
    collate: Callable[[Sequence[Any]], dict[str, Any]]
    objective: Objective
    around: Callable[[], AbstractContextManager[None]] = nullcontext


Options = TypeVar("Options", bound=StageOptions)


class TrainingStage(ABC, Generic[Options]):
    """A stage of training. Recipes, the loop and the tests follow from one object of this class."""

    name: ClassVar[str]
    """The table of its options in a recipe."""
    options: type[Options]
    """The model of that table."""
    attention: ClassVar[Attention | None] = None
    """What it trains with; None means the attention of the design."""
    pools: ClassVar[bool] = False
    """Whether it trains vectors of texts, so that a head trains too."""
    predicts_tokens: ClassVar[bool] = False
    """Whether it needs the language model."""

    def read(self, name: str, source: DataSource, root: Path, seed: int) -> DataSet:
        """A data set of the recipe, checked row by row. Raises UnmaskError with file, line and reason."""
        return read_sentences(name, source, root, seed)

    def require_learnable(self, options: Options, sets: Sequence[DataSet]) -> None:
        """Raise UnmaskError for data whose batches could teach nothing. Called before a model is loaded."""

    def require_trainable(self, train: str | tuple[str, ...], design: Design) -> None:
        """Raise UnmaskError for a design, or for weights to train (`Recipe.train`), that the stage is not made for."""

    def teachers(self, options: Options) -> dict[str, TeacherName]:
        """Other models that the stage needs, by their role."""
        return {}

    @abstractmethod
    def prepare(self, options: Options, model: TrainableModel, sets: Sequence[DataSet], seed: int) -> PreparedStage:
        """Make the stage ready. Raises UnmaskError for data that it cannot train on."""
