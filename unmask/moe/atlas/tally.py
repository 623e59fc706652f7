"""Tally: everything that is counted in a record, in one reading. One part of the record is in memory at a time.

A slot is one expert at one routing point. All tables have a column for each slot, point by point, so that a model of any number of
experts in each layer fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int, UInt

from unmask.io.array_types import NDArray
from unmask.io.terminal import progress_bar
from unmask.moe.routing.record import Choices, Label, RoutingRecord

MOST_VALUES = 24
"""Most values of a label that are shown; the rarest are merged into `others`."""
OTHERS = "(others)"
TOP = 3
"""Experts of which the probability is kept, for each token that is shown."""


@dataclass(frozen=True, eq=False)
class Grouping:
    """A label as the atlas counts it. values: their names; place: of each value of the record in them."""

    label: Label | None
    values: tuple[str, ...]
    place: NDArray[np.int64]

    @classmethod
    def of(cls, record: RoutingRecord, label: Label) -> Grouping:
        """All values of a label, or the most frequent ones."""
        size = len(label.values)
        retained = np.arange(size)
        if size > MOST_VALUES:
            codes = (
                [record.texts.labels[label.name]]
                if label.of == "text"
                else [part.tags[label.name] for part in record.batches(())]
            )
            counts = np.sum([np.bincount(codes_[codes_ >= 0], minlength=size) for codes_ in codes], axis=0)
            retained = np.sort(np.argsort(-counts, kind="stable")[: MOST_VALUES - 1])
        index_of = np.full(size, len(retained), np.int64)
        index_of[retained] = np.arange(len(retained))
        rest = (OTHERS,) if len(retained) < size else ()
        return cls(label, tuple(label.values[value] for value in retained) + rest, index_of)

    def codes(self, choices: Choices, labels: dict[str, NDArray[np.int16]]) -> NDArray[np.int64]:
        """The value of each token; -1 for none."""
        if self.label is None:
            return np.zeros(len(choices.texts), np.int64)
        if self.label.of == "text":
            return np.asarray(self.place[labels[self.label.name][choices.texts]])
        tags = choices.tags[self.label.name]
        return np.where(tags >= 0, self.place[tags], -1)


@dataclass(frozen=True, eq=False)
class Shares:
    """For each value of a label and each slot, among the tokens of the value: how many choose it first, how many choose it, how sure.

    tokens: of each value. sure: the sum of the probabilities of the slot, over the tokens that choose it first.
    """

    grouping: Grouping
    tokens: Int[NDArray[np.int64], " value"]
    first: Float[NDArray[np.float64], "value slot"]
    load: Float[NDArray[np.float64], "value slot"]
    sure: Float[NDArray[np.float64], "value slot"]


@dataclass(frozen=True, eq=False)
class Tally:
    """Counts of a record.

    starts: the first slot of each routing point, and their number. first: the first choice of each token, in the order of the record.
    everything, groups: shares of slots, over all tokens and by label. pairs: for each point, how many tokens chose both of two experts.
    shown: for each text that is shown, its rows in `top` and `probabilities` and their positions in the text. routing: the mean
    probabilities of the texts on the map.
    """

    record: RoutingRecord
    starts: NDArray[np.int64]
    texts: Int[NDArray[np.int32], " token"]
    ids: Int[NDArray[np.int32], " token"]
    positions: Int[NDArray[np.int32], " token"]
    first: Int[NDArray[np.int16], "token point"]
    everything: Shares
    groups: list[Shares]
    pairs: list[Float[NDArray[np.float64], "_ _"]]
    shown: dict[int, range]
    shown_positions: Int[NDArray[np.int32], " row"]
    top: UInt[NDArray[np.uint16], "row point top"]
    probabilities: Float[NDArray[np.float32], "row point top"]
    mapped: Int[NDArray[np.int64], " text"]
    routing: Float[NDArray[np.float32], "text slot"]

    def slots(self, point: int) -> slice:
        """The slots of a routing point."""
        return slice(int(self.starts[point]), int(self.starts[point + 1]))


def tally(record: RoutingRecord, mapped: NDArray[np.int64], displayed: dict[int, int]) -> Tally:
    """Read a record once. mapped: texts of the map, ascending. shown: how many of its tokens are shown, for each text that is shown."""
    points = record.points
    starts = np.concatenate([[0], np.cumsum([point.experts for point in points])]).astype(np.int64)
    counts = _Counts(record, starts, mapped, displayed)
    with progress_bar("reading the record", record.settings.parts) as advance:
        for choices in record.batches():
            counts.add(choices)
            advance(1)
    return counts.done()


class _Counts:
    """A tally that grows part by part."""

    def __init__(
        self, record: RoutingRecord, starts: NDArray[np.int64], mapped: NDArray[np.int64], displayed: dict[int, int]
    ) -> None:
        self.record, self.starts, self.mapped, self.wanted = record, starts, mapped, displayed
        slots, points = int(starts[-1]), len(record.points)
        everything = Grouping(None, ("all",), np.zeros(1, np.int64))
        self.shares = [
            _empty(grouping, slots)
            for grouping in (everything, *(Grouping.of(record, label) for label in record.settings.labels))
        ]
        self.pairs = [np.zeros((point.experts, point.experts)) for point in record.points]
        self.plain: list[tuple[NDArray[Any], ...]] = []
        self.rows: dict[int, range] = {}
        total = sum(displayed.values())
        self.shown_positions = np.zeros(total, np.int32)
        self.top = np.zeros((total, points, TOP), np.uint16)
        self.probabilities = np.zeros((total, points, TOP), np.float32)
        self.routing = np.zeros((len(mapped), slots), np.float32)
        self.filled = 0

    def add(self, choices: Choices) -> None:
        """Count one part."""
        labels = self.record.texts.labels
        codes = [shares.grouping.codes(choices, labels) for shares in self.shares]
        for shares, codes_ in zip(self.shares, codes, strict=True):
            np.add(shares.tokens, np.bincount(codes_[codes_ >= 0], minlength=len(shares.tokens)), out=shares.tokens)
        displayed_rows, mapped = self._shown_rows(choices), self._mapped_rows(choices)
        firsts = np.empty((len(choices.texts), len(self.record.points)), np.int16)
        for point, (probabilities, selected) in enumerate(zip(choices.probabilities, choices.chosen, strict=True)):
            first = np.where(selected[:, 0] >= 0, selected[:, 0], probabilities.argmax(axis=1)).astype(np.int64)
            firsts[:, point] = first
            self._count(point, first, probabilities, selected, codes)
            self._keep(point, first, probabilities, displayed_rows, mapped)
        self.filled += len(displayed_rows)
        self.plain.append((choices.texts, choices.ids, choices.positions, firsts))

    def _count(
        self,
        point: int,
        first: NDArray[np.int64],
        probabilities: NDArray[Any],
        selected: NDArray[Any],
        codes: Sequence[NDArray[np.int64]],
    ) -> None:
        experts = probabilities.shape[1]
        slots = slice(self.starts[point], self.starts[point + 1])
        sure = np.take_along_axis(probabilities, first[:, None], axis=1)[:, 0].astype(np.float64)
        acts = np.zeros((len(first), experts + 1), np.float32)  # the last column takes "no choice" (-1)
        np.put_along_axis(acts, selected.astype(np.int64) % (experts + 1), 1, axis=1)
        acts = acts[:, :experts]
        self.pairs[point] += acts.T @ acts
        for shares, code in zip(self.shares, codes, strict=True):
            labelled = code >= 0
            size = len(shares.tokens)
            flat = code[labelled] * experts + first[labelled]
            shares.first[:, slots] += np.bincount(flat, minlength=size * experts).reshape(size, experts)
            shares.sure[:, slots] += np.bincount(flat, sure[labelled], minlength=size * experts).reshape(size, experts)
            for value in np.unique(code[labelled]):
                shares.load[value, slots] += acts[code == value].sum(axis=0)

    def _keep(
        self,
        point: int,
        first: NDArray[np.int64],
        probabilities: NDArray[Any],
        displayed_rows: NDArray[np.int64],
        mapped: list[tuple[int, slice]],
    ) -> None:
        """Keep what single texts show: the strongest experts of their tokens, the first choice before the others, and means."""
        size = min(TOP, probabilities.shape[1])
        rows = probabilities[displayed_rows].astype(np.float32)
        raised = rows.copy()
        np.put_along_axis(raised, first[displayed_rows][:, None], 2.0, axis=1)
        best = np.argsort(-raised, axis=1, kind="stable")[:, :size]
        rows_ = slice(self.filled, self.filled + len(displayed_rows))
        self.top[rows_, point, :size] = best
        self.probabilities[rows_, point, :size] = np.take_along_axis(rows, best, axis=1)
        for index, tokens in mapped:
            self.routing[index, self.starts[point] : self.starts[point + 1]] = probabilities[tokens].mean(
                axis=0, dtype=np.float32
            )

    def _shown_rows(self, choices: Choices) -> NDArray[np.int64]:
        rows: list[NDArray[np.int64]] = []
        next_row = self.filled
        for text, tokens in _texts(choices):
            if text in self.wanted:
                token_rows = np.arange(tokens.start, min(tokens.stop, tokens.start + self.wanted[text]))
                self.rows[text] = range(next_row, next_row + len(token_rows))
                next_row += len(token_rows)
                rows.append(token_rows)
        all_rows = np.concatenate(rows) if rows else np.zeros(0, np.int64)
        self.shown_positions[self.filled : next_row] = choices.positions[all_rows]
        return all_rows

    def _mapped_rows(self, choices: Choices) -> list[tuple[int, slice]]:
        index_of = {int(text): index for index, text in enumerate(self.mapped)}
        return [(index_of[text], tokens) for text, tokens in _texts(choices) if text in index_of]

    def done(self) -> Tally:
        """The whole tally."""
        texts, ids, positions, first = (np.concatenate(arrays) for arrays in zip(*self.plain, strict=True))
        return Tally(
            record=self.record,
            starts=self.starts,
            texts=texts,
            ids=ids,
            positions=positions,
            first=first,
            everything=self.shares[0],
            groups=self.shares[1:],
            pairs=self.pairs,
            shown=dict(sorted(self.rows.items())),
            shown_positions=self.shown_positions,
            top=self.top,
            probabilities=self.probabilities,
            mapped=self.mapped,
            routing=self.routing,
        )


def _empty(grouping: Grouping, slots: int) -> Shares:
    shape = len(grouping.values), slots
    return Shares(grouping, np.zeros(shape[0], np.int64), *(np.zeros(shape) for _ in range(3)))


def _texts(choices: Choices) -> list[tuple[int, slice]]:
    """The texts of a part, each with its tokens."""
    numbers, starts = np.unique(choices.texts, return_index=True)
    ends = [*starts[1:], len(choices.texts)]
    return [(int(text), slice(int(start), int(end))) for text, start, end in zip(numbers, starts, ends, strict=True)]
