"""What a stage of training is: its options, its data, what it makes of them, and what it minimises. loop.py runs every stage."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, Literal, NamedTuple, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn

from unmask.designs.design import Attention
from unmask.embedder import Embedder
from unmask.training.data import DataSet, DataSource, read_sentences

MOST_STEPS: Final = 10_000_000
MOST: Final = 1_000_000_000
MOST_RATE: Final = 1_000_000
"""A number above these was mistyped."""

Objective = Callable[[nn.Module, dict[str, Any], Any], Tensor]
"""From the model, the inputs of a batch and the number of items of the whole step to a loss."""


class Table(BaseModel):
    """A table of a recipe: no other keys, no infinite numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class StageOptions(Table):
    """Options that every stage has.

    steps: optimiser steps. batch: examples of one step, over all machines. lr: peak learning rate. warmup: steps. accumulate:
    forward passes that a step is split into. max_length: tokens of one text. checkpointing: compute activations twice to save memory.
    evaluate_every: steps between evaluations (0: only at the end). save_every: steps between checkpoints; a run that evaluates in between
    writes one at each evaluation instead.
    """

    data: tuple[str, ...] = Field(min_length=1)
    steps: int = Field(ge=1, le=MOST_STEPS)
    batch: int = Field(default=32, ge=1, le=MOST)
    accumulate: int = Field(default=1, ge=1, le=MOST)
    lr: float = Field(gt=0, le=MOST_RATE)
    warmup: int = Field(default=0, ge=0, le=MOST_STEPS)
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    max_length: int = Field(default=128, ge=2, le=MOST)
    checkpointing: bool = False
    evaluate_every: int = Field(default=0, ge=0, le=MOST)
    save_every: int = Field(default=100, ge=1, le=MOST)

    @model_validator(mode="after")
    def _divisible(self) -> StageOptions:
        if self.batch % self.accumulate:
            raise ValueError(f"batch {self.batch} cannot be split into {self.accumulate} equal parts (accumulate)")
        return self


class TeacherName(NamedTuple):
    """Another model that a stage learns from, and how a decoder among them is read: the readable name of a design."""

    model: str
    design: str | None


class TrainableModel(Protocol):
    """What a stage needs of the model that it trains (see Trainee).

    language_model: the same decoder with the head that predicts tokens, or None. sharded: its weights are split over processes.
    """

    embedder: Embedder
    language_model: nn.Module | None

    @property
    def sharded(self) -> bool: ...  # noqa: D102


@dataclass(frozen=True)
class Prepared:
    """A stage that is ready for the loop.

    module: what trains. rows: the schedule. collate: from rows to tensors. around: a context that training has to run in.
    cut: counts the texts that are longer than the limit, and all.
    """

    module: nn.Module
    rows: Sequence[Any]
    collate: Callable[[Sequence[Any]], dict[str, Any]]
    objective: Objective
    around: Callable[[], AbstractContextManager[None]] = nullcontext
    cut: Callable[[], tuple[int, int]] = lambda: (0, 0)


Options = TypeVar("Options", bound=StageOptions)


class TrainingStage(ABC, Generic[Options]):
    """A stage of training. Recipes, the loop and the tests follow from one object of this class.

    name: the table of its options in a recipe. options: the model of that table. attention: what it trains with; None means the
    attention of the design. pools: it trains vectors of texts, so a head trains too. predicts_tokens: it needs the language model.
    too_easy: what to change when the loss is almost zero; None for a stage whose loss never is.
    """

    name: ClassVar[str]
    options: type[Options]
    attention: ClassVar[Attention | None] = None
    pools: ClassVar[bool] = False
    predicts_tokens: ClassVar[bool] = False
    too_easy: ClassVar[str | None] = None

    def read(self, name: str, source: DataSource, root: Path, seed: int) -> DataSet:
        """A data set of the recipe, checked row by row. Raises UnmaskError with file, line and reason."""
        return read_sentences(name, source, root, seed)

    def require_learnable(self, options: Options, sets: Sequence[DataSet]) -> None:
        """Raise UnmaskError for data whose batches could teach nothing. It is asked before a model is loaded."""

    def teacher(self, options: Options) -> TeacherName | None:
        """Another model that the stage learns from; None if it needs none."""
        return None

    def unshardable(self, options: Options) -> str | None:
        """What does not work with weights that are split over processes; None if all does."""
        return None

    @abstractmethod
    def prepare(self, options: Options, model: TrainableModel, sets: Sequence[DataSet], seed: int) -> Prepared:
        """Make the stage ready. Raises UnmaskError for data that it cannot train on."""
