"""Work: one request at a time computes. Others wait, up to a limit. What nobody waits for any more is stopped."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from unmask.errors import UnmaskError
from unmask.server.gate import gone
from unmask.server.protocol import ApiError

Value = TypeVar("Value")
MOST_WAITING = 8


class Stopped(Exception):
    """Nobody waits for the answer any more."""


class Stop:
    """Whether work should end. Calling it raises Stopped, so that it can be the `progress` of an encoding."""

    def __init__(self) -> None:
        """Begin unset."""
        self._event = threading.Event()

    def set(self) -> None:
        """Let the work end at its next step."""
        self._event.set()

    @property
    def is_set(self) -> bool:
        """Whether the work should end."""
        return self._event.is_set()

    def __call__(self, _: int = 0) -> None:
        """Raise Stopped if the work should end."""
        if self._event.is_set():
            raise Stopped


class Worker:
    """The thread that computes for requests."""

    def __init__(self) -> None:
        """Start nothing yet: the first request starts the thread."""
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="unmask-ui")
        self._open: set[Stop] = set()

    async def run(self, receive: Callable[[], Any], work: Callable[[Stop], Value]) -> Value:
        """The result of the work. It ends early when the client closes the connection.

        Raises ApiError: 400 for an UnmaskError, in its words; 429 if too many requests wait; 499 if the client went away.
        """
        if len(self._open) > MOST_WAITING:
            raise ApiError(429, f"{MOST_WAITING} requests wait already. Stop one of them, or wait.", retry_after=1)
        stop = Stop()
        self._open.add(stop)
        computed = asyncio.wrap_future(self._pool.submit(_unless_stopped, work, stop))
        left = asyncio.ensure_future(gone(receive))
        try:
            await asyncio.wait((computed, left), return_when=asyncio.FIRST_COMPLETED)
            if not computed.done():
                raise ApiError(499, "The browser has stopped waiting.")
            return computed.result()
        except UnmaskError as error:
            raise ApiError(400, str(error)) from None
        except Stopped:
            raise ApiError(503, "The page is closing.") from None
        finally:
            stop.set()
            left.cancel()
            computed.cancel()  # so that nobody is told of an error that nobody waits for
            self._open.discard(stop)

    def close(self) -> None:
        """End all work at its next step."""
        for stop in list(self._open):  # a copy: the thread of the page may add and remove meanwhile
            stop.set()
        self._pool.shutdown(wait=False, cancel_futures=True)


def _unless_stopped(work: Callable[[Stop], Value], stop: Stop) -> Value:
    stop()
    return work(stop)
