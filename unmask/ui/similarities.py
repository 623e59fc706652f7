"""Similarities: texts under two designs side by side, and the pairs on which the designs disagree most.

Cosines of two designs have different ranges, so they are not compared. What is compared is the order of the pairs of texts: each design
ranks all pairs, the most similar one first. Where a pair has very different places, the designs disagree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from unmask.embedder import Embedder
from unmask.io.array_types import NDArray
from unmask.statistics.correlations import codes_of, correlations, ranks_of
from unmask.ui.workbench import Embedded

Cosines = Float[NDArray[np.float32], "text text"]
_SHOWN = 8


@dataclass(frozen=True)
class Disagreement:
    """A pair of texts. cosines, places: under each design; place 1 is the most similar pair, and ties share their mean place."""

    texts: tuple[int, int]
    cosines: tuple[float, float]
    places: tuple[float, float]


def neighbours(cosines: Cosines) -> list[list[int]]:
    """For each text the other texts, the most similar one first. Ties stay in the order of the texts."""
    order = np.argsort(-cosines, axis=1, kind="stable")
    return [[int(other) for other in row if other != place] for place, row in enumerate(order)]


def compare_orders(first: Cosines, second: Cosines, most: int = _SHOWN) -> tuple[float | None, list[Disagreement]]:
    """Spearman's correlation of two designs over all pairs of texts, and the pairs whose places differ most, at most so many.

    The correlation is None with fewer than three pairs, or if a design gives all pairs the same cosine.
    """
    rows, columns = np.triu_indices(len(first), k=1)
    pairs = np.stack([first[rows, columns], second[rows, columns]], axis=1).round(6)  # so that rounding makes no order
    if len(pairs) < 3:
        return None, []
    once = np.ones(len(pairs), np.int64)
    places = ranks_of(codes_of(-pairs), once)
    flat = bool((pairs.min(axis=0) == pairs.max(axis=0)).any())
    gaps = np.abs(places[0] - places[1])
    worst = [place for place in np.argsort(-gaps, kind="stable")[:most] if gaps[place] > 0]
    return None if flat else float(correlations(places, once)[0, 1]), [
        Disagreement(
            (int(rows[place]), int(columns[place])),
            (float(pairs[place, 0]), float(pairs[place, 1])),
            (float(places[0, place]), float(places[1, place])),
        )
        for place in worst
    ]


def as_json(embedded: Sequence[Embedded]) -> dict[str, Any]:
    """What the page shows of texts under one design or two."""
    cosines = [Embedder.similarity(one.vectors, one.vectors) for one in embedded]
    spearman, pairs = compare_orders(cosines[0], cosines[1]) if len(cosines) == 2 else (None, [])
    count = len(cosines[0])
    return {
        "designs": [
            {
                "name": one.name,
                "design": one.design.name,
                "dim": one.vectors.shape[1],
                "cut": one.cut,
                "cosines": np.round(table.astype(float), 4).tolist(),
                "neighbours": neighbours(table),
            }
            for one, table in zip(embedded, cosines, strict=True)
        ],
        "pairs": count * (count - 1) // 2,
        "spearman": spearman,
        "disagreements": [vars(pair) for pair in pairs],
    }
