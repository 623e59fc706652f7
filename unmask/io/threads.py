"""Threads: what several threads share (a loaded model, a tokenizer) is used by one of them at a time, in turn."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from types import TracebackType


class FairLock:
    """A lock that goes to whoever has waited the longest, and that its holder may take again.

    `threading.Lock` promises no order: a thread that releases it and takes it again at once can keep all others waiting.
    """

    def __init__(self) -> None:
        """Make a lock that is free."""
        self._mutex = threading.Lock()
        self._holder: int | None = None
        self._depth = 0
        self._waiting: deque[tuple[int, threading.Lock]] = deque()

    def __enter__(self) -> None:
        """Wait for the turn of this thread."""
        me, gate = threading.get_ident(), threading.Lock()
        with self._mutex:
            if self._holder in (None, me):
                self._holder, self._depth = me, self._depth + 1
                return
            gate.acquire()
            self._waiting.append((me, gate))
        try:
            gate.acquire()
        except BaseException:  # Ctrl-C while waiting: the turn must not go to a thread that no longer wants it
            with self._mutex:
                if (me, gate) in self._waiting:
                    self._waiting.remove((me, gate))
                else:
                    self._hand_over()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Give the turn to the next thread."""
        with self._mutex:
            self._depth -= 1
            if self._depth == 0:
                self._hand_over()

    def _hand_over(self) -> None:
        if self._waiting:
            self._holder, gate = self._waiting.popleft()
            self._depth = 1
            gate.release()
        else:
            self._holder, self._depth = None, 0


_locks: dict[int, FairLock] = {}
_making = threading.Lock()


def lock_of(shared: object) -> FairLock:
    """The one lock of an object, for as long as the object lives.

    It is kept apart from the object: objects with a lock in them can neither be copied nor sent to another process.
    """
    with _making:
        if id(shared) not in _locks:
            _locks[id(shared)] = FairLock()
            weakref.finalize(shared, _locks.pop, id(shared), None).atexit = False
        return _locks[id(shared)]
