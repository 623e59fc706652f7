"""Connections: uvicorn's, except that none is held for ever, and that every refusal is JSON.

A connection without a request is closed in time, whatever it drips. One whose client does not fetch its answers is cut.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from unmask.server.limits import Limits
from unmask.server.protocol import ApiError


class Connection(H11Protocol):
    """A connection of one client. Time without a whole head of a request counts as idle, also if bytes arrive."""

    limits = Limits()
    _timer: asyncio.TimerHandle | None = None
    _cut: asyncio.TimerHandle | None = None

    @classmethod
    def under(cls, limits: Limits) -> type[Connection]:
        """The class of connections under these limits."""
        return type("Connection", (cls,), {"limits": limits})

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request, unless there are too many connections."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            self._close()
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Take bytes."""
        super().data_received(data)
        if self._busy:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request, or for the rest of a body that nobody reads."""
        self._wait()
        super().on_response_complete()
        self._cut_if_closing()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection without a next request."""
        super().timeout_keep_alive_handler()
        self._cut_if_closing()

    def pause_writing(self) -> None:
        """Hold answers back. The client has the time of an answer to fetch what waits for it."""
        super().pause_writing()
        self._cut_later()

    def resume_writing(self) -> None:
        """Go on with answers."""
        super().resume_writing()
        if not self.transport.is_closing():
            self._stop_cut()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop_waiting()
        self._stop_cut()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            error = ApiError(400, "This is not a valid HTTP/1.1 request.")
            headers = [*error.headers.items(), ("content-length", str(len(error.body))), ("connection", "close")]
            for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=error.body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event))
        self._close()

    @property
    def _busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self) -> None:
        self._stop_waiting()
        self._timer = self.loop.call_later(self.limits.idle_seconds, self._close_if_idle)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_if_idle(self) -> None:
        if not self._busy:
            self._close()

    def _close(self) -> None:
        self.transport.close()
        self._cut_if_closing()

    def _cut_if_closing(self) -> None:
        # a transport closes only after its client has fetched all that was written
        if self.transport.is_closing():
            self._cut_later()

    def _cut_later(self) -> None:
        if self._cut is None:
            self._cut = self.loop.call_later(self.limits.fetch_seconds, self.transport.abort)

    def _stop_cut(self) -> None:
        if self._cut is not None:
            self._cut.cancel()
            self._cut = None
