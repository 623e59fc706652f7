"""Text queue: which of the texts that wait are computed next, and together.

Every text has a turn, on a clock that counts computed tokens. The turn of a text is the clock at its arrival, plus AGEING times the tokens
of its request up to this text, shorter texts first. So short texts go before long ones, and small requests before large ones. Nothing waits
for ever: once the clock has reached the turn of a text, texts that arrive go behind it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from heapq import heapify, heappop, heappush
from itertools import accumulate
from typing import Any, NamedTuple

from unmask.encoding.batching import BATCH_OVERHEAD, may_share

AGEING = 4
"""How long a text lets later, shorter texts go first: until so many times the tokens of its request up to this text were computed."""

_CANDIDATES = 512  # texts that are looked at for one batch, so that choosing stays cheap


class WaitingText(NamedTuple):
    """A text that waits. Earlier turns come first; of equal turns, earlier arrivals.

    request: whose it is; place: its place there; group: only texts of one group share a batch.
    """

    turn: int
    arrival: int
    request: Any
    place: int
    group: Hashable
    tokens: int
    value: Any


class TextQueue:
    """Texts that wait, in the order of their turns. One thread at a time may use it.

    tokens: of all texts that wait. clock: tokens of all texts that were taken. Work for one request hardly depends on how many texts of
    others wait: the texts are a heap, and a text that is removed stays there until it comes up.
    """

    def __init__(self) -> None:
        """Make an empty queue."""
        self.tokens = self.clock = 0
        self._arrivals = self._number = 0
        self._waiting: list[WaitingText] = []
        self._of: dict[Any, dict[int, int]] = {}  # request -> arrival of each text that waits -> its tokens

    def __len__(self) -> int:
        """Number of texts that wait."""
        return self._number

    def add(self, request: Any, group: Hashable, texts: Sequence[tuple[int, Any]]) -> None:
        """Let the texts of a request wait. texts: number of tokens and value of each."""
        before = 0
        for place in sorted(range(len(texts)), key=lambda place: texts[place][0]):
            tokens, value = texts[place]
            before += tokens
            self._arrivals += 1
            self._of.setdefault(request, {})[self._arrivals] = tokens
            text = WaitingText(self.clock + AGEING * before, self._arrivals, request, place, group, tokens, value)
            heappush(self._waiting, text)
        self.tokens += before
        self._number += len(texts)

    def remove(self, request: Any) -> None:
        """Forget the texts of a request that nobody waits for any more."""
        removed = self._of.pop(request, {})
        self.tokens -= sum(removed.values())
        self._number -= len(removed)
        if len(self._waiting) > 2 * self._number + _CANDIDATES:  # most were removed, so that looking at all is rare
            self._waiting = [text for text in self._waiting if self._waits(text)]
            heapify(self._waiting)

    def take(self, budget: int) -> list[WaitingText]:
        """The text whose turn it is, and others that share its batch: at most `budget` tokens with padding, or one longer text.

        Empty if no text waits. A text joins only if that is cheaper than a batch of its own.
        """
        texts = self._first(_CANDIDATES)
        if not texts:
            return []
        first = texts[0]
        candidates = [text for text in texts if text.group == first.group]
        candidates.sort(key=lambda text: text.tokens)  # stable: of equal lengths, the earlier turn comes first
        start, stop = share_batch([text.tokens for text in candidates], candidates.index(first), budget)
        batch = candidates[start:stop]
        for text in batch:
            self._leave(text)
        for text in texts:
            if self._waits(text):
                heappush(self._waiting, text)
        self.clock += sum(text.tokens for text in batch)
        return batch

    def take_all(self) -> list[WaitingText]:
        """Every text that waits; then the queue is empty."""
        texts = self._first(len(self))
        for text in texts:
            self._leave(text)
        return texts

    def _first(self, number: int) -> list[WaitingText]:
        """Take up to so many texts that wait out of the heap, in order."""
        texts: list[WaitingText] = []
        while self._waiting and len(texts) < number:
            text = heappop(self._waiting)
            if self._waits(text):
                texts.append(text)
        return texts

    def _waits(self, text: WaitingText) -> bool:
        """Whether a text in the heap was neither taken nor removed."""
        return text.arrival in self._of.get(text.request, ())

    def _leave(self, text: WaitingText) -> None:
        """Count a text as taken."""
        of_request = self._of[text.request]
        self.tokens -= of_request.pop(text.arrival)
        self._number -= 1
        if not of_request:
            del self._of[text.request]


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
