"""Fair queue of texts: which texts are computed next, and together.

Priorities are virtual deadlines on a clock that counts computed tokens: the clock at arrival, plus AGEING times the tokens of the request
up to this text, shortest text first. Short texts overtake long ones, and small requests large ones, but nothing starves: once the clock
has passed the deadline of a text, new texts queue behind it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from unmask.encoding.batching import BATCH_OVERHEAD, may_share

AGEING = 4
"""How long later, shorter texts may overtake: a multiple of the tokens of the request up to this text."""

_CANDIDATES = 512  # texts considered for a batch


class WaitingText(NamedTuple):
    """A text in the queue, ordered by deadline, then by arrival. Only texts of one group share a batch."""

    deadline: int
    arrival: int
    request: Any
    position: int
    group: Hashable
    tokens: int
    value: Any


class TextQueue:
    """Waiting texts, sorted by deadline. Not thread-safe.

    tokens: total of the waiting texts. clock: total tokens of the texts taken so far.
    """

    def __init__(self) -> None:
        self.tokens = self.clock = self._arrivals = 0
        self._waiting: list[WaitingText] = []

    def __len__(self) -> int:
        """Number of waiting texts."""
        return len(self._waiting)

    def add(self, request: Any, group: Hashable, texts: Sequence[tuple[int, Any]]) -> None:
        """Add the texts of a request, as (tokens, value) pairs."""
        before = 0
        for position, (tokens, value) in sorted(enumerate(texts), key=lambda item: item[1][0]):
            before += tokens
            self._arrivals += 1
            deadline = self.clock + AGEING * before
            self._waiting.append(
                WaitingText(deadline, self._arrivals, request, position, group=group, tokens=tokens, value=value)
            )
        self._waiting.sort()
        self.tokens += before

    def remove(self, request: Any) -> None:
        """Remove the texts of a request."""
        self._keep([text for text in self._waiting if text.request is not request])

    def take(self, budget: int) -> list[WaitingText]:
        """Take the first text and those that share its batch: at most `budget` tokens with padding, or one longer text.

        A text joins if padding it and the others costs less than a separate batch.
        """
        if not self._waiting:
            return []
        first = self._waiting[0]
        candidates = [text for text in self._waiting[1:_CANDIDATES] if text.group == first.group]
        batch, longest, shortest = [first], first.tokens, first.tokens
        for text in sorted(candidates, key=lambda text: abs(text.tokens - first.tokens)):  # stable: earlier deadlines first
            high, low = max(longest, text.tokens), min(shortest, text.tokens)
            padding = (high - longest) * len(batch) + high - text.tokens
            if high * (len(batch) + 1) <= budget and padding <= BATCH_OVERHEAD and may_share(low, high):
                batch.append(text)
                longest, shortest = high, low
        arrivals = {text.arrival for text in batch}
        self._keep([text for text in self._waiting if text.arrival not in arrivals])
        self.clock += sum(text.tokens for text in batch)
        return batch

    def take_all(self) -> list[WaitingText]:
        """Empty the queue."""
        texts = self._waiting
        self._keep([])
        return texts

    def _keep(self, texts: list[WaitingText]) -> None:
        self._waiting, self.tokens = texts, sum(text.tokens for text in texts)
