"""Schedules: the examples of every step, in one list that is fixed before training starts.

Step s of a run is rows [s * batch, (s + 1) * batch) of the schedule, however many machines share the batch and wherever the run was
stopped. So a resumed run sees the same examples as an unbroken run, and two processes together see the same as one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.errors import UnmaskError
from unmask.training.data import DataSet, Example
from unmask.training.text_keys import text_key


@dataclass(frozen=True)
class ScheduledExample:
    """An example of a data set, in a schedule."""

    data: DataSet
    example: Example

    @property
    def id(self) -> str:
        """Data set and line, for errors."""
        return f"{self.data.name}:{self.example.row}"


def contrastive_schedule(
    sets: Sequence[DataSet], steps: int, batch: int, seed: int, similar: int = 1
) -> list[ScheduledExample]:
    """Batches that each come from one data set, sampled in proportion to their weights, by default their sizes. A set is passed through as
    often as it takes, shuffled in each pass. No example comes twice in a pass.

    No text occurs twice in a batch, because it would be a negative of itself: an example that repeats a text (by its `text_key`) waits
    for the next batch of its set. A longer schedule begins with the shorter one. similar: examples come in groups of this size, one at
    random and those whose first texts share the most words with it. Raises UnmaskError for a set that cannot fill a batch.
    """
    generator = random.Random(f"{seed}:schedule")
    streams = [_Stream(data, batch, random.Random(f"{seed}:{data.name}"), similar) for data in sets]
    weights = [data.source.weight or len(data.examples) for data in sets]
    rows: list[ScheduledExample] = []
    for _ in range(steps):
        stream = generator.choices(streams, weights)[0]
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
        require_full_batch(data, batch)
        self.data, self.batch, self.generator = data, batch, generator
        self.waiting: list[int] = []  # examples that repeated a text of their batch, in the order in which they were tried
        self.ids: dict[str, int] = {}
        self.texts_of = cache(self._texts_of)  # since an example may wait for many batches
        self.order = self._passes(similar)

    def _passes(self, similar: int) -> Iterator[int]:
        neighbours = Neighbours([example.texts[0] for example in self.data.examples]) if similar > 1 else None
        while True:
            order = self.generator.sample(range(len(self.data.examples)), len(self.data.examples))
            if neighbours is None:
                yield from order
                continue
            free = np.ones(len(order), dtype=np.bool_)
            for first in order:  # each that is still free is followed by its nearest free neighbours, as a group
                if free[first]:
                    free[first] = False
                    group = neighbours.nearest(first, similar - 1, free)
                    free[group] = False
                    yield from (first, *group)

    def _texts_of(self, index: int) -> frozenset[int]:
        """An id for each text of an example."""
        return frozenset(self.ids.setdefault(text_key(text), len(self.ids)) for text in self.data.examples[index].texts)

    def take(self) -> list[Example]:
        """The next batch: first the examples that wait, then those of the current pass."""
        selected: list[int] = []
        keys: set[int] = set()
        waiting, delayed, limit = iter(self.waiting), [], 4 * len(self.data.examples)
        for tried, index in enumerate(chain(waiting, islice(self.order, limit))):
            texts = self.texts_of(index)
            if keys.isdisjoint(texts):
                selected.append(index)
                keys |= texts
            elif tried < limit:
                delayed.append(index)
            if len(selected) == self.batch:
                self.waiting = [*delayed, *waiting]
                return [self.data.examples[index] for index in selected]
        has_sampled_negatives = self.data.examples[0].classes and len(self.data.columns) > 2
        advice = f", or set data.{self.data.name}.negatives = 0, because labels with few texts repeat them as negatives"
        raise UnmaskError(
            f"Data set '{self.data.name}' cannot fill a batch of {self.batch} without repeating a text: lower the batch"
            f"{advice if has_sampled_negatives else ''}."
        )


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
    """The nearest texts of each text by TF-IDF, over words that are not too frequent to tell texts apart."""

    def __init__(self, texts: Sequence[str]) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.preprocessing import normalize

        weights = TfidfVectorizer(token_pattern=_WORDS, sublinear_tf=True, norm=None, dtype=np.float32).fit_transform(texts)
        rare = weights[:, weights.getnnz(axis=0) <= max(_FEW, len(texts) // 20)]
        self._rows: Any = normalize(rare) if rare.shape[1] else rare
        self._by_word: Any = self._rows.T.tocsr()

    def nearest(self, row: int, count: int, free: NDArray[np.bool_]) -> list[int]:
        """Indices of at most `count` texts that share a word with the text in a row, the nearest first.

        free: for each text, whether it may be selected, of shape (text,).
        """
        shared = self._rows[row] @ self._by_word
        is_free = free[shared.indices]
        columns, cosines = shared.indices[is_free], shared.data[is_free]
        return [int(column) for column in columns[np.lexsort((columns, -cosines))][:count]]
