"""What mteb has scored: its predictions and its draws, and the check that items give its main score."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unmask.statistics.bootstrap import Items, score

_ROUNDED = 2e-5  # mteb rounds what it ranks by to five digits


class RecordingRandom(random.Random):
    """A generator that remembers what mteb's clustering draws, since mteb saves only the clusters.

    kept: the texts that are embedded, if they are not all. draws: for each experiment, places among them, with repeats.
    """

    def __init__(self, state: Any) -> None:
        """Continue from the state of the generator that it replaces."""
        super().__init__()
        self.setstate(state)
        self.forget()

    def forget(self) -> None:
        """Forget all draws, because another subset is about to be scored."""
        self.kept: list[int] | None = None
        self.draws: list[list[int]] = []

    def sample(self, population: Any, k: int, **options: Any) -> list[Any]:
        """Choose the texts that are embedded, and remember them."""
        self.kept = super().sample(population, k, **options)
        return self.kept

    def choices(self, population: Any, *args: Any, **options: Any) -> list[Any]:
        """Draw as random.Random does, and remember."""
        sample = super().choices(population, *args, **options)
        self.draws.append(sample)
        return sample


@dataclass(frozen=True)
class ScoredSubset:
    """One subset of one split, scored by mteb.

    task: mteb's task. data: the rows of the split. predicted: the predictions that mteb saved. scores: mteb's scores.
    """

    task: Any
    data: Any
    predicted: Any
    scores: Mapping[str, Any]

    @property
    def metric(self) -> str:
        """The name of the task's main score."""
        return str(self.task.metadata.main_score)

    @property
    def recorder(self) -> RecordingRandom:
        """The random generator that the task sampled with."""
        recorder = self.task.rng_state
        assert isinstance(recorder, RecordingRandom)
        return recorder


def checked(items: Items | None, scored: ScoredSubset) -> Items | None:
    """The items that a main score averages over. None if their mean is not the main score."""
    main = float(scored.scores["main_score"])
    fits = items is not None and abs(score(items) - (0.0 if np.isnan(main) else main)) < _ROUNDED
    return items if fits else None


def joined(parts: Sequence[Items | None], main: float) -> Items | None:
    """The items of several subsets as one set; None if a subset has none, or if the mean over all items is not the main score."""
    available = [items for items in parts if items is not None]
    if len(available) == len(parts) == 1:
        return available[0]
    if len(available) < len(parts) or any(items.metric != "mean" for items in available):
        return None
    values = np.concatenate([items.columns["value"] for items in available])
    return Items("mean", {"value": values}) if abs(values.mean() - main) < _ROUNDED else None
