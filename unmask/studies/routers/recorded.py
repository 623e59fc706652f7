"""What tests over texts need of a routing record: first choices text by text, and how strongly experts act."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, UInt

from unmask.io.array_types import NDArray
from unmask.moe.routing.record import Choices, RoutingRecord
from unmask.moe.routing.text_bootstrap import text_counts


def responses(record: RoutingRecord, starts: Sequence[int]) -> tuple[UInt[NDArray[np.uint16], "text point expert"], float]:
    """For each text and routing point, how many tokens of the response chose each expert first; and how strongly experts act.

    starts: for each text, the character at which its response begins. A token across this border counts as response. All points have
    equally many experts. Strength is the mean over all tokens and routing points of the sum of gates.
    """
    experts, spans = record.points[0].experts, record.spans()
    counts = np.zeros((record.settings.texts, len(record.points), experts))
    strength, tokens = 0.0, 0
    for choices in record.batches():
        texts = choices.texts.astype(np.int64)
        of_responses = _in_response(choices, spans, starts)
        for place, chosen in enumerate(choices.chosen):
            counted = of_responses & (chosen[:, 0] >= 0)
            counts[:, place] += text_counts(chosen[counted, 0].astype(np.int64), texts[counted], len(counts), experts)
        strength += sum(float(gates.sum(dtype=np.float64)) for gates in choices.gates)
        tokens += len(texts)
    return counts.astype(np.uint16), strength / max(1, tokens * len(record.points))


def _in_response(choices: Choices, spans: Sequence[NDArray[Any]], starts: Sequence[int]) -> Bool[NDArray[np.bool_], " token"]:
    places = zip(choices.texts.tolist(), choices.positions.tolist(), strict=True)
    return np.array([bool(spans[text][position][1] > starts[text]) for text, position in places], np.bool_)
