"""Schedules: the examples of every step, in one list that is fixed before training starts.

Step s of a run is rows [s * batch, (s + 1) * batch) of the schedule, however many machines share the batch and wherever the run was
stopped. So a resumed run sees the same examples as an unbroken run, and two machines together see the same as one.
"""

from __future__ import annotations

import random
from bisect import insort
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.errors import UnmaskError
from unmask.training.data import DataSet, Example
from unmask.training.text_keys import text_key


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


def require_full_batch(data: DataSet, batch: int) -> None:
    """Raise UnmaskError for a data set with fewer examples than one batch."""
    if len(data.examples) < batch:
        raise UnmaskError(
            f"Data set '{data.name}' has {len(data.examples)} examples, fewer than one batch of {batch}: lower the batch."
        )


class _Stream:
    """Batches of one data set without repeated texts, pass after pass."""

    def __init__(self, data: DataSet, batch: int, generator: random.Random, similar: int) -> None:
        self.data, self.batch, self.generator, self.similar = data, batch, generator, similar
        # by a text that they repeated: their numbers, in the order in which they came, and their places
        self.waiting: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        self.numbers = count()
        self.keys: dict[str, int] = {}
        self.texts: dict[int, frozenset[int]] = {}
        self.order = self._passes()
        require_full_batch(data, batch)

    def _passes(self) -> Iterator[int]:
        """Places of examples."""
        neighbours = Neighbours([example.texts[0] for example in self.data.examples]) if self.similar > 1 else None
        while True:
            order = self.generator.sample(range(len(self.data.examples)), len(self.data.examples))
            yield from _in_groups(order, self.similar, neighbours) if neighbours else order

    def _texts_of(self, index: int) -> frozenset[int]:
        """A number for each text of an example. It is found once, because an example may wait for many batches."""
        if index not in self.texts:
            keys = map(text_key, self.data.examples[index].texts)
            self.texts[index] = frozenset(self.keys.setdefault(key, len(self.keys)) for key in keys)
        return self.texts[index]

    def take(self) -> list[Example]:
        selected: list[int] = []
        texts: set[int] = set()
        waiting, limit = sum(map(len, self.waiting.values())), 4 * len(self.data.examples)
        self._take_waiting(selected, texts)
        tried = waiting
        while len(selected) < self.batch and tried < waiting + limit:
            index = next(self.order)
            own_texts = self._texts_of(index)
            if texts.isdisjoint(own_texts):
                selected.append(index)
                texts |= own_texts
            elif tried < limit:
                self._wait((next(self.numbers), index), own_texts & texts)
            tried += 1
        if len(selected) == self.batch:
            return [self.data.examples[index] for index in selected]
        advice = f", or set data.{self.data.name}.negatives = 0, because labels with few texts repeat them as negatives"
        raise UnmaskError(
            f"Data set '{self.data.name}' cannot fill a batch of {self.batch} without repeating a text: lower the batch"
            + (advice if _draws_negatives(self.data) else "")
            + "."
        )

    def _take_waiting(self, selected: list[int], texts: set[int]) -> None:
        """Take the examples that wait and repeat no text, in the order in which they came, up to a whole batch.

        As soon as a batch holds a text, all that wait for it are passed over together: they may be thousands.
        """
        heads = [(examples[0], text) for text, examples in self.waiting.items() if examples]
        heapify(heads)
        while heads and len(selected) < self.batch:
            (number, index), text = heappop(heads)
            if text in texts:
                continue
            del self.waiting[text][0]
            text_ids = self._texts_of(index)
            if texts.isdisjoint(text_ids):
                selected.append(index)
                texts |= text_ids
                continue
            self._wait((number, index), text_ids & texts)
            if self.waiting[text]:
                heappush(heads, (self.waiting[text][0], text))

    def _wait(self, example: tuple[int, int], repeated: Set[int]) -> None:
        """Keep an example, by its number and place, for a later batch without this text."""
        insort(self.waiting[min(repeated)], example)


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
    """Indices of chunks, reshuffled in each pass. Within 32 batches, chunks of similar length come together, to save padding.

    A longer schedule may begin in another way than a shorter one. Raises UnmaskError without chunks.
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
        batches = [part[offset : offset + batch] for offset in range(0, len(part), batch)]
        generator.shuffle(batches)
        grouped += batches
    return [index for indices in grouped for index in indices]


_WORDS = r"(?u)\w+|[^\w\s]"  # a text that is not empty has at least one
_FEW = 100  # a word may be in this number of texts, or in a twentieth of them if that is more


class Neighbours:
    """The nearest texts of each text, by words: no model is asked. A search reads only texts that share a telling word."""

    def __init__(self, texts: Sequence[str]) -> None:
        """Count the words of the texts, none of which is empty."""
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.preprocessing import normalize

        counted = TfidfVectorizer(token_pattern=_WORDS, sublinear_tf=True, norm=None, dtype=np.float32).fit_transform(texts)
        telling = counted[:, counted.getnnz(axis=0) <= max(_FEW, len(texts) // 20)]
        self._rows: Any = normalize(telling) if telling.shape[1] else telling
        self._by_word: Any = self._rows.T.tocsr()

    def nearest(self, row: int, count: int, free: NDArray[np.bool_]) -> list[int]:
        """Places of at most `count` free texts that share a word with the text at a place, the nearest first.

        free: for each text, whether it may be chosen, of shape (text,).
        """
        shared = self._rows[row] @ self._by_word
        may = free[shared.indices]
        columns, cosines = shared.indices[may], shared.data[may]
        return [int(column) for column in columns[np.lexsort((columns, -cosines))][:count]]
