"""Text queue: which of the texts that wait are computed next, and together.

Every text has a turn, on a clock that counts computed tokens. The turn of a text is the clock at its arrival, plus AGEING times the tokens
of its request up to this text, shorter texts first. So short texts go before long ones, and small requests before large ones. Nothing waits
for ever: once the clock has reached the turn of a text, texts that arrive go behind it.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from unmask.encoding.batching import BATCH_OVERHEAD, may_share

AGEING = 4
"""How long a text lets later, shorter texts go first: until so many times the tokens of its request up to this text were computed."""

_CANDIDATES = 512  # texts that are looked at for one batch, so that choosing stays cheap


@dataclass(frozen=True)
class WaitingText:
    """A text that waits. request: whose it is; place: its place there; group: only texts of one group share a batch."""

    turn: int
    arrival: int
    request: Any
    place: int
    group: Hashable
    tokens: int
    value: Any

    def __lt__(self, other: WaitingText) -> bool:
        """Earlier turns first; of equal turns, earlier arrivals."""
        return (self.turn, self.arrival) < (other.turn, other.arrival)


class TextQueue:
    """Texts that wait, in the order of their turns. One thread at a time may use it.

    tokens: of all texts that wait. clock: tokens of all texts that were taken.
    """

    def __init__(self) -> None:
        """Make an empty queue."""
        self.tokens = self.clock = 0
        self._arrivals = 0
        self._waiting: list[WaitingText] = []

    def __len__(self) -> int:
        """Number of texts that wait."""
        return len(self._waiting)

    def add(self, request: Any, group: Hashable, texts: Sequence[tuple[int, Any]]) -> None:
        """Let the texts of a request wait. texts: number of tokens and value of each."""
        before = 0
        for place in sorted(range(len(texts)), key=lambda place: texts[place][0]):
            tokens, value = texts[place]
            before += tokens
            self._arrivals += 1
            text = WaitingText(self.clock + AGEING * before, self._arrivals, request, place, group, tokens, value)
            insort(self._waiting, text)
        self.tokens += before

    def remove(self, request: Any) -> None:
        """Forget the texts of a request that nobody waits for any more."""
        self._keep([text for text in self._waiting if text.request is not request])

    def take(self, budget: int) -> list[WaitingText]:
        """The text whose turn it is, and others that share its batch: at most `budget` tokens with padding, or one longer text.

        Empty if no text waits. A text joins only if that is cheaper than a batch of its own.
        """
        if not self._waiting:
            return []
        first = self._waiting[0]
        candidates = [text for text in self._waiting[:_CANDIDATES] if text.group == first.group]
        candidates.sort(key=lambda text: text.tokens)  # stable: of equal lengths, the earlier turn comes first
        start, stop = share_batch([text.tokens for text in candidates], candidates.index(first), budget)
        batch = candidates[start:stop]
        taken = {text.arrival for text in batch}
        self._keep([text for text in self._waiting if text.arrival not in taken])
        self.clock += sum(text.tokens for text in batch)
        return batch

    def take_all(self) -> list[WaitingText]:
        """Every text that waits; then the queue is empty."""
        texts = self._waiting
        self._keep([])
        return texts

    def _keep(self, texts: list[WaitingText]) -> None:
        self._waiting = texts
        self.tokens = sum(text.tokens for text in texts)


def share_batch(lengths: Sequence[int], first: int, budget: int) -> tuple[int, int]:
    """The range of texts around `first` that makes the best batch. lengths: ascending.

    The next shorter or the next longer text joins, whichever leaves the larger share of the cost to real tokens. It joins only if
    that share grows, if its padding costs less than a batch of its own, and if the batch stays within the budget.
    """
    before = list(accumulate(lengths, initial=0))

    def padded(start: int, stop: int) -> int:
        return lengths[stop - 1] * (stop - start)

    def real(start: int, stop: int) -> int:
        return before[stop] - before[start]

    def share(batch: tuple[int, int]) -> float:
        return real(*batch) / (padded(*batch) + BATCH_OVERHEAD)

    def joins(larger: tuple[int, int], batch: tuple[int, int]) -> bool:
        if larger[0] < 0 or larger[1] > len(lengths) or padded(*larger) > budget:
            return False
        if not may_share(lengths[larger[0]], lengths[larger[1] - 1]):
            return False
        padding = padded(*larger) - real(*larger) - padded(*batch) + real(*batch)
        return padding <= BATCH_OVERHEAD and share(larger) > share(batch)

    batch = (first, first + 1)
    while options := [larger for larger in ((batch[0] - 1, batch[1]), (batch[0], batch[1] + 1)) if joins(larger, batch)]:
        batch = max(options, key=share)
    return batch
