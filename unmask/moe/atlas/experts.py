"""Experts: what each one takes more often than others do: words, partners, and places in the texts that are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt

from unmask.io.array_types import NDArray
from unmask.moe.atlas.packing import NONE16, NONE32
from unmask.moe.atlas.tally import Tally

WORDS, PARTNERS, EXAMPLES = 6, 3, 2
SEEN = 3
"""A word is listed for an expert if it chose it so many times."""


@dataclass(frozen=True, eq=False)
class Words:
    """The words of each slot, strongest first. place: in `names`, or 2^32 - 1 for none. lift: p(expert given word) / p(expert)."""

    names: list[str]
    place: UInt[NDArray[np.uint32], "slot word"]
    count: UInt[NDArray[np.uint32], "slot word"]
    lift: Float[NDArray[np.float32], "slot word"]


def words(tally: Tally, names: Sequence[str], codes: NDArray[np.int64]) -> Words:
    """The token ids that choose an expert first more often than its load explains, by count x log lift. codes: of each token's id.

    The lift alone would list the rarest words: a word seen once has the largest lift of all.
    """
    totals = np.bincount(codes, minlength=len(names))
    frequent = np.flatnonzero(totals >= SEEN)
    place_of = np.full(len(names), -1)
    place_of[frequent] = np.arange(len(frequent))
    kept = place_of[codes] >= 0
    slots = int(tally.starts[-1])
    place = np.full((slots, WORDS), NONE32, np.uint32)
    count, lift = np.zeros((slots, WORDS), np.uint32), np.zeros((slots, WORDS), np.float32)
    for point in range(tally.first.shape[1]):
        own, first = tally.slots(point), tally.first[:, point].astype(np.int64)
        experts = own.stop - own.start
        flat = place_of[codes[kept]] * experts + first[kept]
        table = np.bincount(flat, minlength=len(frequent) * experts).reshape(len(frequent), experts)
        load = np.bincount(first, minlength=experts) / len(first)
        with np.errstate(divide="ignore", invalid="ignore"):
            lifts = table / (totals[frequent][:, None] * load)
            score = np.where((table >= SEEN) & (lifts > 1), table * np.log(lifts), 0.0)
        best = np.argsort(-score, axis=0, kind="stable")[:WORDS]
        for rank, row in enumerate(best):
            good = score[row, np.arange(experts)] > 0
            place[own, rank] = np.where(good, frequent[row], NONE32)
            count[own, rank] = np.where(good, table[row, np.arange(experts)], 0)
            lift[own, rank] = np.where(good, lifts[row, np.arange(experts)], 0)
    used, inverse = np.unique(place, return_inverse=True)
    known = used[used != NONE32]
    short = np.append(np.arange(len(known)), NONE32)[inverse].reshape(place.shape).astype(np.uint32)
    return Words([names[code] for code in known], short, count, lift)


def partners(tally: Tally) -> tuple[NDArray[np.uint16], NDArray[np.float64]]:
    """The experts that act on the same tokens as each slot, most often first, and how often they do. None: 2^16 - 1."""
    slots = int(tally.starts[-1])
    place, rate = np.full((slots, PARTNERS), NONE16, np.uint16), np.zeros((slots, PARTNERS))
    for point, pairs in enumerate(tally.pairs):
        own, size = tally.slots(point), min(PARTNERS, len(pairs) - 1)
        alone = np.diagonal(pairs)
        rates = np.divide(pairs, alone[:, None], out=np.zeros_like(pairs), where=alone[:, None] > 0)
        np.fill_diagonal(rates, -1)
        best = np.argsort(-rates, axis=1, kind="stable")[:, :size]
        found = np.take_along_axis(rates, best, axis=1)
        place[own, :size] = np.where(found > 0, best, NONE16)
        rate[own, :size] = np.maximum(found, 0)
    return place, rate


def examples(tally: Tally) -> UInt[NDArray[np.uint32], "slot example"]:
    """Rows of shown tokens at which each slot is chosen first and surest, from different texts. None: 2^32 - 1."""
    owner = np.zeros(len(tally.top), np.int64)
    for text, own in tally.shown.items():
        owner[own.start : own.stop] = text
    found = np.full((int(tally.starts[-1]), EXAMPLES), NONE32, np.uint32)
    for point in range(tally.first.shape[1]):
        first, sure = tally.top[:, point, 0], tally.probabilities[:, point, 0]
        taken: dict[int, list[int]] = {}
        for row in np.argsort(-sure, kind="stable").tolist():
            rows = taken.setdefault(int(first[row]), [])
            if len(rows) < EXAMPLES and all(owner[row] != owner[other] for other in rows):
                rows.append(row)
        for expert, rows in taken.items():
            found[tally.starts[point] + expert, : len(rows)] = rows
    return found
