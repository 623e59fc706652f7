"""The first choices in a routing record, text by text: what tests over texts need."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from unmask.probing.routing.record import RoutingRecord
from unmask.statistics.routing.text_bootstrap import text_counts


def first_choice_shares(record: RoutingRecord) -> Float[NDArray[np.float64], "text point expert"]:
    """For each text and routing point, the share of its tokens that chose each expert first. All points have equally many experts."""
    texts, points = record.settings.texts, len(record.points)
    counts: NDArray[Any] | None = None
    for choices in record.batches():
        experts = choices.probabilities[0].shape[1]
        counts = np.zeros((texts, points, experts)) if counts is None else counts
        for place, probabilities in enumerate(choices.probabilities):
            counts[:, place] += text_counts(probabilities.argmax(axis=1), choices.texts.astype(np.int64), texts, experts)
    assert counts is not None, "a record has at least one part"
    return np.asarray(counts / np.maximum(counts.sum(axis=2, keepdims=True), 1))
