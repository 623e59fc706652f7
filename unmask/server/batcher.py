"""Batcher: the threads that own the model compute the texts of all requests, batch by batch, in the order of the text queue."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from unmask.encoding.batching import share
from unmask.server.text_queue import TextQueue, WaitingText

Compute = Callable[[int, Hashable, Sequence[Any]], Sequence[Any]]
"""Takes the number of the worker, and the group and the values of a batch. Returns one result for each value."""

_FORGET = 0.2  # weight of the newest batch in the mean speed


class Full(Exception):
    """The queue has no room. seconds: after which a new try may succeed."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the queue is full for {seconds:.0f} seconds")
        self.seconds = seconds


class Closed(Exception):
    """The batcher takes no more texts."""


@dataclass(frozen=True)
class Batch:
    """A batch that was computed: its group, texts and tokens, and the seconds that it took."""

    group: Hashable
    texts: int
    tokens: int
    seconds: float


@dataclass(eq=False)
class _Request:
    """A request whose texts wait or are computed."""

    future: Future[list[Any]]
    results: list[Any]
    missing: int = field(init=False)

    def __post_init__(self) -> None:
        self.missing, self._lock = len(self.results), threading.Lock()

    def done_with_one(self) -> bool:
        """Count a result. Returns whether it was the last one."""
        with self._lock:
            self.missing -= 1
            return not self.missing


class Batcher:
    """Computes texts of many requests together. All methods may be called from any thread.

    budget: most tokens of a batch with its padding. capacity: most tokens that may wait. workers: batches that are computed at the
    same time. observe: called after each batch.
    """

    def __init__(
        self,
        compute: Compute,
        *,
        budget: int,
        capacity: int,
        workers: int = 1,
        observe: Callable[[Batch], None] = lambda batch: None,
    ) -> None:
        """Start the threads."""
        self._compute, self._budget, self._capacity, self._observe = compute, budget, capacity, observe
        self._queue, self._changed = TextQueue(), threading.Condition()
        self._closed = False
        self._speed = 0.0  # tokens a second, of one worker
        self._threads = [
            threading.Thread(target=self._work, args=(number,), name=f"unmask-worker-{number}", daemon=True)
            for number in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def alive(self) -> bool:
        """Whether all threads run."""
        return all(thread.is_alive() for thread in self._threads)

    @property
    def waiting(self) -> tuple[int, int]:
        """Number of texts that wait, and their tokens."""
        with self._changed:
            return len(self._queue), self._queue.tokens

    def submit(self, group: Hashable, texts: Sequence[tuple[int, Any]]) -> Future[list[Any]]:
        """The future results of the texts of one request, in their order. texts: number of tokens and value of each.

        Cancel the future to drop those texts that still wait. Raises Full, and Closed after `close`.
        """
        request = _Request(Future(), [None] * len(texts))
        with self._changed:
            if self._closed:
                raise Closed
            # an empty queue takes any request, so that none is refused for ever
            if len(self._queue) and self._queue.tokens + sum(tokens for tokens, _ in texts) > self._capacity:
                raise Full(self._queue.tokens / self._speed / len(self._threads) if self._speed else 1.0)
            self._queue.add(request, group, texts)
            self._changed.notify(len(texts))
        request.future.add_done_callback(lambda _: self._forget(request))
        if not texts:
            request.future.set_result([])
        return request.future

    def close(self, timeout: float | None = None) -> None:
        """Refuse new texts, and wait until all others are computed. What is not computed in time raises Closed."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        end = None if timeout is None else time.monotonic() + timeout
        for thread in self._threads:
            thread.join(None if end is None else max(0, end - time.monotonic()))
        with self._changed:
            abandoned = {text.request for text in self._queue.take_all()}
        for request in abandoned:
            _settle(request.future, Closed())

    def _forget(self, request: _Request) -> None:
        """Drop the texts of a request that was cancelled or has failed."""
        if request.missing:
            with self._changed:
                self._queue.remove(request)

    def _work(self, worker: int) -> None:
        while batch := self._next():
            begin = time.perf_counter()
            results = self._computed(worker, batch)
            # before the answers: who has one would else find it missing in the metrics
            self._note(batch, time.perf_counter() - begin)
            for text, result in zip(batch, results, strict=True):
                _hand_over(text, result)

    def _next(self) -> list[WaitingText]:
        """The next batch; empty if there will be none."""
        with self._changed:
            while not len(self._queue) and not self._closed:
                self._changed.wait()
            return self._queue.take(share(self._budget, self._queue.tokens, len(self._threads)))

    def _computed(self, worker: int, batch: list[WaitingText]) -> list[Any]:
        """The result or the error of each text. If a batch fails, its halves are computed, so that only the text that cannot be fails."""
        try:
            return list(self._compute(worker, batch[0].group, [text.value for text in batch]))
        except Exception as error:
            if len(batch) == 1:
                return [error]
            middle = len(batch) // 2
            return [*self._computed(worker, batch[:middle]), *self._computed(worker, batch[middle:])]

    def _note(self, batch: list[WaitingText], seconds: float) -> None:
        tokens = sum(text.tokens for text in batch)
        speed = tokens / max(seconds, 1e-6)
        with self._changed:
            self._speed += (speed - self._speed) * (_FORGET if self._speed else 1.0)
        self._observe(Batch(batch[0].group, len(batch), tokens, seconds))


def _hand_over(text: WaitingText, result: Any) -> None:
    """Give a request the result of one of its texts, or the error that ends it."""
    request = text.request
    if isinstance(result, Exception):
        _settle(request.future, result)
        return
    request.results[text.place] = result
    if request.done_with_one():
        _settle(request.future, request.results)


def _settle(future: Future[list[Any]], result: list[Any] | Exception) -> None:
    """Give a future its result, unless it was cancelled."""
    with suppress(InvalidStateError):
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)
