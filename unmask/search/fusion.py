"""Rankings: the best rows by a score, and one ranking made of several by reciprocal rank.

A row is the place of a document in the index, from 0. Equal scores are ranked by row, so that an answer never depends on chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
RANK_CONSTANT = 60
"""The k of reciprocal rank fusion, as in Cormack, Clarke and Buettcher (2009): a document at rank r gets 1 / (k + r)."""


@dataclass(frozen=True)
class Ranking:
    """Rows with their scores, best first. Both arrays have one entry for each row."""

    rows: Rows
    scores: NDArray[np.float64]


def best(rows: Rows, scores: NDArray[np.floating], number: int) -> Ranking:
    """The `number` rows with the highest scores. scores: of these rows, in their order."""
    if number < len(rows):
        least = np.partition(scores, len(scores) - number)[len(scores) - number]
        kept = scores >= least
        rows, scores = rows[kept], scores[kept]
    order = np.lexsort((rows, -scores))[:number]
    return Ranking(rows[order], scores[order].astype(np.float64))


def fuse(rankings: Sequence[Ranking], number: int) -> Ranking:
    """Reciprocal rank fusion: the `number` rows with the highest sum of 1 / (60 + rank) over the rankings that hold them."""
    rows, places = np.unique(np.concatenate([ranking.rows for ranking in rankings]), return_inverse=True)
    gains = np.concatenate([1 / (RANK_CONSTANT + np.arange(1, len(ranking.rows) + 1)) for ranking in rankings])
    return best(rows.astype(np.int64), np.bincount(places, gains, len(rows)).astype(np.float64), number)
