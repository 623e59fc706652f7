"""What tests over texts need of a routing record: first choices text by text, and how strongly experts act."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, UInt
from numpy.typing import NDArray

from unmask.probing.routing.record import Choices, RoutingRecord
from unmask.statistics.routing.text_bootstrap import text_counts


def first_choice_counts(record: RoutingRecord, starts: Sequence[int]) -> UInt[NDArray[np.uint16], "text point expert"]:
    """For each text and routing point, how many tokens of the response chose each expert first. All points have equally many experts.

    starts: for each text, the character at which its response begins. A token across this border counts as response.
    """
    experts, spans = record.points[0].experts, record.spans()
    counts = np.zeros((record.settings.texts, len(record.points), experts))
    for choices in record.batches():
        texts = choices.texts.astype(np.int64)
        responses = _in_response(choices, spans, starts)
        for place, chosen in enumerate(choices.chosen):
            counted = responses & (chosen[:, 0] >= 0)
            counts[:, place] += text_counts(chosen[counted, 0].astype(np.int64), texts[counted], len(counts), experts)
    return counts.astype(np.uint16)


def _in_response(choices: Choices, spans: Sequence[NDArray[Any]], starts: Sequence[int]) -> Bool[NDArray[np.bool_], " token"]:
    places = zip(choices.texts.tolist(), choices.positions.tolist(), strict=True)
    return np.array([bool(spans[text][position][1] > starts[text]) for text, position in places], np.bool_)


def strength(record: RoutingRecord) -> float:
    """How strongly the experts of a token act together: the mean over tokens and routing points of the sum of gates."""
    sums = [gates.astype(np.float64).sum(axis=1).mean() for choices in record.batches() for gates in choices.gates]
    return float(np.mean(sums))
