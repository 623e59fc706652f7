"""Schedules: the examples of every step, in one list that is fixed before training starts.

Step s of a run is rows [s * batch, (s + 1) * batch) of the schedule, however many machines share the batch and wherever the run was
stopped. So a resumed run sees the same examples as an unbroken run, and two machines together see the same as one.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from unmask.errors import UnmaskError
from unmask.training.data import DataSet, Example
from unmask.training.folding import text_key
from unmask.training.neighbours import Neighbours


@dataclass(frozen=True)
class ScheduledExample:
    """An example of a data set, at one place of a schedule."""

    data: DataSet
    example: Example

    @property
    def id(self) -> str:
        """Data set and line of the example, for errors."""
        return f"{self.data.name}:{self.example.row}"


def contrastive_schedule(
    sets: Sequence[DataSet], steps: int, batch: int, seed: int, similar: int = 1
) -> list[ScheduledExample]:
    """Batches that each come from one data set. Sets are drawn in proportion to their sizes, and no example comes twice in a pass.

    No text occurs twice in a batch, because it would be a negative of itself: an example that repeats a text waits for the next batch
    of its set. Texts that differ only in case, spaces or punctuation are the same text (`text_key`). A longer schedule begins with the
    shorter one. similar: examples come in groups of this size, one at random and those whose first texts share the most words with it.
    Raises UnmaskError for a set that cannot fill a batch.
    """
    generator = random.Random(f"{seed}:schedule")
    streams = [_Stream(data, batch, random.Random(f"{seed}:{data.name}"), similar) for data in sets]
    sizes = [len(data.examples) for data in sets]
    rows: list[ScheduledExample] = []
    for _ in range(steps):
        stream = generator.choices(streams, sizes)[0]
        rows += [ScheduledExample(stream.data, example) for example in stream.take()]
    return rows


class _Stream:
    """Batches of one data set without repeated texts, pass after pass."""

    def __init__(self, data: DataSet, batch: int, generator: random.Random, similar: int) -> None:
        self.data, self.batch, self.generator, self.similar = data, batch, generator, similar
        self.waiting: deque[Example] = deque()
        self.order = self._passes()
        if len(data.examples) < batch:
            raise UnmaskError(
                f"Data set '{data.name}' has {len(data.examples)} examples, fewer than one batch of {batch}: lower the batch."
            )

    def _passes(self) -> Iterator[Example]:
        neighbours = Neighbours([example.texts[0] for example in self.data.examples]) if self.similar > 1 else None
        while True:
            order = self.generator.sample(range(len(self.data.examples)), len(self.data.examples))
            for place in _in_groups(order, self.similar, neighbours) if neighbours else order:
                yield self.data.examples[place]

    def take(self) -> list[Example]:
        taken: list[Example] = []
        texts: set[str] = set()
        again: deque[Example] = deque()
        for tried in range(len(self.waiting) + 4 * len(self.data.examples)):
            example = self.waiting.popleft() if self.waiting else next(self.order)
            own = {text_key(text) for text in example.texts}
            if texts.isdisjoint(own):
                taken.append(example)
                texts |= own
            elif tried < 4 * len(self.data.examples):
                again.append(example)
            if len(taken) == self.batch:
                self.waiting.extendleft(reversed(again))
                return taken
        few = f", or set data.{self.data.name}.negatives = 0, because labels with few texts repeat them as negatives"
        raise UnmaskError(
            f"Data set '{self.data.name}' cannot fill a batch of {self.batch} without repeating a text: lower the batch"
            + (few if _draws_negatives(self.data) else "")
            + "."
        )


def _draws_negatives(data: DataSet) -> bool:
    """Whether negatives were drawn from texts with labels."""
    return bool(data.examples[0].classes) and len(data.columns) > 2


def _in_groups(order: Sequence[int], size: int, neighbours: Neighbours) -> Iterator[int]:
    """The same places: each that is still free, in this order, is followed by its nearest free neighbours, as a group of this size."""
    free = np.ones(len(order), dtype=np.bool_)
    for first in order:
        if not free[first]:
            continue
        free[first] = False
        group = neighbours.nearest(first, size - 1, free)
        free[group] = False
        yield from (first, *group)


def language_schedule(lengths: Sequence[int], steps: int, batch: int, seed: int) -> list[int]:
    """Indices of chunks, shuffled anew in each pass. Within 32 batches, chunks of similar length come together, to save padding.

    A longer schedule may begin in another way than a shorter one. Raises UnmaskError if there are no chunks.
    """
    if not lengths:
        raise UnmaskError("There is no text to train on.")
    generator = random.Random(f"{seed}:schedule")
    order: list[int] = []
    while len(order) < steps * batch:
        order += generator.sample(range(len(lengths)), len(lengths))
    grouped: list[list[int]] = []
    window = 32 * batch
    for start in range(0, steps * batch, window):
        part = sorted(order[start : min(start + window, steps * batch)], key=lambda index: lengths[index])
        batches = [part[at : at + batch] for at in range(0, len(part), batch)]
        generator.shuffle(batches)
        grouped += batches
    return [index for indices in grouped for index in indices]
