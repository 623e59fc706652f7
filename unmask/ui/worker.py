"""A single worker thread for requests that run the model. Work stops when its client disconnects."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from unmask.server.middleware import wait_for_disconnect
from unmask.server.protocol import ApiError

Value = TypeVar("Value")
MAX_WAITING = 8


class Stopped(Exception):
    """The result is no longer needed."""


class Stop(threading.Event):
    """An event that raises Stopped when called after it was set; can be the `progress` of an encoding."""

    def __call__(self, _: int = 0) -> None:
        """Raise Stopped if the work should end."""
        if self.is_set():
            raise Stopped


class Worker:
    """The thread that computes for requests."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="unmask-ui")
        self._open: set[Stop] = set()

    async def run(self, receive: Callable[[], Any], work: Callable[[Stop], Value]) -> Value:
        """Run `work` unless the client disconnects.

        Raises ApiError: 429 if too many requests wait, 499 after a disconnect.
        """
        if len(self._open) > MAX_WAITING:
            raise ApiError(429, f"{MAX_WAITING} requests are already waiting. Stop one of them, or wait.", retry_after=1)
        stop = Stop()
        self._open.add(stop)

        def start() -> Value:
            stop()
            return work(stop)

        result = asyncio.wrap_future(self._pool.submit(start))
        disconnect = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            await asyncio.wait((result, disconnect), return_when=asyncio.FIRST_COMPLETED)
            if not result.done():
                raise ApiError(499, "The browser has stopped waiting.")
            return result.result()
        except Stopped:
            raise ApiError(503, "The page is closing.") from None
        finally:
            stop.set()
            disconnect.cancel()
            result.cancel()  # else asyncio logs an error that was never retrieved
            self._open.discard(stop)

    def close(self) -> None:
        """Stop all work at its next step."""
        for stop in list(self._open):  # a copy: the event loop may change it meanwhile
            stop.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
