"""Schedules: which examples make which step, as one list that is fixed before training starts.

Step s of a run is rows [s * batch, (s + 1) * batch) of the schedule, however many machines share it and wherever it was stopped, so a
resumed run sees what an unbroken one would have seen, and two machines together what one sees alone.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from unmask.errors import UnmaskError
from unmask.training.data import DataSet, Example


@dataclass(frozen=True)
class Row:
    """One place in a schedule: an example of a data set."""

    data: DataSet
    example: Example

    @property
    def id(self) -> str:
        """Where the example was read: data set and line."""
        return f"{self.data.name}:{self.example.row}"


def contrastive_schedule(sets: Sequence[DataSet], steps: int, batch: int, seed: int) -> list[Row]:
    """Batches that each come from ONE data set, drawn in proportion to the sets' sizes, without replacement within a pass.

    No text occurs twice in a batch: it would be a negative of itself. An example that repeats one waits for the next batch of its set.
    A longer schedule begins with the shorter one.
    Raises UnmaskError for a set that cannot fill a batch.
    """
    draw = random.Random(f"{seed}:schedule")
    streams = [_Stream(data, batch, random.Random(f"{seed}:{data.name}")) for data in sets]
    sizes = [len(data.examples) for data in sets]
    rows: list[Row] = []
    for _ in range(steps):
        stream = draw.choices(streams, sizes)[0]
        rows += [Row(stream.data, example) for example in stream.take()]
    return rows


class _Stream:
    """Batches of one data set without repeated texts, pass after pass."""

    def __init__(self, data: DataSet, batch: int, draw: random.Random) -> None:
        self.data, self.batch, self.draw = data, batch, draw
        self.waiting: deque[Example] = deque()
        self.order = self._passes()
        if len(data.examples) < batch:
            raise UnmaskError(
                f"Data set '{data.name}' has {len(data.examples)} examples, fewer than one batch of {batch}: lower the batch."
            )

    def _passes(self) -> Iterator[Example]:
        while True:
            yield from self.draw.sample(self.data.examples, len(self.data.examples))

    def take(self) -> list[Example]:
        taken: list[Example] = []
        texts: set[str] = set()
        again: deque[Example] = deque()
        for tried in range(len(self.waiting) + 4 * len(self.data.examples)):
            example = self.waiting.popleft() if self.waiting else next(self.order)
            if texts.isdisjoint(example.texts):
                taken.append(example)
                texts.update(example.texts)
            elif tried < 4 * len(self.data.examples):
                again.append(example)
            if len(taken) == self.batch:
                self.waiting.extendleft(reversed(again))
                return taken
        raise UnmaskError(
            f"Data set '{self.data.name}' cannot fill a batch of {self.batch} without repeating a text: lower the batch."
        )


def language_schedule(lengths: Sequence[int], steps: int, batch: int, seed: int) -> list[int]:
    """Indices of chunks, each pass shuffled; within 32 batches, those of similar length come together, so that little is padded.

    A longer schedule need not begin with the shorter one, whose last 32 batches may be fewer. Raises UnmaskError without chunks.
    """
    if not lengths:
        raise UnmaskError("There is no text to train on.")
    draw = random.Random(f"{seed}:schedule")
    order: list[int] = []
    while len(order) < steps * batch:
        order += draw.sample(range(len(lengths)), len(lengths))
    grouped: list[list[int]] = []
    window = 32 * batch
    for start in range(0, steps * batch, window):
        part = sorted(order[start : min(start + window, steps * batch)], key=lambda index: lengths[index])
        batches = [part[at : at + batch] for at in range(0, len(part), batch)]
        draw.shuffle(batches)
        grouped += batches
    return [index for one in grouped for index in one]
