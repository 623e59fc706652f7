"""Threads that own the model and process the texts of requests in batches, in the order of the text queue."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any

from unmask.encoding.batching import share
from unmask.server.text_queue import TextQueue, WaitingText

Compute = Callable[[int, Hashable, Sequence[Any]], Sequence[Any]]
"""(worker, group, values of a batch) -> one result per value."""


class Full(Exception):
    """The queue is full."""


class Closed(Exception):
    """The batcher accepts no more texts."""


class _Request:
    def __init__(self, texts: int) -> None:
        self.future: Future[list[Any]] = Future()
        self._results: list[Any] = [None] * texts
        self.missing, self._lock = texts, threading.Lock()

    def deliver(self, position: int, result: Any) -> None:
        with self._lock, suppress(InvalidStateError):  # the future was cancelled, or another text failed
            self._results[position] = result
            self.missing -= 1
            if isinstance(result, Exception):
                self.future.set_exception(result)
            elif not self.missing:
                self.future.set_result(self._results)


class Batcher:
    """Computes texts of many requests together. Thread-safe.

    Args:
        compute: Computes a batch.
        budget: Maximum tokens of a batch, padding included.
        capacity: Maximum tokens in the queue.
        workers: Number of batches computed in parallel.
        observe: Called after each batch with the number of its texts, their tokens, and seconds.
    """

    def __init__(
        self,
        compute: Compute,
        *,
        budget: int,
        capacity: int,
        workers: int = 1,
        observe: Callable[[int, int, float], None] = lambda texts, tokens, seconds: None,
    ) -> None:
        self._compute, self._budget, self._capacity, self._observe = compute, budget, capacity, observe
        self._queue, self._changed = TextQueue(), threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, args=(number,), name=f"unmask-worker-{number}", daemon=True)
            for number in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def alive(self) -> bool:
        """Whether all threads are running."""
        return all(thread.is_alive() for thread in self._threads)

    @property
    def waiting(self) -> tuple[int, int]:
        """Number of waiting texts, and their tokens."""
        with self._changed:
            return len(self._queue), self._queue.tokens

    def submit(self, group: Hashable, texts: Sequence[tuple[int, Any]]) -> Future[list[Any]]:
        """Queue the texts of a request, as (tokens, value) pairs; the future holds their results in the same order.

        Cancel the future to drop texts that are still waiting. Raises Full, or Closed after `close`.
        """
        request = _Request(len(texts))
        with self._changed:
            if self._closed:
                raise Closed
            # an empty queue accepts any request, so that large ones are not refused forever
            if len(self._queue) and self._queue.tokens + sum(tokens for tokens, _ in texts) > self._capacity:
                raise Full
            self._queue.add(request, group, texts)
            self._changed.notify(len(texts))

        def drop_waiting(_: Future[list[Any]]) -> None:
            if request.missing:
                with self._changed:
                    self._queue.remove(request)

        request.future.add_done_callback(drop_waiting)
        return request.future

    def close(self, timeout: float | None = None) -> None:
        """Refuse new texts and wait for the others; requests not computed within the timeout fail with Closed."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        end = None if timeout is None else time.monotonic() + timeout
        for thread in self._threads:
            thread.join(None if end is None else max(0, end - time.monotonic()))
        with self._changed:
            abandoned = self._queue.take_all()
        for text in abandoned:
            text.request.deliver(text.position, Closed())

    def _work(self, worker: int) -> None:
        while batch := self._next():
            start = time.perf_counter()
            results = self._compute_each(worker, batch)
            # before the answers, so that a client finds its batch in the metrics
            self._observe(len(batch), sum(text.tokens for text in batch), time.perf_counter() - start)
            for text, result in zip(batch, results, strict=True):
                text.request.deliver(text.position, result)

    def _next(self) -> list[WaitingText]:
        """The next batch, or nothing after `close`."""
        with self._changed:
            while not len(self._queue) and not self._closed:
                self._changed.wait()
            return self._queue.take(share(self._budget, self._queue.tokens, len(self._threads)))

    def _compute_each(self, worker: int, batch: list[WaitingText]) -> list[Any]:
        """The result or the error of each text. A batch that fails is halved, so that only the offending text fails."""
        try:
            return list(self._compute(worker, batch[0].group, [text.value for text in batch]))
        except Exception as error:
            if len(batch) == 1:
                return [error]
            middle = len(batch) // 2
            return [*self._compute_each(worker, batch[:middle]), *self._compute_each(worker, batch[middle:])]
