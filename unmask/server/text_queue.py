"""Fair queue of texts: which texts are computed next, and together.

Priorities are virtual deadlines on a clock that counts computed tokens: the clock at arrival, plus AGEING times the tokens of the request
up to this text, shortest text first. Short texts overtake long ones, and small requests large ones, but nothing starves: once the clock
has passed the deadline of a text, new texts queue behind it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from heapq import heapify, heappop, heappush
from itertools import accumulate
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
    """Waiting texts in a heap; removed texts stay in it until they come up. Not thread-safe.

    tokens: total of the waiting texts. clock: total tokens of the texts taken so far.
    """

    def __init__(self) -> None:
        self.tokens = self.clock = 0
        self._arrivals = self._number = 0
        self._waiting: list[WaitingText] = []
        self._lengths: dict[Any, dict[int, int]] = {}  # request -> arrival of each waiting text -> its tokens

    def __len__(self) -> int:
        """Number of waiting texts."""
        return self._number

    def add(self, request: Any, group: Hashable, texts: Sequence[tuple[int, Any]]) -> None:
        """Add the texts of a request, as (tokens, value) pairs."""
        before = 0
        for position in sorted(range(len(texts)), key=lambda position: texts[position][0]):
            tokens, value = texts[position]
            before += tokens
            self._arrivals += 1
            self._lengths.setdefault(request, {})[self._arrivals] = tokens
            text = WaitingText(
                deadline=self.clock + AGEING * before, arrival=self._arrivals, request=request, position=position, group=group,
                tokens=tokens, value=value,
            )  # fmt: skip
            heappush(self._waiting, text)
        self.tokens += before
        self._number += len(texts)

    def remove(self, request: Any) -> None:
        """Remove the texts of a request."""
        removed = self._lengths.pop(request, {})
        self.tokens -= sum(removed.values())
        self._number -= len(removed)
        if len(self._waiting) > 2 * self._number + _CANDIDATES:  # most of the heap is stale
            self._waiting = [text for text in self._waiting if self._is_waiting(text)]
            heapify(self._waiting)

    def take(self, budget: int) -> list[WaitingText]:
        """Take the first text and those that share its batch: at most `budget` tokens with padding, or one longer text."""
        texts = self._pop(_CANDIDATES)
        if not texts:
            return []
        first = texts[0]
        candidates = [text for text in texts if text.group == first.group]
        candidates.sort(key=lambda text: text.tokens)  # stable: earlier deadlines first
        start, stop = share_batch([text.tokens for text in candidates], candidates.index(first), budget)
        batch = candidates[start:stop]
        for text in batch:
            self._take(text)
        for text in texts:
            if self._is_waiting(text):
                heappush(self._waiting, text)
        self.clock += sum(text.tokens for text in batch)
        return batch

    def take_all(self) -> list[WaitingText]:
        """Empty the queue."""
        texts = self._pop(len(self))
        for text in texts:
            self._take(text)
        return texts

    def _pop(self, number: int) -> list[WaitingText]:
        texts: list[WaitingText] = []
        while self._waiting and len(texts) < number:
            text = heappop(self._waiting)
            if self._is_waiting(text):
                texts.append(text)
        return texts

    def _is_waiting(self, text: WaitingText) -> bool:
        return text.arrival in self._lengths.get(text.request, ())

    def _take(self, text: WaitingText) -> None:
        of_request = self._lengths[text.request]
        self.tokens -= of_request.pop(text.arrival)
        self._number -= 1
        if not of_request:
            del self._lengths[text.request]


def share_batch(lengths: Sequence[int], first: int, budget: int) -> tuple[int, int]:
    """The best batch around text `first`, as a range of texts sorted by length.

    Greedily adds the next shorter or longer text, whichever leaves the larger share of the cost to real tokens, as long as that share
    grows, the padding costs less than a separate batch, and the budget holds.
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
